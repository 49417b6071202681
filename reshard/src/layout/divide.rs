//! Refusing meshes that a model doesn't divide over: heads, KV heads, FFN width, vocabulary, experts.
//!
//! Geometry cuts anything, unevenly where it must; a model does not: half a head is no head. What must divide comes in as
//! plain counts, since only names and shapes above this crate know what a head is.

use fqn::AxisName;

use crate::Mesh;

/// Something that must divide over an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divisibility {
    /// What is counted, plural: `KV heads`.
    pub what: String,
    /// How many there are.
    pub count: u64,
    /// The axis that splits them.
    pub axis: AxisName,
    /// The tensors concerned, as a pattern for the message: `layers.*.attention.wk.weight`.
    pub tensors: String,
    /// Whether an uneven split is allowed: then only an empty share is refused.
    pub uneven: bool,
}

/// A mesh that a model doesn't divide over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{count} {what} do not divide over {axis}={extent} ({tensors}); {}", advice(fits))]
pub struct DivisibilityError {
    /// What is counted.
    pub what: String,
    /// How many there are.
    pub count: u64,
    /// The axis.
    pub axis: AxisName,
    /// Its extent.
    pub extent: u64,
    /// The tensors concerned.
    pub tensors: String,
    /// Meshes of as many ranks that satisfy every demand, nearest first.
    pub fits: Vec<Mesh>,
}

/// Most meshes that an error suggests.
const SUGGESTED: usize = 3;

fn advice(fits: &[Mesh]) -> String {
    if fits.is_empty() {
        return "no mesh of as many ranks fits by changing this axis and dp".to_owned();
    }
    format!("meshes that fit: {}", fits.iter().map(Mesh::to_string).collect::<Vec<_>>().join("; "))
}

/// Checks every demand against `mesh`.
///
/// # Errors
/// The first demand that fails, with meshes near by that satisfy all.
pub fn check_divisibility(mesh: &Mesh, demands: &[Divisibility]) -> Result<(), DivisibilityError> {
    let Some(failed) = demands.iter().find(|demand| !demand.holds(mesh)) else { return Ok(()) };
    Err(DivisibilityError {
        what: failed.what.clone(),
        count: failed.count,
        axis: failed.axis.clone(),
        extent: failed.extent(mesh),
        tensors: failed.tensors.clone(),
        fits: nearest(mesh, &failed.axis, demands),
    })
}

impl Divisibility {
    fn extent(&self, mesh: &Mesh) -> u64 {
        mesh.cutting(&self.axis).and_then(|at| mesh.axes().get(at)).map_or(1, |&(_, extent)| extent)
    }

    fn holds(&self, mesh: &Mesh) -> bool {
        let extent = self.extent(mesh);
        if self.uneven { extent <= self.count } else { self.count.is_multiple_of(extent) }
    }
}

/// Meshes of as many ranks with another extent of `axis`, dp making up for it, that meet `demands`.
fn nearest(mesh: &Mesh, axis: &AxisName, demands: &[Divisibility]) -> Vec<Mesh> {
    let Some(at) = mesh.cutting(axis) else { return Vec::new() };
    let dp = ["dp", "dp_shard", "dp_replicate"].iter().find_map(|name| mesh.position(name));
    let (Some(dp), Some(&(_, now))) = (dp.filter(|dp| *dp != at), mesh.axes().get(at)) else {
        return Vec::new();
    };
    let both = now * mesh.axes().get(dp).map_or(1, |&(_, extent)| extent);
    let mut fits: Vec<(u64, Mesh)> = Vec::new();
    for extent in (1..=both).filter(|extent| both.is_multiple_of(*extent)) {
        let mut axes = mesh.axes().to_vec();
        let set = |axes: &mut Vec<(AxisName, u64)>, at: usize, extent| {
            axes.get_mut(at).into_iter().for_each(|pair| pair.1 = extent);
        };
        set(&mut axes, at, extent);
        set(&mut axes, dp, both / extent);
        let fit = Mesh::new(axes).ok().filter(|mesh| demands.iter().all(|demand| demand.holds(mesh)));
        // Nearness is the ratio of extents, in thousandths.
        fits.extend(fit.map(|mesh| (1000 * extent.max(now) / extent.min(now), mesh)));
    }
    fits.sort_by_key(|(ratio, _)| *ratio);
    fits.into_iter().take(SUGGESTED).map(|(_, mesh)| mesh).collect()
}
