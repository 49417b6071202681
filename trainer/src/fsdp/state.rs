//! [`State`]: what one rank holds, and the operations on it that are not [`Params`](crate::parallel::Params).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use fqn::{Registry, TensorId};
use reshard::Region;
use tch::{Device, Tensor};

use super::{
    Lease, Live, StateTensor,
    gather::{Ahead, Gathered},
    gradients::{Accumulator, NONE},
    lease::Gate,
    plan::{Held, Plan},
    shards::{Kept, Shards},
};
use crate::{
    Error, Place, Result,
    exact::{Sums, VirtualTp},
    init,
    mesh::{Coordinates, DataSplit, MeshShape},
    model::Model,
    parallel::Precision,
    transport::Group,
};

/// The groups that a rank takes part in.
#[derive(Clone)]
pub struct Groups {
    /// All ranks.
    pub world: Rc<dyn Group>,
    /// Those that hold the other shards of the same weights.
    pub shard: Rc<dyn Group>,
    /// Those that hold the same shards.
    pub replicate: Rc<dyn Group>,
    /// Those that differ on pp alone.
    pub pp: Rc<dyn Group>,
}

/// Everything that decides what a rank holds.
pub struct Setup<'a> {
    /// The model.
    pub model: &'a dyn Model,
    /// Its parameters, with placements.
    pub registry: &'a Registry,
    /// The mesh.
    pub mesh: MeshShape,
    /// How its dp axis shares out the weights.
    pub data: DataSplit,
    /// This rank's place.
    pub at: Coordinates,
    /// The parts that each pipeline rank runs, ascending; each part of the model once.
    pub parts: &'a [Vec<usize>],
    /// The parts of each stage, wherever it runs: what one pass goes through.
    pub stages: &'a [Range<usize>],
    /// Whether the gather of a part is begun while the one before it is computed.
    pub prefetch: bool,
    /// The virtual tensor-parallel ranks that this rank plays.
    pub virtual_tp: VirtualTp,
    /// How sums are made.
    pub sums: Sums,
    /// What weights are gathered in, and products computed on.
    pub compute: Precision,
    /// What gradients are exchanged in; they are summed in f32.
    pub reduce: Precision,
    /// Microbatches of one replica in a step.
    pub microbatches: usize,
    /// Where shards lie.
    pub device: Device,
    /// The groups.
    pub groups: Groups,
}

/// The shards of one rank, and what is gathered and summed of them at the moment.
pub struct State {
    pub(super) plan: Plan,
    pub(super) shards: Vec<Shards>,
    pub(super) gathered: RefCell<Vec<Gathered>>,
    /// The gather that is under way.
    pub(super) ahead: RefCell<Option<Ahead>>,
    pub(super) stages: Vec<Range<usize>>,
    pub(super) prefetch: bool,
    /// By part of the model, whether its backward asks for weights.
    pub(super) backward_needs: Vec<bool>,
    pub(super) live: Cell<Live>,
    pub(super) accumulators: RefCell<BTreeMap<(usize, usize), Accumulator>>,
    /// Reduced gradients by part, in the layout of this rank's flat buffer.
    pub(super) reduced: RefCell<BTreeMap<usize, Tensor>>,
    /// See [`Gradients::suspect`](super::Gradients); of what was reduced so far.
    pub(super) suspect: Cell<u64>,
    pub(super) step: Cell<u64>,
    pub(super) gate: Arc<Gate>,
    pub(super) mesh: MeshShape,
    pub(super) data: DataSplit,
    pub(super) at: Coordinates,
    /// Which of its replica's shards this rank holds.
    pub(super) member: usize,
    pub(super) sums: Sums,
    pub(super) compute: Precision,
    pub(super) reduce_in: Precision,
    pub(super) microbatches: usize,
    pub(super) groups: Groups,
    /// Names of all parameters of the model: what other ranks speak of.
    pub(super) names: Vec<fqn::Fqn>,
}

impl State {
    /// Lays out the shards, all zero.
    ///
    /// # Errors
    /// `Config` for a parameter without a placement that FSDP can follow, or that the virtual ranks cut elsewhere; for
    /// groups or parts that are not the mesh's; in exact mode, for microbatches of a rank or shards of a replica that
    /// are no whole subtree.
    pub fn new(setup: &Setup<'_>) -> Result<Self> {
        check(setup)?;
        let plan = Plan::new(setup)?;
        let shards = plan.units.iter().map(|unit| Shards::new(unit, setup.device)).collect::<Result<_>>()?;
        Ok(Self {
            gathered: RefCell::new(plan.units.iter().map(|_| Gathered::default()).collect()),
            ahead: RefCell::default(),
            stages: setup.stages.to_vec(),
            prefetch: setup.prefetch,
            backward_needs: (0..setup.model.parts().len())
                .map(|part| setup.model.backward_needs_weights(part))
                .collect(),
            live: Cell::default(),
            plan,
            shards,
            accumulators: RefCell::default(),
            reduced: RefCell::default(),
            suspect: Cell::new(NONE),
            step: Cell::new(0),
            gate: Arc::default(),
            mesh: setup.mesh,
            data: setup.data,
            member: setup.data.member(setup.at.dp),
            at: setup.at,
            sums: setup.sums,
            compute: setup.compute,
            reduce_in: setup.reduce,
            microbatches: setup.microbatches,
            groups: setup.groups.clone(),
            names: setup.model.params().iter().map(|spec| spec.fqn.clone()).collect(),
        })
    }

