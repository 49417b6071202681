//! Which blobs a target has and where each chunk lies in them: a pure function of the spec, so that a stopped run finds
//! its own files again.
//!
//! Each writer rank has blobs of its own, filled in the order of the spec up to about 512 MiB, so that they are finished
//! one after another; a larger chunk has a blob of its own. Each blob is a plain safetensors file, or, where the spec says so of
//! its roles, a compressed one. A compressed blob has elements of one width, so that its chunks lie in the order of the spec: what
//! is written in that order never waits for what comes before it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use bytes::Bytes;
use fqn::{Dtype, Shape};
use reshard::Region;

mod told;

use self::told::{Told, escaped, key, names_of};
use super::attempt::FileNames;
use crate::{
    Error, Place, Result, TargetChunk, TargetSpec,
    codec::Codec,
    cores,
    digest::{BlockCodec, Sha256Digest},
    formats::safetensors::{HeaderBuilder, numbers},
};

/// Version of this layout: part of an attempt's identity, so that a later one never goes on in an older one's folder.
pub(super) const LAYOUT: &str = "native layout 1";

/// Bytes that a head tells of one box, about.
const TOLD: usize = 256;

/// Bytes after which a blob is closed. A store that takes bytes in order only holds as many back, so that boxes may come in any order.
pub(crate) const BLOB: u64 = 512 << 20;

/// A blob of the layout.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(super) names: FileNames,
    /// The rank that writes it.
    pub(crate) rank: u32,
    /// Everything before its first chunk; for large objects, all of it.
    pub(super) head: Bytes,
    /// Its SHA-256: known also where the head itself was let go.
    pub(super) head_digest: Sha256Digest,
    /// Bytes in all.
    pub(super) size: u64,
    /// Its chunks, by offset; `file` is its place in the layout.
    pub(crate) chunks: Vec<TargetChunk>,
    /// How the blocks of each chunk are stored, if they shrink; empty for a plain blob.
    pub(super) codecs: Vec<BlockCodec>,
}

impl Blob {
    /// Whether it is compressed, where that gains anything.
    pub(super) const fn is_coded(&self) -> bool {
        !self.codecs.is_empty()
    }
}

/// A blob whose head is not yet hashed.
struct Draft {
    names: FileNames,
    rank: u32,
    head: Bytes,
    size: u64,
    chunks: Vec<TargetChunk>,
    codecs: Vec<BlockCodec>,
}

impl Blob {
    pub(super) fn new(names: FileNames, rank: u32, head: Bytes, size: u64, chunks: Vec<TargetChunk>) -> Self {
        let head_digest = Sha256Digest::of(&head);
        Self { names, rank, head, head_digest, size, chunks, codecs: Vec::new() }
    }

    /// The drafts as blobs.
    fn of_drafts(drafts: Vec<Draft>) -> Vec<Self> {
        let heads: Vec<&[u8]> = drafts.iter().map(|draft| &*draft.head).collect();
        let digests = Sha256Digest::of_each(&heads);
        let blob = |(Draft { names, rank, head, size, chunks, codecs }, head_digest)| Self {
            names,
            rank,
            head,
            head_digest,
            size,
            chunks,
            codecs,
        };
        drafts.into_iter().zip(digests).map(blob).collect()
    }

    /// What it is in the layout.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn key(&self) -> &str {
        &self.names.key
    }

    /// Bytes in all.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }
}

/// What is kept of the heads of blobs. Those of all ranks of a large mesh are more than the rest of its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Their bytes, for who writes them.
    Bytes,
    /// Their digests, for who compares them.
    Digests,
}

/// Boxes of one rank that may be found unchanged in an earlier checkpoint. What becomes of each is decided when it is put, so
/// the layout has no blob for them.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(super) names: FileNames,
    /// The rank that has them.
    pub(crate) rank: u32,
    /// Position of the tensor, and the box.
    pub(crate) boxes: Vec<(usize, Region)>,
}

