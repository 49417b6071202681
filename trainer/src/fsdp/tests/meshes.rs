//! Runs a function on every rank of a mesh of threads, and puts what ranks hold together to whole tensors.

use std::{collections::BTreeMap, sync::Arc};

use fqn::TensorId;
use reshard::{Region, Strided, copy_region};
use tch::{Device, Tensor};

use super::{
    model::Bare,
    threads::{Board, groups},
};
use crate::{
    exact::{Sums, VirtualTp},
    fsdp::{Setup, State, StateTensor, plan},
    init,
    mesh::{Coordinates, DataSplit, MeshShape},
    model::{Init, Model, Param},
    optim::AdamW,
    parallel::{Params, Precision},
};

pub(super) const VIRTUAL_TP: usize = 8;
pub(super) const SEED: u64 = 11;

/// What a test runs with; microbatches are those of all replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) mesh: MeshShape,
    pub(super) sums: Sums,
    pub(super) microbatches: usize,
    pub(super) data: DataSplit,
    pub(super) prefetch: bool,
    pub(super) compute: Precision,
    pub(super) reduce: Precision,
}

/// Weights sharded over all of dp.
pub(super) fn exact(mesh: &str, microbatches: usize) -> Run {
    let mesh: MeshShape = mesh.parse().unwrap();
    let (data, compute, reduce) = (DataSplit::sharded(mesh.dp), Precision::Float32, Precision::Float32);
    Run { mesh, sums: Sums::Exact, microbatches, data, prefetch: false, compute, reduce }
}

/// Weights held `replicate` times.
pub(super) fn replicated(mesh: &str, replicate: usize, microbatches: usize) -> Run {
    let run = exact(mesh, microbatches);
    Run { data: DataSplit { replicate, shard: run.mesh.dp / replicate }, ..run }
}

pub(super) struct Rank {
    pub(super) model: Bare,
    pub(super) state: State,
    pub(super) at: Coordinates,
    pub(super) first_microbatch: usize,
    pub(super) microbatches: usize,
}

