//! Rows about whole steps beside PyTorch's, and beside our own other mode: the contests as a table.

use super::Part;
use super::contest::{Contest, Ran, row};
use super::row::{Relation, Row};
use super::sizes::Sizes;
use super::way::{Ground, Way};
use crate::bench::figure::Target;
use crate::error::Error;

const RANKS: u32 = 4;
const FAST: &str = "training.mode=fast";
const BF16: &str = "training.mixed_precision_param=bfloat16";

/// Each of ours beside each of theirs, with the same target.
struct Table {
    /// Of a turn.
    steps: usize,
    ours: Vec<Way>,
    theirs: Vec<Way>,
    relation: Relation,
    /// None where the figure says what can be had at most.
    target: Option<Target>,
}

/// What holds libtorch, and what it computes with, to the instructions of a processor without AVX-512.
const AVX2: &[(&str, &str)] =
    &[("ATEN_CPU_CAPABILITY", "avx2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("ONEDNN_MAX_CPU_ISA", "AVX2")];

/// The rows of a part that compares whole steps; none for any other part.
pub(super) fn rows(part: Part, ground: &Ground, sizes: Sizes, rounds: u32) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for Table { steps, ours, theirs, relation, target } in tables(part) {
        let ways = ours.iter().chain(&theirs).cloned().collect();
        let all = Contest { sizes, steps, ways }.run(ground, rounds)?;
        let (ours, theirs) = all.split_at(ours.len().min(all.len()));
        let one = |ours| theirs.iter().map(move |theirs: &Ran| row(part, relation, (ours, theirs), target));
        rows.extend(ours.iter().flat_map(one));
    }
    Ok(rows)
}

fn tables(part: Part) -> Vec<Table> {
    match part {
        Part::Speed => vec![beside_torch(
            vec![Way::ours("f32, exact mode", 1, &[]), Way::ours("f32, fast mode", 1, &[FAST])],
            vec![
                Way::torch("PyTorch, eager", 1, &[]),
                Way::torch("PyTorch, eager, fused AdamW", 1, &["--fused"]),
            ],
            (3, 1.0),
        )],
        Part::Exact => vec![Table {
            steps: 3,
            ours: [1, 2, 4].map(virtual_ranks).into(),
            theirs: vec![Way::ours("fast mode", 1, &[FAST])],
            relation: Relation::TimesAsLong,
            target: Some(Target::AtMost(1.6)),
        }],
        Part::Bf16 => bf16(),
        Part::Fsdp => vec![sharded("FULL_SHARD", "full_shard", ("FSDP2", "--ranks=fsdp"), 1.4)],
        Part::Ddp => vec![sharded("NO_SHARD", "no_shard", ("DDP", "--ranks=ddp"), 0.95)],
        Part::Saves | Part::Resume | Part::Split | Part::Schedules => Vec::new(),
    }
}

fn beside_torch(ours: Vec<Way>, theirs: Vec<Way>, (steps, least): (usize, f64)) -> Table {
    Table { steps, ours, theirs, relation: Relation::TimesAsFast, target: Some(Target::AtLeast(least)) }
}

fn virtual_ranks(count: u32) -> Way {
    let key = format!("exact.virtual_tp={count}");
    Way::ours(&format!("exact mode, virtual_tp = {count}"), 1, &[&key])
}

/// On this processor as it is, and with libtorch held to what older ones have: eager bf16 is fast only with instructions of its own.
/// How fast a step would be that consisted of the products of its linears alone says what any trainer on these kernels can reach.
fn bf16() -> Vec<Table> {
    let exact = || Way::ours("bf16, exact mode", 1, &[BF16]);
    let theirs = || {
        vec![
            Way::torch("PyTorch, eager, bf16", 1, &["--numbers=bfloat16"]),
            Way::torch("PyTorch, eager, autocast to bf16", 1, &["--numbers=autocast"]),
        ]
    };
    let held = |ways: Vec<Way>| ways.into_iter().map(|way| way.under(", AVX2", AVX2)).collect();
    let here = vec![exact(), Way::ours("bf16, fast mode", 1, &[BF16, FAST])];
    let products = Way::torch("the linears' products alone, bf16", 1, &["--numbers=bfloat16", "--products"])
        .without_training();
    let most = Table { target: None, ..beside_torch(vec![products], theirs(), (1, 5.0)) };
    vec![
        beside_torch(here, theirs(), (1, 5.0)),
        beside_torch(held(vec![exact()]), held(theirs()), (1, 5.0)),
        most,
    ]
}

/// Four processes over gloo, on both sides.
fn sharded(name: &str, strategy: &str, (peer, word): (&str, &'static str), least: f64) -> Table {
    let keys = ["comm.transport=gloo".to_owned(), format!("fsdp.strategy={strategy}")];
    let ours = |mode: &str, more: &[&str]| {
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Way::ours(&format!("{RANKS} x gloo, {name}, {mode} mode"), RANKS, &keys)
    };
    let theirs = |words: &[&'static str], more: &str| {
        let words: Vec<&'static str> = [word].into_iter().chain(words.iter().copied()).collect();
        Way::torch(&format!("PyTorch, {peer} on gloo{more}"), RANKS, &words)
    };
    let theirs = vec![theirs(&[], ""), theirs(&["--fused"], ", fused AdamW")];
    beside_torch(vec![ours("exact", &[]), ours("fast", &[FAST])], theirs, (3, least))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn no_two_ways_that_are_compared_have_one_name_and_every_row_has_a_target_of_the_issue() {
        for part in Part::value_variants() {
            for Table { ours, theirs, target, .. } in tables(*part) {
                let mut names: Vec<&str> = ours.iter().chain(&theirs).map(|way| way.name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), ours.len() + theirs.len(), "{part:?}");
                let wanted = match part {
                    Part::Speed => Target::AtLeast(1.0),
                    Part::Bf16 => Target::AtLeast(5.0),
                    Part::Fsdp => Target::AtLeast(1.4),
                    Part::Ddp => Target::AtLeast(0.95),
                    _ => Target::AtMost(1.6),
                };
                // What trains nothing has no target, and nothing else is without one.
                let trains = ours.iter().all(Way::is_training);
                assert_eq!(target, trains.then_some(wanted), "{part:?}");
            }
        }
    }
}