/// The blobs of what `wanted` says yes to, asked for a tensor's position and a rank.
///
/// # Errors
/// `Incompatible` for chunks that do not fill whole bytes, `Internal` for regions outside their tensors.
pub(super) fn blobs(
    spec: &TargetSpec,
    wanted: impl Fn(usize, u32) -> bool,
    heads: Heads,
) -> Result<Vec<Blob>> {
    let ranks = by_rank(spec, wanted);
    let told = Told::for_many(spec);
    // Two ranks at a time: heads are hashed in pairs, and a rank has one as a rule.
    let pairs: Vec<&[(u32, Vec<Piece<'_>>)]> = ranks.chunks(2).collect();
    let blobs_of = |at: usize| {
        let mut drafts = Vec::new();
        for (rank, pieces) in pairs.get(at).copied().unwrap_or_default() {
            for (number, (class, pieces)) in packed(spec, pieces)?.into_iter().enumerate() {
                drafts.push(draft(&told, (*rank, FileNames::of_rank(*rank, number)), class, &pieces)?);
            }
        }
        let mut blobs = Blob::of_drafts(drafts);
        if heads == Heads::Digests {
            blobs.iter_mut().for_each(|blob| blob.head = Bytes::new());
        }
        Ok(blobs)
    };
    let mut blobs: Vec<Blob> = cores::try_map(pairs.len(), blobs_of)?.into_iter().flatten().collect();
    for (file, blob) in blobs.iter_mut().enumerate() {
        blob.chunks.iter_mut().for_each(|chunk| chunk.file = file);
    }
    Ok(blobs)
}

/// The groups of what `wanted` says yes to; as large as blobs would be, and like them of one class each.
///
/// # Errors
/// As [`blobs`].
pub(super) fn groups(spec: &TargetSpec, wanted: impl Fn(usize, u32) -> bool) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for (rank, pieces) in by_rank(spec, wanted) {
        for (number, (_, pieces)) in packed(spec, &pieces)?.into_iter().enumerate() {
            let boxes = pieces.into_iter().map(|(tensor, region)| (tensor, region.clone())).collect();
            groups.push(Group { names: FileNames::of_group(rank, number), rank, boxes });
        }
    }
    Ok(groups)
}

/// The names of these blobs, each with the rank that writes it.
///
/// # Errors
/// As [`blobs`].
pub(super) fn names(spec: &TargetSpec, wanted: impl Fn(usize, u32) -> bool) -> Result<Vec<(u32, FileNames)>> {
    let mut names = Vec::new();
    for (rank, pieces) in by_rank(spec, wanted) {
        let blobs = packed(spec, &pieces)?.into_iter().enumerate();
        names.extend(
            blobs.map(|(number, (class, _))| (rank, FileNames::of_rank(rank, number).coded(class.is_some()))),
        );
    }
    Ok(names)
}

/// A box of a tensor.
pub(super) type Piece<'s> = (usize, &'s Region);

