//! FSDP on meshes of threads: shards, gathers, reductions, ties and updates of every mesh against those of one rank.

mod exactness;
mod faults;
mod meshes;
mod model;
mod refusals;
mod threads;
