//! [`SavePlan`]: who writes which box of a checkpoint. Pure: the same spec gives the same plan on every rank.

use std::{collections::BTreeMap, num::NonZeroU64, sync::Arc};

use fqn::{Entry, Registry};
use reshard::{Layout, Mesh, Region, StageSplit};
use serde_json::{Map, Value, json};

use super::Sharing;
use crate::{
    Error, ObjectEntry, PathPart, Result, TargetSpec, TargetTensor,
    codec::Codecs,
    commit::{Label, MOST_METRICS, Metrics, Seq},
    cores,
    digest::{Sha256Digest, Sha256Hasher},
    engine::grid::Grid,
};

/// What a checkpoint shall hold, and as what it shall be committed. Every rank must give the same.
#[derive(Debug, Clone)]
pub struct SaveSpec {
    /// The run that it belongs to.
    pub run: Label,
    /// All tensors of the run, with dtype, global shape and placement rule. Names that are one tensor in memory have one
    /// entry, the others as its aliases: what is listed twice is stored twice.
    pub registry: Registry,
    /// The mesh that the ranks are on.
    pub mesh: Mesh,
    /// How layers are split over `pp`.
    pub split: StageSplit,
    /// Non-tensor state, the same on every rank.
    pub objects: Vec<ObjectEntry>,
    /// The training step.
    pub step: u64,
    /// Facts to keep, see [`crate::Catalog::extra`].
    pub extra: Map<String, Value>,
    /// Which roles are stored compressed.
    pub codecs: Codecs,
    /// The incarnation of the run (see [`super::begin_epoch`]); none for what nobody else may take over.
    pub epoch: Option<u64>,
    /// The checkpoint that this incarnation went on from, for the first that it commits; later ones follow its own. None for
    /// the run's newest.
    pub parent: Option<Seq>,
    /// How far ranks that hold the same box are compared.
    pub replicas: Replicas,
    /// What was measured: retention can choose by it. The plan's digest does not cover it; those of the rank that commits count.
    pub metrics: Metrics,
    /// What may refer to an earlier checkpoint instead of being written again; nothing by default.
    pub sharing: Option<Sharing>,
    /// Tells attempts at one step apart: after a failure that leaves it open what the disk holds, the next one needs another.
    pub salt: String,
}

/// How far ranks that hold the same box are compared: those that do not write it hand in its fingerprint, and a commit refuses what
/// has drifted apart. It costs a pass over those boxes at the speed of fingerprints, and no writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub enum Replicas {
    /// Not at all: the bytes of the one writer are taken.
    #[default]
    Off,
    /// One box in so many, others at other steps.
    OneIn(NonZeroU64),
}

impl Replicas {
    /// Every box.
    pub const ALL: Self = Self::OneIn(NonZeroU64::MIN);

    /// Whether a box's turn is at this step.
    fn is_due(self, step: u64, tensor: u64, nth: u64) -> bool {
        let Self::OneIn(count) = self else { return false };
        // Splitmix64, so that no interval between steps leaves a box out for good.
        let mut z = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (tensor << 24) ^ nth;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).is_multiple_of(count.get())
    }
}

/// Who writes which box. Clones share it.
#[derive(Debug, Clone)]
pub struct SavePlan(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    spec: Arc<TargetSpec>,
    run: Label,
    epoch: Option<u64>,
    parent: Option<Seq>,
    metrics: Metrics,
    digest: Sha256Digest,
    layout: Layout,
    replicas: Replicas,
    sharing: Option<Sharing>,
    ranks: u32,
    /// Positions of tensors and of their regions, by rank.
    boxes: Vec<Vec<(u32, u32)>>,
}

impl SaveSpec {
    /// A checkpoint without objects, for whatever incarnation there is.
    #[must_use]
    pub fn new(run: Label, registry: Registry, mesh: Mesh, step: u64) -> Self {
        let (objects, extra) = (Vec::new(), Map::new());
        let (split, epoch, parent, salt) = (StageSplit::default(), None, None, String::new());
        let (replicas, codecs, metrics, sharing) = (Replicas::Off, Codecs::NONE, Metrics::new(), None);
        Self {
            run,
            registry,
            mesh,
            split,
            objects,
            step,
            extra,
            codecs,
            epoch,
            parent,
            replicas,
            metrics,
            sharing,
            salt,
        }
    }

    /// Ties it to an incarnation of the run.
    #[must_use]
    pub const fn in_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// Adds non-tensor state.
    #[must_use]
    pub fn with_objects(mut self, objects: Vec<ObjectEntry>) -> Self {
        self.objects = objects;
        self
    }

    /// Sets what was measured.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Sets how far ranks that hold the same box are compared.
    #[must_use]
    pub const fn comparing(mut self, replicas: Replicas) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets which roles are stored compressed.
    #[must_use]
    pub fn coded(mut self, codecs: Codecs) -> Self {
        self.codecs = codecs;
        self
    }

