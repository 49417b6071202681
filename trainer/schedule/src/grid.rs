//! Tables of every schedule for every shape up to 8 ranks, 4 stages on each and 4 P microbatches: what properties are
//! checked on. Only for tests.

use super::{Generator, Shape, Table, generate, known, named};

/// All shapes.
pub(crate) fn shapes() -> impl Iterator<Item = Shape> {
    (1..=8).flat_map(|ranks| {
        (1..=4).flat_map(move |per_rank| {
            (1..=4 * ranks).map(move |microbatches| Shape { stages: per_rank * ranks, ranks, microbatches })
        })
    })
}

/// All generators.
pub(crate) fn generators() -> impl Iterator<Item = &'static dyn Generator> {
    known().into_iter().map(|name| named(name).unwrap())
}

/// Every table that can be made, with its generator.
pub(crate) fn tables() -> impl Iterator<Item = (&'static dyn Generator, Shape, Table)> {
    generators().flat_map(|it| shapes().filter_map(move |shape| Some((it, shape, generate(it, shape).ok()?))))
}
