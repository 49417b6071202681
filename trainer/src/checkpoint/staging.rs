//! Staging: the shards' bytes, copied while the lease is held, written when it is not.
//!
//! Invariants: buffers are used again from save to save; a staged box is exactly one of the plan's.

use std::collections::HashMap;

use dcp::save::SavePlan;
use fqn::TensorId;
use reshard::Region;
use tch::{Kind, Tensor};

use crate::{Error, Result, fsdp::StateTensor};

/// A box of the plan, copied.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Position in the plan, box, place in [`Staging`].
    pub(super) boxes: Vec<(usize, Region)>,
    buffers: Vec<Vec<u8>>,
}

impl Staged {
    /// Copies what `rank` writes by `plan`.
    pub(super) fn fill(
        &mut self,
        plan: &SavePlan,
        rank: u32,
        shards: &[StateTensor],
        extra: &[StateTensor],
    ) -> Result<()> {
        let held: HashMap<(&TensorId, &Region), &Tensor> =
            shards.iter().chain(extra).map(|shard| ((&shard.id, &shard.region), &shard.tensor)).collect();
        self.boxes.clear();
        for (tensor, region) in plan.boxes_of(rank) {
            let entry = plan.tensor(tensor).ok_or_else(|| Error::internal("a box of no tensor"))?;
            let id = entry.id();
            let found = held.get(&(&id, region)).ok_or_else(|| {
                Error::internal(format!("rank {rank} is to save {id}{region}, which it does not hold"))
            })?;
            let at = self.boxes.len();
            if self.buffers.len() <= at {
                self.buffers.push(Vec::new());
            }
            let buffer = self.buffers.get_mut(at).ok_or_else(|| Error::internal("a box without a buffer"))?;
            copy(found, region, buffer)?;
            self.boxes.push((tensor, region.clone()));
        }
        Ok(())
    }

    /// What was staged: position in the plan, box, bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Region, &[u8])> {
        self.boxes
            .iter()
            .zip(&self.buffers)
            .map(|((tensor, region), bytes)| (*tensor, region, bytes.as_slice()))
    }
}

fn copy(tensor: &Tensor, region: &Region, buffer: &mut Vec<u8>) -> Result<()> {
    let elements =
        usize::try_from(region.elements()).map_err(|_| Error::internal("a box larger than memory"))?;
    if tensor.numel() != elements || tensor.kind() != Kind::Float {
        return Err(Error::internal(format!("a shard of {:?} for a box {region}", tensor.size())));
    }
    buffer.resize(elements * 4, 0);
    Ok(tensor.f_contiguous()?.f_copy_data_u8(buffer, elements)?)
}
