//! [`SavePlan`]: who writes which box of a checkpoint. Pure: the same spec gives the same plan on every rank.

use std::{collections::BTreeMap, sync::Arc};

use fqn::Entry;
use reshard::{Layout, Region, Shard};
use serde_json::{Value, json};

use super::{Replicas, SaveSpec, Sharing};
use crate::{
    Error, ObjectEntry, PathPart, Result, TargetSpec, TargetTensor,
    commit::{Label, MOST_METRICS, Metrics, Seq},
    cores,
    digest::{Sha256Digest, Sha256Hasher},
    engine::grid::Grid,
    rank_state,
};

/// Who writes which box. Clones share it.
#[derive(Debug, Clone)]
pub struct SavePlan(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    spec: SaveSpec,
    /// What is written of it.
    target: Arc<TargetSpec>,
    digest: Sha256Digest,
    layout: Layout,
    ranks: u32,
    /// Positions of tensors and of their regions, by rank.
    boxes: Vec<Vec<(u32, u32)>>,
}

impl SavePlan {
    /// Lays the tensors out on the mesh, and picks one writer for each box: of those that hold it the one with least to write.
    ///
    /// # Errors
    /// `Incompatible` for a tensor without a placement rule or with one that does not fit it, layers that do not split, and
    /// boxes of elements narrower than a byte that cut through one; for more metrics than a checkpoint may have; for values of data
    /// ranks that are not of as many as the mesh has.
    pub fn new(spec: SaveSpec) -> Result<Self> {
        if spec.metrics.len() > MOST_METRICS {
            let text = format!("{} metrics, and a checkpoint may have {MOST_METRICS}", spec.metrics.len());
            return Err(Error::incompatible(text).hint("keep the others beside it, or in `extra`"));
        }
        rank_state::must_be_of(&spec.objects, spec.mesh.data_ranks())?;
        let layout = Layout::new(&spec.registry, &spec.mesh, &spec.split)
            .map_err(|error| Error::incompatible(error.to_string()).caused_by(error))?;
        let ranks = u32::try_from(spec.mesh.ranks())
            .map_err(|_| Error::incompatible(format!("a mesh of {} ranks", spec.mesh.ranks())))?;
        let entries = spec.registry.entries();
        let tensors = cores::try_map(entries.len(), |at| {
            let entry = entries.get(at).ok_or_else(|| Error::internal("a tensor that is not there"))?;
            laid_out(entry, &layout, at)
        })?;
        let (boxes, digest) = cores::both(|| boxes(&tensors, ranks), || digest(&spec, &tensors))?;
        let digest = digest?;
        let target = TargetSpec {
            tensors,
            objects: spec.objects.clone(),
            step: Some(spec.step),
            mesh: Some(spec.mesh.clone()),
            split: Some(spec.split.clone()),
            plan_digest: digest.to_string(),
            extra: spec.extra.clone(),
            codecs: spec.codecs.clone(),
        };
        Ok(Self(Arc::new(Inner { spec, target: Arc::new(target), digest, layout, ranks, boxes })))
    }

    /// Digest of everything that it depends on. Ranks whose digests differ do not write the same checkpoint: compare them where
    /// that is cheap, and the mistake is known before anything is written.
    #[must_use]
    pub fn digest(&self) -> Sha256Digest {
        self.0.digest
    }

    /// The tensors, in the registry's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.0.target.tensors.iter().map(|tensor| &tensor.entry)
    }

    /// A tensor by its position in the registry.
    #[must_use]
    pub fn tensor(&self, at: usize) -> Option<&Entry> {
        self.0.target.tensors.get(at).map(|tensor| &tensor.entry)
    }

    /// The boxes that a rank writes: position of the tensor, and the box in its global coordinates. In the registry's order.
    pub fn boxes_of(&self, rank: u32) -> impl Iterator<Item = (usize, &Region)> {
        let boxes = usize::try_from(rank).ok().and_then(|rank| self.0.boxes.get(rank));
        boxes.into_iter().flatten().filter_map(|&(tensor, region)| {
            let at = usize::try_from(tensor).ok()?;
            let (region, _) = self.0.target.tensors.get(at)?.regions.get(usize::try_from(region).ok()?)?;
            Some((at, region))
        })
    }

    /// The boxes that a rank holds and another writes, as far as they are compared at this step: see [`Replicas`].
    pub fn replicas_of(&self, rank: u32) -> impl Iterator<Item = (usize, Region)> {
        let rank = u64::from(rank);
        let held =
            self.compared().filter(move |(_, shard, writer)| *writer != rank && shard.owners.contains(rank));
        held.map(|(tensor, shard, _)| (tensor, shard.region))
    }

    /// What [`Self::replicas_of`] says, of all ranks that have such boxes at once.
    pub(super) fn replicas_by_rank(&self) -> BTreeMap<u32, Vec<(usize, Region)>> {
        let mut held: BTreeMap<u32, Vec<(usize, Region)>> = BTreeMap::new();
        for (tensor, shard, writer) in self.compared() {
            let others = shard.owners.iter().filter(|rank| *rank != writer);
            for rank in others.filter_map(|rank| u32::try_from(rank).ok()) {
                held.entry(rank).or_default().push((tensor, shard.region.clone()));
            }
        }
        held
    }

    /// The boxes that several ranks hold and that are compared at this step, each with its tensor and its writer.
    fn compared(&self) -> impl Iterator<Item = (usize, Shard, u64)> {
        let (layout, replicas, step) = (&self.0.layout, self.0.spec.replicas, self.step());
        let tensors = if replicas == Replicas::Off { 0 } else { self.0.target.tensors.len() };
        (0..tensors).flat_map(move |tensor| {
            let shards = layout.shards(tensor).zip(0_u64..);
            let due = shards.filter(move |((shard, _), nth)| {
                shard.owners.len() > 1 && replicas.is_due(step, tensor as u64, *nth)
            });
            due.map(move |((shard, writer), _)| (tensor, shard, writer))
        })
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
        &self.0.spec.run
    }

    /// The incarnation of the run.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.0.spec.epoch
    }

    /// The training step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.0.spec.step
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.spec.metrics
    }

    pub(super) fn parent(&self) -> Option<Seq> {
        self.0.spec.parent
    }

    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.0.spec.sharing.as_ref()
    }

    pub(super) fn spec(&self) -> Arc<TargetSpec> {
        Arc::clone(&self.0.target)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared_spec(&self) -> Arc<TargetSpec> {
        self.spec()
    }

    /// The rank that writes a box, for messages.
    pub(super) fn writer_of(&self, tensor: usize, region: &Region) -> Option<u32> {
        let regions = &self.0.target.tensors.get(tensor)?.regions;
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
        for ((_, rank), nth) in tensor.regions.iter().zip(0_u32..).filter(|((it, _), _)| !it.is_empty()) {
            let of = usize::try_from(*rank).ok().and_then(|rank| boxes.get_mut(rank));
            of.into_iter().for_each(|of| of.push((at, nth)));
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
