//! A tiny model on one to four stages, in threads: pipelines give the same bits as one stage, and failures end as one
//! clear error.

mod early;
mod failures;
mod models;
mod names;
mod pipelines;
mod plain;
mod recompute;
mod single;
mod tiny;
mod whole;
mod wire;
