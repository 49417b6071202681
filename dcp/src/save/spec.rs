//! [`SaveSpec`]: what a checkpoint shall hold, and as what it shall be committed.

use std::num::NonZeroU64;

use fqn::Registry;
use reshard::{Mesh, StageSplit};
use serde_json::{Map, Value};

use super::Sharing;
use crate::{
    ObjectEntry, Result,
    codec::Codecs,
    commit::{Label, Metrics, Seq},
    rank_state::RankScheme,
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

impl SaveSpec {
    /// A checkpoint without objects, for whatever incarnation there is.
    #[must_use]
    pub fn new(run: Label, registry: Registry, mesh: Mesh, step: u64) -> Self {
        Self {
            run,
            registry,
            mesh,
            split: StageSplit::default(),
            objects: Vec::new(),
            step,
            extra: Map::new(),
            codecs: Codecs::NONE,
            epoch: None,
            parent: None,
            replicas: Replicas::Off,
            metrics: Metrics::new(),
            sharing: None,
            salt: String::new(),
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

    /// Records what becomes of objects that every data rank has of its own ([`crate::ReshardRule::PerDataRank`]) when their number
    /// changes: whoever reshards the checkpoint then need not say it.
    ///
    /// # Errors
    /// None in practice: every scheme has a JSON form.
    pub fn with_rank_state(mut self, scheme: RankScheme) -> Result<Self> {
        crate::rank_state::record(scheme, &mut self.extra)?;
        Ok(self)
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
    pub(super) fn is_due(self, step: u64, tensor: u64, nth: u64) -> bool {
        let Self::OneIn(count) = self else { return false };
        // Splitmix64, so that no interval between steps leaves a box out for good.
        let mut z = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (tensor << 24) ^ nth;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).is_multiple_of(count.get())
    }
}
