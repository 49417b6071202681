//! Geometry of sharded tensors. Pure: no I/O, no async, no clock.
//!
//! Everything is a [`Region`]: a box in *global tensor coordinates*. Ranks and meshes only decide which regions
//! there are.
#![forbid(unsafe_code)]

pub mod flat;
pub mod layout;
pub mod mesh;
mod region;

pub use layout::{
    Divisibility, DivisibilityError, Layout, LayoutError, Owners, Shard, StageError, StageSplit, Stages,
    TensorLayout, check_divisibility,
};
pub use mesh::{Mesh, MeshError};
pub use region::{Region, RegionError};
