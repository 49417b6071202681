//! Plans: what a reshard will do, as plain data that is shown first, stored, and run later by one process or many.
//!
//! `symbolic` is the plan itself, `cost` counts what it takes, `fold` says it in few lines.
mod class;
mod cost;
mod fold;
mod symbolic;
#[cfg(test)]
mod tests;

pub use cost::{Cost, PlanError};
pub use fold::Fold;
pub use symbolic::{PLAN_VERSION, Plan, TensorRule};