/// What each rank writes. Empty boxes are left out, but for one of a tensor that is empty itself.
fn by_rank(spec: &TargetSpec, wanted: impl Fn(usize, u32) -> bool) -> Vec<(u32, Vec<Piece<'_>>)> {
    let mut ranks: HashMap<u32, Vec<Piece<'_>>> = HashMap::new();
    for (at, tensor) in spec.tensors.iter().enumerate() {
        let hollow = tensor.entry.shape.contains(&0);
        let kept = tensor.regions.iter().filter(|(region, _)| hollow || !region.is_empty());
        let kept = kept.take(if hollow { 1 } else { usize::MAX });
        for (region, rank) in kept.filter(|(_, rank)| wanted(at, *rank)) {
            ranks.entry(*rank).or_default().push((at, region));
        }
    }
    let mut ranks: Vec<(u32, Vec<Piece<'_>>)> = ranks.into_iter().collect();
    ranks.sort_unstable_by_key(|(rank, _)| *rank);
    ranks
}

/// What may lie in one blob: all that is plain; what is compressed, by the bits of its elements.
type Class = Option<u32>;

/// A rank's boxes, blob by blob.
fn packed<'s>(spec: &TargetSpec, pieces: &[Piece<'s>]) -> Result<Vec<(Class, Vec<Piece<'s>>)>> {
    let (mut blobs, mut open) = (Vec::new(), BTreeMap::<Class, (Vec<Piece<'s>>, u64)>::new());
    for piece in pieces {
        let len = len_of(spec, piece)?;
        let class = class_of(spec, piece);
        let (now, bytes) = open.entry(class).or_default();
        if !now.is_empty() && bytes.saturating_add(len) > BLOB {
            blobs.push((class, std::mem::take(now)));
            *bytes = 0;
        }
        now.push(*piece);
        *bytes = bytes.saturating_add(len);
    }
    blobs.extend(open.into_iter().map(|(class, (now, _))| (class, now)).filter(|(_, now)| !now.is_empty()));
    Ok(blobs)
}

fn class_of(spec: &TargetSpec, (tensor, _): &Piece<'_>) -> Class {
    let entry = &spec.tensors.get(*tensor)?.entry;
    let stored = entry.dtype.safetensors_name().map_or(Dtype::U8, |_| entry.dtype);
    (spec.codecs.of(&entry.role) != Codec::None).then(|| stored.bits())
}

/// Bytes of a box.
pub(super) fn len_of(spec: &TargetSpec, (tensor, region): &Piece<'_>) -> Result<u64> {
    let entry = &spec.tensors.get(*tensor).ok_or_else(|| Error::internal("a box of no tensor"))?.entry;
    entry.dtype.bytes_for(region.elements()).ok_or_else(|| {
        Error::incompatible(format!("{}: {region} of {} does not fill whole bytes", entry.id(), entry.dtype))
            .hint("elements narrower than a byte can only be cut where whole bytes end")
    })
}

/// One blob of these pieces, which are of one class, in this order.
pub(super) fn blob_of(spec: &TargetSpec, rank: u32, names: FileNames, pieces: &[Piece<'_>]) -> Result<Blob> {
    let class = pieces.first().and_then(|piece| class_of(spec, piece));
    let draft = draft(&Told::new(spec), (rank, names), class, pieces)?;
    Blob::of_drafts(vec![draft]).pop().ok_or_else(|| Error::internal("a draft without a blob"))
}

fn draft(
    told: &Told<'_>,
    (rank, names): (u32, FileNames),
    class: Class,
    pieces: &[Piece<'_>],
) -> Result<Draft> {
    let (spec, names) = (told.spec, names.coded(class.is_some()));
    let mut header = HeaderBuilder::with_capacity(pieces.len());
    let mut about = escaped(r#"{"store":"native","version":1,"chunks":{"#)?;
    about.reserve(pieces.len() * TOLD);
    for (nth, ((tensor, region), name)) in pieces.iter().zip(names_of(told, pieces)?).enumerate() {
        let entry = &spec.tensors.get(*tensor).ok_or_else(|| Error::internal("a box of no tensor"))?.entry;
        let len = len_of(spec, &(*tensor, *region))?;
        let (dtype, shape) = stored_as(entry.dtype, region, len);
        let of_tensor = told.of(*tensor)?;
        about.extend_from_slice(if nth == 0 { b"" } else { b"," });
        match &name {
            Cow::Borrowed(_) => about.extend_from_slice(&of_tensor.key),
            Cow::Owned(name) => about.extend(key(name)?),
        }
        about.push(b':');
        about.extend_from_slice(&of_tensor.begin);
        // Numbers have nothing to escape.
        numbers(&mut about, br#",\"offsets\":"#, region.offsets());
        numbers(&mut about, br#",\"extents\":"#, region.extents());
        about.push(b'}');
        header.tensor(name, dtype, &shape)?;
    }
    about.extend(b"}}");
    if told.are_ids(pieces) {
        header.with_distinct_names();
    }
    let placed = header.escaped_metadata("ckpt", about).finish().place(&names.key)?;
    let mut chunks: Vec<TargetChunk> = pieces
        .iter()
        .zip(&placed.offsets)
        .map(|((tensor, region), offset)| TargetChunk {
            tensor: *tensor,
            region: (*region).clone(),
            file: 0,
            offset: *offset,
        })
        .collect();
    // An empty chunk has no bytes of its own: it goes before the one that begins where it does.
    chunks.sort_by_key(|chunk| (chunk.offset, !chunk.region.is_empty()));
    let codec = |chunk: &TargetChunk| {
        let entry = spec.tensors.get(chunk.tensor).map(|tensor| &tensor.entry);
        entry.map_or(BlockCodec::None, |entry| spec.codecs.of(&entry.role).of_blocks(entry.dtype))
    };
    let codecs = if class.is_some() { chunks.iter().map(codec).collect() } else { Vec::new() };
    Ok(Draft { names, rank, head: placed.bytes.into(), size: placed.file_size, chunks, codecs })
}

/// How a box stands in the header: as it is, or as bytes where safetensors lacks the dtype.
fn stored_as(dtype: Dtype, region: &Region, len: u64) -> (Dtype, Shape) {
    match dtype.safetensors_name() {
        Some(_) => (dtype, Shape::new(region.extents())),
        None => (Dtype::U8, Shape::new(&[len])),
    }
}

#[cfg(test)]
mod tests {
    use fqn::{Entry, Fqn, Role};
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::{TargetTensor, codec::Codecs};

    fn tensor(
        name: &str,
        role: Role,
        dtype: Dtype,
        shape: &[u64],
        regions: &[(&[u64], &[u64], u32)],
    ) -> TargetTensor {
        let regions = regions.iter().map(|(at, len, rank)| (Region::new(at, len).unwrap(), *rank)).collect();
        TargetTensor { entry: Entry::new(Fqn::new(name).unwrap(), role, dtype, Shape::new(shape)), regions }
    }

    fn spec(tensors: Vec<TargetTensor>) -> TargetSpec {
        TargetSpec {
            tensors,
            objects: Vec::new(),
            step: None,
            mesh: None,
            split: None,
            plan_digest: String::new(),
            extra: Map::new(),
            codecs: Codecs::NONE,
        }
    }

    #[test]
    fn what_is_compressed_has_blobs_of_its_own_by_width_in_the_order_of_the_spec() {
        let row = |name: &str, role, dtype| tensor(name, role, dtype, &[8], &[(&[0], &[8], 0)]);
        let mut spec = spec(vec![
            row("a", Role::Param, Dtype::BF16),
            row("a", Role::ExpAvg, Dtype::F32),
            row("a", Role::ExpAvgSq, Dtype::F64),
            row("b", Role::Param, Dtype::F32),
            row("b", Role::ExpAvg, Dtype::F32),
            row("b", Role::ExpAvgSq, Dtype::F8E8M0),
        ]);
        let laid_out = |spec: &TargetSpec| -> Vec<(String, Vec<usize>, Vec<BlockCodec>)> {
            let blobs = blobs(spec, |_, _| true, Heads::Bytes).unwrap();
            assert_eq!(
                names(spec, |_, _| true).unwrap(),
                blobs.iter().map(|it| (it.rank, it.names.clone())).collect::<Vec<_>>()
            );
            let tensors = |blob: &Blob| blob.chunks.iter().map(|chunk| chunk.tensor).collect();
            let nonce = crate::store::Nonce::from_bits(7);
            let kind = |blob: &Blob| blob.names.blob(nonce).rsplit_once('.').unwrap().1.to_owned();
            blobs.iter().map(|it| (kind(it), tensors(it), it.codecs.clone())).collect()
        };
        assert_eq!(laid_out(&spec).len(), 1);
        spec.codecs = "planes,param=none".parse().unwrap();
        let (plain, coded) = ("safetensors".to_owned(), "coded".to_owned());
        assert_eq!(
            laid_out(&spec),
            [
                (plain, vec![3, 0], vec![]),
                (coded.clone(), vec![5], vec![BlockCodec::Zstd]),
                (coded.clone(), vec![1, 4], vec![BlockCodec::Planes4; 2]),
                (coded, vec![2], vec![BlockCodec::Planes8]),
            ]
        );
    }

    #[test]
    fn blobs_are_cut_between_chunks_and_a_larger_chunk_has_its_own() {
        const MIB: u64 = 1 << 20;
        let row =
            |name: &str, mib| tensor(name, Role::Param, Dtype::U8, &[mib * MIB], &[(&[0], &[mib * MIB], 0)]);
        let spec = spec(vec![row("a", 300), row("b", 200), row("c", 20), row("d", 2000), row("e", 1)]);
        let blobs = blobs(&spec, |_, _| true, Heads::Bytes).unwrap();
        let tensors: Vec<Vec<usize>> =
            blobs.iter().map(|blob| blob.chunks.iter().map(|it| it.tensor).collect()).collect();
        assert_eq!(tensors, [vec![0, 1], vec![2], vec![3], vec![4]]);
        assert_eq!(blobs[2].names.key, "r00000-0002");
    }

    #[test]
    fn names_in_a_blob_never_meet() {
        let spec = spec(vec![
            tensor("w", Role::Param, Dtype::F32, &[4], &[(&[0], &[2], 0), (&[2], &[2], 0)]),
            tensor("w", Role::Other, Dtype::F32, &[2], &[(&[0], &[2], 0)]),
            tensor("w[0..2]", Role::Param, Dtype::F32, &[2], &[(&[0], &[2], 0)]),
            tensor("__metadata__", Role::Param, Dtype::F8E8M0, &[2], &[(&[0], &[2], 0)]),
            tensor(
                "hollow",
                Role::Param,
                Dtype::F32,
                &[0, 3],
                &[(&[0, 0], &[0, 3], 0), (&[0, 0], &[0, 3], 1)],
            ),
        ]);
        let blobs = blobs(&spec, |_, _| true, Heads::Bytes).unwrap();
        let len = usize::try_from(u64::from_le_bytes(blobs[0].head[..8].try_into().unwrap())).unwrap();
        let json: Map<String, Value> = serde_json::from_slice(&blobs[0].head[8..8 + len]).unwrap();
        let mut names: Vec<&str> = json.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["__metadata__", "__metadata__#2", "hollow", "w", "w[0..2]", "w[0..2]#2", "w[2..4]"]
        );
        assert_eq!(blobs.len(), 1, "an empty tensor is written once");
        let told: Value = serde_json::from_str(json["__metadata__"]["ckpt"].as_str().unwrap()).unwrap();
        assert_eq!(told["chunks"]["w[2..4]"]["offsets"], json!([2]));
        assert_eq!(told["chunks"]["__metadata__#2"]["dtype"], json!("f8_e8m0"));
    }
}
