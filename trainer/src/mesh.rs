//! Where a rank stands: its coordinates on `dp`, `pp` and `tp`, and the groups that follow from them.
//!
//! Invariants: ranks are row-major over (dp, pp, tp), the last axis fastest, as everywhere in the suite; the members of
//! a group are in ascending order of their coordinate on the group's axis.

mod data;

use std::fmt;

use reshard::Mesh;

pub use data::DataSplit;

use crate::{Error, Result};

/// Sizes of the three axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeshShape {
    /// Data-parallel ranks, each with data of its own; [`DataSplit`] says how they share out the weights.
    pub dp: usize,
    /// Pipeline ranks.
    pub pp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
}

/// A rank's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// On the data-parallel axis.
    pub dp: usize,
    /// On the pipeline axis.
    pub pp: usize,
    /// On the tensor-parallel axis.
    pub tp: usize,
}

/// An axis of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Data parallel.
    Dp,
    /// Pipeline.
    Pp,
    /// Tensor parallel.
    Tp,
}

impl MeshShape {
    /// Number of ranks.
    #[must_use]
    pub const fn ranks(self) -> usize {
        self.dp * self.pp * self.tp
    }

    /// The place of `rank`.
    ///
    /// # Errors
    /// `Config` for a rank outside.
    pub fn coordinates(self, rank: usize) -> Result<Coordinates> {
        if rank >= self.ranks() {
            return Err(Error::config(format!(
                "rank {rank} is not on mesh {self}, which has {} ranks",
                self.ranks()
            )));
        }
        Ok(Coordinates { dp: rank / (self.pp * self.tp), pp: rank / self.tp % self.pp, tp: rank % self.tp })
    }

    /// The rank at a place.
    #[must_use]
    pub const fn rank(self, at: Coordinates) -> usize {
        (at.dp * self.pp + at.pp) * self.tp + at.tp
    }

    /// The ranks that differ from `at` on `axis` only, in order of that coordinate.
    #[must_use]
    pub fn group(self, at: Coordinates, axis: Axis) -> Vec<usize> {
        let place = |index| match axis {
            Axis::Dp => Coordinates { dp: index, ..at },
            Axis::Pp => Coordinates { pp: index, ..at },
            Axis::Tp => Coordinates { tp: index, ..at },
        };
        (0..self.size(axis)).map(|index| self.rank(place(index))).collect()
    }

    /// Size of an axis.
    #[must_use]
    pub const fn size(self, axis: Axis) -> usize {
        match axis {
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
            Axis::Tp => self.tp,
        }
    }

    /// As the geometry crate has it.
    ///
    /// # Errors
    /// `Config` for an axis of size 0 or a product that overflows.
    pub fn mesh(self) -> Result<Mesh> {
        self.to_string().parse().map_err(|error| Error::config(format!("mesh {self}: {error}")))
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.dp, self.pp, self.tp)
    }
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp{} pp{} tp{}", self.dp, self.pp, self.tp)
    }
}

/// Reads `2x2x1` or `dp=2,pp=2,tp=1`; axes that are not named have size 1, others are refused.
impl std::str::FromStr for MeshShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mesh: Mesh = text.parse().map_err(|error| Error::config(format!("mesh {text:?}: {error}")))?;
        if let Some((axis, _)) =
            mesh.axes().iter().find(|(axis, _)| !["dp", "pp", "tp"].contains(&axis.as_str()))
        {
            return Err(Error::config(format!("mesh {text:?}: the trainer has no axis {axis}"))
                .hint("its axes are dp, pp and tp"));
        }
        let size =
            |name| usize::try_from(mesh.axis(name).unwrap_or(1)).map_err(|_| Error::config("mesh too large"));
        Ok(Self { dp: size("dp")?, pp: size("pp")?, tp: size("tp")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_differ_on_their_axis_alone() {
        let mesh: MeshShape = "4x2x8".parse().unwrap();
        let at = mesh.coordinates(27).unwrap();
        assert_eq!((at.dp, at.pp, at.tp), (1, 1, 3));
        assert_eq!(mesh.rank(at), 27);
        assert_eq!(mesh.group(at, Axis::Dp), [11, 27, 43, 59]);
        assert_eq!(mesh.group(at, Axis::Pp), [19, 27]);
        assert_eq!(mesh.group(at, Axis::Tp), (24..32).collect::<Vec<_>>());
        assert!(mesh.coordinates(64).is_err());
    }

    #[test]
    fn axes_that_the_trainer_lacks_are_refused() {
        assert_eq!("tp=2,dp=3".parse::<MeshShape>().unwrap().to_string(), "3x1x2");
        assert!("dp=2,ep=2".parse::<MeshShape>().unwrap_err().to_string().contains("no axis ep"));
    }
}