    /// Gives every weight its initial value, a function of (seed, FQN, index), and makes all moments zero.
    ///
    /// # Errors
    /// What libtorch refuses.
    pub fn initialise(&self, seed: u64) -> Result<()> {
        self.gate.wait();
        for held in &self.plan.params {
            let kept = self.kept(held)?;
            let spec = &held.spec;
            let values = init::values(seed, &spec.fqn, spec.init, &spec.shape, kept.region)?;
            let source = Tensor::f_from_slice(&values).place(&spec.fqn)?;
            let mut target = kept.tensor(&fqn::Role::Param)?;
            target.f_copy_(&source.f_view_as(&target)?).place(&spec.fqn)?;
            for role in [fqn::Role::ExpAvg, fqn::Role::ExpAvgSq] {
                let _ = kept.tensor(&role)?.f_zero_()?;
            }
        }
        self.step.set(0);
        Ok(())
    }

    /// Updates that were made so far.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.step.get()
    }

    /// Says how many updates the loaded state has behind it.
    pub fn set_step_count(&self, step: u64) {
        self.step.set(step);
    }

    /// Every state tensor of this rank: weights and both moments, in the model's order. Copies that others hold too are
    /// listed as well.
    ///
    /// # Errors
    /// What libtorch refuses.
    pub fn tensors(&self) -> Result<Vec<StateTensor>> {
        let mut tensors = Vec::new();
        for held in &self.plan.params {
            tensors.extend(self.kept(held)?.state()?);
        }
        Ok(tensors)
    }

    /// Puts the row-major f32 `bytes` of `region` of a state tensor, given in coordinates of the whole tensor.
    ///
    /// # Errors
    /// `Internal` for a tensor that this rank does not hold, a region outside its shard, or bytes of another length.
    pub fn load(&self, id: &TensorId, region: &Region, bytes: &[u8]) -> Result<()> {
        self.gate.wait();
        let held = self.plan.params.iter().find(|held| held.spec.fqn == id.fqn);
        let held = held.ok_or_else(|| Error::internal(format!("{id} is not on {}", self.at)))?;
        self.kept(held)?.load(&id.role, region, bytes)
    }

    /// Lets another thread read the shards as they are now. The next update, load or initialisation waits for its end.
    ///
    /// # Errors
    /// What libtorch refuses.
    pub fn lease(&self) -> Result<Lease> {
        Ok(Lease::new(&self.gate, self.tensors()?, self.step.get()))
    }

    pub(super) fn kept<'a>(&'a self, held: &'a Held) -> Result<Kept<'a>> {
        let (unit, slot) = held.home;
        let place = self.plan.units.get(unit).and_then(|unit| unit.slots.get(slot));
        let offset = place.and_then(|slot| slot.offsets.get(self.member)).copied();
        let found = self.shards.get(unit).zip(offset).zip(held.regions.get(self.member));
        let ((shards, offset), region) =
            found.ok_or_else(|| Error::internal(format!("{} is kept nowhere", held.spec.fqn)))?;
        Ok(Kept { shards, held, offset, region })
    }
}

fn check(setup: &Setup<'_>) -> Result<()> {
    let Setup { mesh, data, at, groups, .. } = setup;
    if data.ranks() != mesh.dp {
        let DataSplit { replicate, shard } = data;
        return Err(Error::config(format!("{replicate} replicas of {shard} shards on dp={}", mesh.dp))
            .hint("dp_replicate x dp_shard = dp must hold"));
    }
    for (name, group, index, size) in [
        ("world", &groups.world, mesh.rank(*at), mesh.ranks()),
        ("shard", &groups.shard, data.member(at.dp), data.shard),
        ("replicate", &groups.replicate, data.replica(at.dp), data.replicate),
        ("pp", &groups.pp, at.pp, mesh.pp),
    ] {
        if group.index() != index || group.size() != size {
            return Err(Error::config(format!(
                "the {name} group is member {} of {}, but {at} of mesh {mesh} is member {index} of {size}",
                group.index(),
                group.size()
            )));
        }
    }
    let mut parts: Vec<usize> = setup.parts.iter().flatten().copied().collect();
    parts.sort_unstable();
    if setup.parts.len() != mesh.pp || !parts.iter().copied().eq(0..setup.model.parts().len()) {
        return Err(Error::config(format!(
            "{} parts on {} pipeline ranks: the {} parts of the model are not each on one of {}",
            parts.len(),
            setup.parts.len(),
            setup.model.parts().len(),
            mesh.pp
        )));
    }
    let exact = setup.sums == Sums::Exact;
    // A rank's share of the tree's leaves must be a whole subtree, unless it has them all.
    if setup.microbatches == 0 || (exact && mesh.dp > 1 && !setup.microbatches.is_power_of_two()) {
        return Err(Error::config(format!("{} microbatches for each dp rank", setup.microbatches))
            .hint("at least one, and in exact mode a power of two: choose another dp or batch size"));
    }
    if exact && setup.reduce != Precision::Float32 {
        return Err(Error::config("gradients exchanged in bf16, in exact mode")
            .hint("what is rounded would depend on where ranks are cut: exchange f32, or use fast mode"));
    }
    if exact && data.replicate > 1 && !data.shard.is_power_of_two() {
        return Err(Error::config(format!("replicas of {} ranks each, in exact mode", data.shard))
            .hint("the ranks of a replica sum a whole subtree if dp_shard is a power of two"));
    }
    Ok(())
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("at", &self.at).field("step", &self.step).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = |group: &Rc<dyn Group>| (group.index(), group.size());
        let data = (place(&self.shard), place(&self.replicate));
        let all = (place(&self.world), data, place(&self.pp));
        f.debug_tuple("Groups").field(&all).finish()
    }
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("mesh", &self.mesh).field("at", &self.at).finish_non_exhaustive()
    }
}
