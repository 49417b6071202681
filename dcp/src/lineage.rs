//! [`Lineage`]: what tensors of a catalog were recorded as, where a source shows them otherwise: stacked, or taken out of a
//! stack. By it the engine proves them: it adds up what it copies in the coordinates of the recorded tensors too, and compares
//! with their fingerprints.
//!
//! Invariant: an assembly's sources are positions among the recorded tensors, and its boxes lie within their shapes.

use fqn::{Dtype, Shape, TensorId};
use reshard::{Assembly, AssemblyPart};
use serde::Serialize;

use crate::fingerprint::Fingerprint;

/// What tensors of a catalog were recorded as.
#[derive(Debug, Clone, Default)]
pub struct Lineage {
    recorded: Vec<Recorded>,
    /// Parallel to the catalog's tensors, or empty; `None` for a tensor that is shown as it was recorded.
    of: Vec<Option<Assembly>>,
}

/// A tensor as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Its name.
    pub id: TensorId,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// Its fingerprint, where the format keeps one.
    pub fingerprint: Option<Fingerprint>,
}

impl Lineage {
    /// Of a catalog whose tensors are made so of these.
    pub(crate) const fn new(recorded: Vec<Recorded>, of: Vec<Option<Assembly>>) -> Self {
        Self { recorded, of }
    }

    /// The tensors as they were recorded, without those that are shown so.
    #[must_use]
    pub fn recorded(&self) -> &[Recorded] {
        &self.recorded
    }

    /// What the tensor at a position of the catalog is made of; `None` where it is shown as it was recorded.
    #[must_use]
    pub fn of(&self, tensor: usize) -> Option<&Assembly> {
        self.of.get(tensor)?.as_ref()
    }

    /// Whether all that a tensor is made of has a fingerprint to compare with.
    #[must_use]
    pub fn is_proven(&self, tensor: usize) -> bool {
        let known =
            |part: &AssemblyPart| self.recorded.get(part.source).is_some_and(|it| it.fingerprint.is_some());
        self.of(tensor).is_some_and(|made| made.parts().iter().all(known))
    }

    /// The recorded tensor that this one lies in row by row between others, and how many as large lie there: whoever reads one
    /// has their bytes at hand too.
    pub(crate) fn abreast(&self, tensor: usize) -> Option<(usize, u64)> {
        let [AssemblyPart { source, from, .. }] = self.of(tensor)?.parts() else { return None };
        let shape = &self.recorded.get(*source)?.shape;
        let cut = from.extents().iter().zip(shape.iter()).position(|(part, whole)| part != whole)?;
        let rows: u64 = from.extents().iter().take(cut).product();
        let many = shape.elements()?.checked_div(from.elements())?;
        (rows > 1).then_some((*source, many))
    }
}
