//! Staging: the shards' bytes, copied while the lease is held, written when it is not.
//!
//! Invariants: buffers are used again from save to save; a staged box is exactly one of the plan's.

use std::collections::HashMap;

use dcp::save::SavePlan;
use fqn::TensorId;
use reshard::Region;
use tch::{Kind, Tensor};

use crate::{Error, Result, fsdp::StateTensor};

/// What a rank has to do with a box of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// It writes it.
    Writes,
    /// Another rank writes it; the copies must be the same.
    Holds,
}

/// The boxes of one rank, copied.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// What to do with it, position in the plan, box; as many as buffers are in use.
    boxes: Vec<(Part, usize, Region)>,
    buffers: Vec<Vec<u8>>,
}

impl Staged {
    /// Copies what `rank` writes by `plan`, and what it has copies of.
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
        let writes = plan.boxes_of(rank).map(|(tensor, region)| (Part::Writes, tensor, region.clone()));
        let holds = plan.replicas_of(rank).map(|(tensor, region)| (Part::Holds, tensor, region));
        for (part, tensor, region) in writes.chain(holds) {
            let entry = plan.tensor(tensor).ok_or_else(|| Error::internal("a box of no tensor"))?;
            let id = entry.id();
            let found = held.get(&(&id, &region)).ok_or_else(|| {
                Error::internal(format!("rank {rank} is to save {id}{region}, which it does not hold"))
            })?;
            copy(found, &region, self.buffer()?)?;
            self.boxes.push((part, tensor, region));
        }
        Ok(())
    }

    /// The buffer of the next box: that of an earlier save, where there is one.
    fn buffer(&mut self) -> Result<&mut Vec<u8>> {
        let at = self.boxes.len();
        if self.buffers.len() <= at {
            self.buffers.push(Vec::new());
        }
        self.buffers.get_mut(at).ok_or_else(|| Error::internal("a box without a buffer"))
    }

    /// What was staged: what to do with it, position in the plan, box, bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Part, usize, &Region, &[u8])> {
        let bytes = self.buffers.iter().map(Vec::as_slice);
        self.boxes.iter().zip(bytes).map(|((part, tensor, region), bytes)| (*part, *tensor, region, bytes))
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