    /// Lets unchanged tensors refer to an earlier checkpoint.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = Some(sharing);
        self
    }

    /// Sets what tells attempts at one step apart.
    #[must_use]
    pub fn salted(mut self, salt: impl Into<String>) -> Self {
        self.salt = salt.into();
        self
    }
}

impl SavePlan {
    /// Lays the tensors out on the mesh, and picks one writer for each box: of those that hold it the one with least to write.
    ///
    /// # Errors
    /// `Incompatible` for a tensor without a placement rule or with one that does not fit it, layers that do not split, and
    /// boxes of elements narrower than a byte that cut through one; for more metrics than a checkpoint may have.
    pub fn new(spec: SaveSpec) -> Result<Self> {
        if spec.metrics.len() > MOST_METRICS {
            let text = format!("{} metrics, and a checkpoint may have {MOST_METRICS}", spec.metrics.len());
            return Err(Error::incompatible(text).hint("keep the others beside it, or in `extra`"));
        }
        let layout = Layout::new(&spec.registry, &spec.mesh, &spec.split)
            .map_err(|error| Error::incompatible(error.to_string()).caused_by(error))?;
        let ranks = u32::try_from(spec.mesh.ranks())
            .map_err(|_| Error::incompatible(format!("a mesh of {} ranks", spec.mesh.ranks())))?;
        let entries = spec.registry.entries();
        let tensors = cores::try_map(entries.len(), |at| {
            let entry = entries.get(at).ok_or_else(|| Error::internal("a tensor that is not there"))?;
            laid_out(entry, &layout, at)
        })?;
        let digest = digest(&spec, &tensors)?;
        let boxes = boxes(&tensors, ranks);
        let SaveSpec {
            run,
            mesh,
            split,
            objects,
            step,
            extra,
            codecs,
            epoch,
            parent,
            replicas,
            metrics,
            sharing,
            ..
        } = spec;
        let spec = TargetSpec {
            tensors,
            objects,
            step: Some(step),
            mesh: Some(mesh),
            split: Some(split),
            plan_digest: digest.to_string(),
            extra,
            codecs,
        };
        let spec = Arc::new(spec);
        Ok(Self(Arc::new(Inner {
            spec,
            run,
            epoch,
            parent,
            metrics,
            digest,
            layout,
            replicas,
            sharing,
            ranks,
            boxes,
        })))
    }

    /// Digest of everything that it depends on. Ranks whose digests differ do not write the same checkpoint: compare them where
    /// that is cheap, and the mistake is known before anything is written.
    #[must_use]
    pub fn digest(&self) -> Sha256Digest {
        self.0.digest
    }

    /// The tensors, in the registry's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.0.spec.tensors.iter().map(|tensor| &tensor.entry)
    }

    /// A tensor by its position in the registry.
    #[must_use]
    pub fn tensor(&self, at: usize) -> Option<&Entry> {
        self.0.spec.tensors.get(at).map(|tensor| &tensor.entry)
    }

    /// The boxes that a rank writes: position of the tensor, and the box in its global coordinates. In the registry's order.
    pub fn boxes_of(&self, rank: u32) -> impl Iterator<Item = (usize, &Region)> {
        let boxes = usize::try_from(rank).ok().and_then(|rank| self.0.boxes.get(rank));
        boxes.into_iter().flatten().filter_map(|&(tensor, region)| {
            let at = usize::try_from(tensor).ok()?;
            let (region, _) = self.0.spec.tensors.get(at)?.regions.get(usize::try_from(region).ok()?)?;
            Some((at, region))
        })
    }

    /// The boxes that a rank holds and another writes, as far as they are compared at this step: see [`Replicas`].
    pub fn replicas_of(&self, rank: u32) -> impl Iterator<Item = (usize, Region)> {
        let (layout, replicas, step) = (&self.0.layout, self.0.replicas, self.step());
        let tensors = if replicas == Replicas::Off { 0 } else { self.0.spec.tensors.len() };
        (0..tensors).flat_map(move |tensor| {
            let shards = layout.shards(tensor).zip(0_u64..);
            let held = shards.filter(move |((shard, writer), nth)| {
                *writer != u64::from(rank)
                    && shard.owners.contains(u64::from(rank))
                    && replicas.is_due(step, tensor as u64, *nth)
            });
            held.map(move |((shard, _), _)| (tensor, shard.region))
        })
    }

    /// What [`Self::replicas_of`] says, of all ranks that have such boxes at once.
    pub(super) fn replicas_by_rank(&self) -> BTreeMap<u32, Vec<(usize, Region)>> {
        let (layout, replicas, step) = (&self.0.layout, self.0.replicas, self.step());
        let tensors = if replicas == Replicas::Off { 0 } else { self.0.spec.tensors.len() };
        let mut held: BTreeMap<u32, Vec<(usize, Region)>> = BTreeMap::new();
        for tensor in 0..tensors {
            let shards = layout.shards(tensor).zip(0_u64..);
            for ((shard, writer), _) in shards.filter(|((shard, _), nth)| {
                shard.owners.len() > 1 && replicas.is_due(step, tensor as u64, *nth)
            }) {
                let others = shard.owners.iter().filter(|rank| *rank != writer);
                for rank in others.filter_map(|rank| u32::try_from(rank).ok()) {
                    held.entry(rank).or_default().push((tensor, shard.region.clone()));
                }
            }
        }
        held
    }

    /// Bytes of the boxes that a rank writes.
    #[must_use]
    pub fn bytes_of(&self, rank: u32) -> u64 {
        let bytes = |(at, region): (usize, &Region)| self.tensor(at)?.dtype.bytes_for(region.elements());
        self.boxes_of(rank).filter_map(bytes).fold(0, u64::saturating_add)
    }

    /// Number of ranks of the mesh. Some may have nothing to write.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.0.ranks
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> &Label {
        &self.0.run
    }

    /// The incarnation of the run.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.0.epoch
    }

    /// The training step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.0.spec.step.unwrap_or(0)
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(super) fn parent(&self) -> Option<Seq> {
        self.0.parent
    }

    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.0.sharing.as_ref()
    }

    pub(super) fn spec(&self) -> Arc<TargetSpec> {
        Arc::clone(&self.0.spec)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared_spec(&self) -> Arc<TargetSpec> {
        self.spec()
    }

    /// The rank that writes a box, for messages.
    pub(super) fn writer_of(&self, tensor: usize, region: &Region) -> Option<u32> {
        let regions = &self.0.spec.tensors.get(tensor)?.regions;
        regions.iter().find(|(it, _)| it == region).map(|(_, rank)| *rank)
    }
}

