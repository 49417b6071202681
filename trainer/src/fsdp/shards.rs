//! [`Shards`]: the flat buffers of one part, and [`StateTensor`]: views of them by name.
//!
//! Invariants: buffers are f32, one-dimensional, and zero wherever no element lies.

use fqn::{Role, TensorId};
use reshard::Region;
use tch::{Device, Kind, Tensor};

use super::plan::{Held, Plan, Slot, Unit, elements, extents};
use crate::{Error, Result};

/// A tensor of the state, as a checkpoint knows it.
#[derive(Debug)]
pub struct StateTensor {
    /// What it is.
    pub id: TensorId,
    /// Where it lies in the whole tensor; may be empty.
    pub region: Region,
    /// Its elements, shaped like the region, contiguous: the rank's memory itself.
    pub tensor: Tensor,
    /// Whether this copy is the one to be stored, of those on several tensor-parallel ranks, replicas or stages.
    pub primary: bool,
}

/// Weights and moments of what a unit keeps.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) param: Tensor,
    pub(super) exp_avg: Tensor,
    pub(super) exp_avg_sq: Tensor,
}

/// A kept parameter: its unit's buffers, its place, its box.
pub(super) struct Kept<'a> {
    pub(super) shards: &'a Shards,
    pub(super) held: &'a Held,
    pub(super) offset: i64,
    pub(super) region: &'a Region,
}

impl Shards {
    pub(super) fn new(unit: &Unit, device: Device) -> Result<Self> {
        let zeros = || Tensor::f_zeros([unit.kept], (Kind::Float, device));
        Ok(Self { param: zeros()?, exp_avg: zeros()?, exp_avg_sq: zeros()? })
    }

    pub(super) fn buffer(&self, role: &Role) -> Option<&Tensor> {
        match role {
            Role::Param => Some(&self.param),
            Role::ExpAvg => Some(&self.exp_avg),
            Role::ExpAvgSq => Some(&self.exp_avg_sq),
            _ => None,
        }
    }
}

/// The slot's elements in a member's flat buffer, shaped.
pub(super) fn view(flat: &Tensor, plan: &Plan, slot: &Slot, member: usize) -> Result<Tensor> {
    let held = plan.of(slot)?;
    let place = slot.offsets.get(member).zip(held.regions.get(member));
    let (offset, region) =
        place.ok_or_else(|| Error::internal(format!("{} has no shard {member}", held.spec.fqn)))?;
    Ok(flat.f_narrow(0, *offset, elements(region))?.f_view(extents(region).as_slice())?)
}

/// The part of `tensor`, which is `held`, that is `what`.
pub(super) fn part(tensor: &Tensor, held: &Region, what: &Region) -> Result<Tensor> {
    let inner = what.relative_to(held);
    let inner = inner.ok_or_else(|| Error::internal(format!("{what} does not lie in {held}")))?;
    let mut found = tensor.shallow_clone();
    for (dim, (offset, length)) in (0..).zip(inner.offsets().iter().zip(extents(&inner))) {
        let offset = i64::try_from(*offset).map_err(|_| Error::internal("an offset beyond 63 bits"))?;
        found = found.f_narrow(dim, offset, length)?;
    }
    Ok(found)
}

impl Kept<'_> {
    /// The elements of a role.
    pub(super) fn tensor(&self, role: &Role) -> Result<Tensor> {
        let misfit = || Error::internal(format!("{} has no {role}", self.held.spec.fqn));
        let buffer = self.shards.buffer(role).ok_or_else(misfit)?;
        Ok(buffer.f_narrow(0, self.offset, elements(self.region))?.f_view(extents(self.region).as_slice())?)
    }

    pub(super) fn state(&self) -> Result<Vec<StateTensor>> {
        let one = |role: Role| {
            Ok(StateTensor {
                tensor: self.tensor(&role)?,
                id: TensorId { fqn: self.held.spec.fqn.clone(), role },
                region: self.region.clone(),
                primary: self.held.primary,
            })
        };
        [Role::Param, Role::ExpAvg, Role::ExpAvgSq].into_iter().map(one).collect()
    }

    /// Puts the row-major f32 `bytes` of `region`, which lies in the shard.
    pub(super) fn load(&self, role: &Role, region: &Region, bytes: &[u8]) -> Result<()> {
        let name = &self.held.spec.fqn;
        let expected = usize::try_from(region.elements().saturating_mul(4)).unwrap_or(usize::MAX);
        if bytes.len() != expected {
            return Err(Error::internal(format!(
                "{} bytes for {region} of {name}, which takes {expected}",
                bytes.len()
            )));
        }
        if region.is_empty() {
            return Ok(());
        }
        let source = Tensor::f_from_data_size(bytes, &extents(region), Kind::Float)?;
        let tensor = self.tensor(role)?;
        part(&tensor, self.region, region).map_err(|error| error.at(name))?.f_copy_(&source)?;
        Ok(())
    }
}
