//! Geometry of sharded tensors. Pure: no I/O, no async, no clock.
//!
//! Everything is a [`Region`]: a box in *global tensor coordinates*. Ranks and meshes only decide which regions
//! there are, so that going from one mesh to another is copying between boxes:
//!
//! ```text
//!  fqn::PlacementRule ─┐                      ┌─ source chunks (any mesh, any format)
//!  Mesh ───────────────┼─► Layout ─► regions ─┤                         ┌─► Plan, Cost (shown first)
//!  StageSplit ─────────┘             of ranks └─► Moves (intersections) ─┤
//!                                      │                                 └─► copy (bytes)
//!         flat ranges ─► boxes ────────┴──► coverage: tiles exactly, or names the gap or the overlap
//! ```
//!
//! Invariants:
//! - shards of a layout tile their tensor exactly, whatever the mesh, the rule and the unevenness;
//! - going over any meshes in between gives the bytes that going directly gives;
//! - nothing here trusts a number: shapes, offsets and meshes may come from hostile files.
//!
//! ```
//! use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
//! use reshard::{Layout, Mesh, Moves, StageSplit};
//!
//! let mut entry = Entry::new(Fqn::new("w")?, Role::Param, Dtype::F32, Shape::new(&[10, 4]));
//! entry.placement = Some("tp:0,dp:0".parse()?); // rows over tp first, each part over dp
//! let mut registry = Registry::new();
//! registry.push(entry)?;
//! let regions = |mesh: &str| -> Result<Vec<_>, Box<dyn std::error::Error>> {
//!     let layout = Layout::new(&registry, &mesh.parse::<Mesh>()?, &StageSplit::Auto)?;
//!     Ok(layout.shards(0).map(|(shard, _)| shard.region).collect())
//! };
//! let (before, after) = (regions("2x2")?, regions("3")?);
//! assert_eq!(before.iter().map(ToString::to_string).collect::<Vec<_>>(),
//!     ["[0..3, 0..4]", "[3..5, 0..4]", "[5..8, 0..4]", "[8..10, 0..4]"]);
//! let moves = Moves::new(&before).of(&after[1])?;
//! assert_eq!(moves.iter().map(|part| (part.source, part.region.to_string())).collect::<Vec<_>>(),
//!     [(1, "[4..5, 0..4]".to_owned()), (2, "[5..8, 0..4]".to_owned())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod assembly;
pub mod copy;
pub mod coverage;
pub mod flat;
pub mod layout;
pub mod mesh;
mod moves;
pub mod plan;
mod region;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;

pub use assembly::{Assembly, AssemblyError, AssemblyPart, Strand};
pub use copy::{CopyError, Strided, copy_region};
pub use coverage::{CoverageError, Index};
pub use layout::{
    Divisibility, DivisibilityError, Layout, LayoutError, LayoutRank, Local, LocalPiece, Owners, Shard,
    StageError, StageSplit, Stages, TensorLayout, check_divisibility,
};
pub use mesh::{Mesh, MeshError};
pub use moves::{Move, MoveError, Moves};
pub use plan::{Cost, Plan, PlanError};
pub use region::{Region, RegionError};