impl Run {
    /// `work` on every rank, each on a thread of its own; results by rank.
    pub(super) fn on_each<T: Send>(self, work: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
        let board = Arc::new(Board::default());
        std::thread::scope(|scope| {
            let ranks = (0..self.mesh.ranks()).map(|rank| {
                let (board, work) = (Arc::clone(&board), &work);
                scope.spawn(move || work(&self.rank(&board, rank)))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn rank(self, board: &Arc<Board>, rank: usize) -> Rank {
        let model = Bare::new();
        let at = self.mesh.coordinates(rank).unwrap();
        let microbatches = self.microbatches / self.mesh.dp;
        let setup = Setup {
            model: &model,
            registry: &model.registry(),
            mesh: self.mesh,
            data: self.data,
            at,
            parts: &model.split(self.mesh.pp),
            stages: &model.stages(self.mesh.pp),
            prefetch: self.prefetch,
            virtual_tp: VirtualTp::of(at.tp, self.mesh.tp, VIRTUAL_TP).unwrap(),
            sums: self.sums,
            compute: self.compute,
            reduce: self.reduce,
            microbatches,
            device: Device::Cpu,
            groups: groups(board, self.mesh, self.data, at),
        };
        let state = State::new(&setup).unwrap();
        state.initialise(SEED).unwrap();
        Rank { state, at, first_microbatch: at.dp * microbatches, microbatches, model }
    }
}

impl Rank {
    /// Uses of parameters on this rank.
    pub(super) fn uses(&self) -> Vec<Param> {
        let units = self.state.plan.units.iter();
        let uses = units.flat_map(|unit| {
            let params = self.model.parts()[unit.part].params.iter();
            params.map(|index| Param { part: unit.part, index: *index })
        });
        uses.collect()
    }

    /// The pieces of a parameter, of values that depend on `seed`.
    pub(super) fn pieces(&self, param: Param, seed: u64, init: Init) -> Vec<Tensor> {
        let spec = &self.model.params()[param.index];
        let held = self.state.plan.held(param.index).unwrap();
        let piece = |region: &Region| {
            let values = init::values(seed, &spec.fqn, init, &spec.shape, region).unwrap();
            Tensor::from_slice(&values).reshape(plan::extents(region))
        };
        held.pieces.iter().map(piece).collect()
    }

    /// The gradient of one use for one microbatch of all.
    pub(super) fn gradient(&self, param: Param, step: u64, microbatch: usize) -> Vec<Tensor> {
        let seed = step << 32 | (param.part as u64) << 16 | microbatch as u64;
        self.pieces(param, seed, Init::Normal(3e-3 * (1.0 + microbatch as f64)))
    }

    /// Hands in the gradients of a step; in exact mode last microbatch first on odd ranks: arrival must not matter.
    pub(super) fn backward(&self, step: u64) {
        for nth in 0..self.microbatches {
            let reversed = self.at.tp % 2 == 1 && self.state.sums == Sums::Exact;
            let local = if reversed { self.microbatches - 1 - nth } else { nth };
            for param in self.uses() {
                let pieces = self.gradient(param, step, self.first_microbatch + local);
                self.state.gradient(param, local, pieces).unwrap();
            }
        }
        self.state.plan.units.iter().for_each(|unit| self.state.reduce(unit.part).unwrap());
    }

    /// One step; the norm.
    pub(super) fn train(&self, step: u64) -> f64 {
        self.backward(step);
        let gradients = self.state.gradients().unwrap();
        let norm = self.state.norm(&gradients, Some(1.0)).unwrap();
        let coefficient = crate::fsdp::clip_coefficient(0.05, norm);
        assert!(coefficient < 1.0, "clipping is part of what is tested");
        self.state.update(gradients, &AdamW::default(), 1e-2, coefficient).unwrap();
        norm
    }

    /// What this rank holds, as a checkpoint has it.
    pub(super) fn saved(&self) -> Vec<Saved> {
        self.state.tensors().unwrap().iter().map(Saved::of).collect()
    }
}

/// A state tensor of a rank, out of its memory.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub(super) id: TensorId,
    pub(super) region: Region,
    pub(super) bytes: Vec<u8>,
    pub(super) primary: bool,
}

impl Saved {
    pub(super) fn of(tensor: &StateTensor) -> Self {
        let mut bytes = vec![0; tensor.tensor.numel() * 4];
        tensor.tensor.copy_data_u8(&mut bytes, tensor.tensor.numel());
        let StateTensor { id, region, primary, .. } = tensor;
        Self { id: id.clone(), region: region.clone(), bytes, primary: *primary }
    }
}

/// As many bytes as a region takes.
pub(super) fn room(region: &Region) -> Vec<u8> {
    vec![0; usize::try_from(region.elements()).unwrap() * 4]
}

pub(super) type Whole = BTreeMap<TensorId, Vec<u8>>;

/// Whole tensors from primary copies, which must be disjoint and complete; every other copy must agree.
pub(super) fn assemble(saved: &[Saved]) -> Whole {
    let model = Bare::new();
    let mut whole = Whole::new();
    let mut counts: BTreeMap<TensorId, u64> = BTreeMap::new();
    let shape = |id: &TensorId| {
        let spec = model.params().iter().find(|spec| spec.fqn == id.fqn).unwrap();
        spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap()).collect::<Vec<_>>()
    };
    let region = |id: &TensorId| Region::new(&vec![0; shape(id).len()], &shape(id)).unwrap();
    for one in saved.iter().filter(|one| one.primary) {
        let all = region(&one.id);
        let bytes = whole.entry(one.id.clone()).or_insert_with(|| room(&all));
        copy_region(&one.region, &Strided::row_major(&one.bytes, &one.region), bytes, &all, 4).unwrap();
        *counts.entry(one.id.clone()).or_default() += one.region.elements();
    }
    for (id, count) in counts {
        assert_eq!(count, region(&id).elements(), "primary copies of {id} tile it");
    }
    for one in saved {
        let mut bytes = vec![0; one.bytes.len()];
        let all = region(&one.id);
        copy_region(&one.region, &Strided::row_major(&whole[&one.id], &all), &mut bytes, &one.region, 4)
            .unwrap();
        assert_eq!(bytes, one.bytes, "all copies of {} agree", one.id);
    }
    assert_eq!(whole.len(), 3 * model.params().len());
    whole
}