/// A tensor's boxes, none of which cuts through a byte.
fn laid_out(entry: &Entry, layout: &Layout, at: usize) -> Result<TargetTensor> {
    let tensor = TargetTensor::laid_out(entry.clone(), layout, at)?;
    let grid = Grid::of(entry)?;
    // Boxes of whole bytes can be cut anywhere.
    for (region, _) in tensor.regions.iter().filter(|_| grid.is_packed()) {
        grid.region(region).map_err(|error| error.at(entry.id()))?;
    }
    Ok(tensor)
}

fn boxes(tensors: &[TargetTensor], ranks: u32) -> Vec<Vec<(u32, u32)>> {
    let mut boxes = vec![Vec::new(); usize::try_from(ranks).unwrap_or(0)];
    for (tensor, at) in tensors.iter().zip(0_u32..) {
        for ((region, rank), nth) in tensor.regions.iter().zip(0_u32..).filter(|((it, _), _)| !it.is_empty())
        {
            let of = usize::try_from(*rank).ok().and_then(|rank| boxes.get_mut(rank));
            of.into_iter().for_each(|of| of.push((at, nth)));
            debug_assert!(!region.is_empty());
        }
    }
    boxes
}

/// The digest of everything that a checkpoint's places depend on: what is saved, how it is cut, and which attempt it is.
fn digest(spec: &SaveSpec, tensors: &[TargetTensor]) -> Result<Sha256Digest> {
    let object = |it: &ObjectEntry| {
        let path: Vec<Value> = it.path.iter().map(PathPart::to_json).collect();
        let bytes = Sha256Digest::of(&it.bytes);
        json!([it.key, path, it.encoding, it.reshard, it.preview, bytes])
    };
    let mut head = json!({
        "what": "save plan 2",
        "run": spec.run, "step": spec.step, "epoch": spec.epoch, "parent": spec.parent, "salt": spec.salt,
        "replicas": spec.replicas, "mesh": spec.mesh.to_string(), "split": spec.split, "extra": spec.extra,
        "objects": spec.objects.iter().map(object).collect::<Vec<_>>(),
    });
    if let Some(head) = head.as_object_mut().filter(|_| !spec.codecs.is_none()) {
        head.insert("codecs".to_owned(), json!(spec.codecs));
    }
    // What a plan doesn't ask for is left out, as its codecs are: nothing else could stand there.
    if let (Some(sharing), Some(head)) = (&spec.sharing, head.as_object_mut()) {
        head.insert("sharing".to_owned(), sharing.to_json());
    }
    let mut hasher = Sha256Hasher::new();
    hasher.update(head.to_string().as_bytes());
    let each = cores::try_map(tensors.len(), |at| tensors.get(at).map(digest_of).transpose())?;
    each.into_iter().flatten().for_each(|digest| hasher.update(digest.as_bytes()));
    Ok(hasher.finish())
}

/// The digest of a tensor and its boxes: its entry as JSON, its rank, and for each box its offsets, extents and writer.
fn digest_of(tensor: &TargetTensor) -> Result<Sha256Digest> {
    let mut bytes = serde_json::to_vec(&tensor.entry).map_err(|error| Error::internal(error.to_string()))?;
    bytes.extend(b"\n");
    bytes.extend((tensor.entry.shape.rank() as u64).to_le_bytes());
    for (region, rank) in &tensor.regions {
        let numbers = region.offsets().iter().chain(region.extents()).copied().chain([u64::from(*rank)]);
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    }
    Ok(Sha256Digest::of(&bytes))
}
