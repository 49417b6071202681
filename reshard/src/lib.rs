//! Geometry of sharded tensors. Pure: no I/O, no async, no clock.
//!
//! Everything is a [`Region`]: a box in *global tensor coordinates*. Ranks and meshes only decide which regions
//! there are.
#![forbid(unsafe_code)]

mod region;

pub use region::{Region, RegionError};
