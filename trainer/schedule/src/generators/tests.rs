//! Generated tables, and numbers and names that are refused.

use super::*;

fn rows(name: &str, stages: usize, ranks: usize, microbatches: usize) -> Vec<String> {
    let table = generate(named(name).unwrap(), Shape { stages, ranks, microbatches }).unwrap();
    table.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn one_f_one_b_is_the_published_table() {
    assert_eq!(
        rows("1F1B", 4, 4, 8),
        [
            "0 0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7",
            "1 1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7",
            "2 2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7",
            "3 3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
        ]
    );
}

#[test]
fn gpipe_does_all_forwards_first_with_one_stage_and_with_several() {
    assert_eq!(rows("gpipe", 2, 2, 2), ["0 0F0 0F1 0B0 0B1", "1 1F0 1F1 1B0 1B1"]);
    assert_eq!(
        rows("GPIPE", 4, 2, 2),
        ["0 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"]
    );
}

#[test]
fn fewer_microbatches_than_ranks_are_a_short_warm_up_and_an_advice() {
    assert_eq!(
        rows("1F1B", 4, 4, 2),
        ["0 0F0 0F1 0B0 0B1", "1 1F0 1F1 1B0 1B1", "2 2F0 2F1 2B0 2B1", "3 3F0 3B0 3F1 3B1"]
    );
    let advice = |microbatches| Shape { stages: 4, ranks: 4, microbatches }.advice();
    assert!(advice(2).unwrap().contains("take at least 8"));
    assert_eq!(advice(8), None);
}

#[test]
fn names_are_known_in_any_case_and_others_get_the_nearest() {
    assert_eq!(named(" gPiPe ").unwrap().name(), "GPipe");
    let refused = named("1f1bb").unwrap_err().to_string();
    assert_eq!(refused, "no schedule is called \"1f1bb\"; the nearest is 1F1B, known are GPipe, 1F1B");
    assert!(named("pipe").unwrap_err().to_string().contains("nearest is GPipe"));
}

#[test]
fn every_generated_table_is_valid_over_a_grid() {
    for generator in REGISTRY {
        for ranks in 1..6 {
            for (per_rank, microbatches) in [(1, 1), (1, 2), (1, 5), (1, 16), (2, 3), (3, 4)] {
                if generator.stages_per_rank().contains(&per_rank) {
                    let shape = Shape { stages: per_rank * ranks, ranks, microbatches };
                    generate(*generator, shape).unwrap();
                }
            }
        }
    }
}

/// Stands for a schedule that needs several stages on each rank.
#[derive(Debug)]
struct Interleaved;

impl Generator for Interleaved {
    fn name(&self) -> &'static str {
        "Interleaved1F1B"
    }
    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=usize::MAX
    }
    fn row(&self, _: Shape, _: usize) -> Vec<Action> {
        Vec::new()
    }
}

#[test]
fn three_stages_can_be_interleaved_on_one_rank_only_and_the_refusal_says_so() {
    for ranks in [2, 3] {
        let shape = Shape { stages: 3, ranks, microbatches: 8 };
        let refused = generate(&Interleaved, shape).unwrap_err().to_string();
        let why = "needs at least 2 stages on each rank, the same number on all: 3 stages can be scheduled so on 1 \
                   ranks, not on";
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let refused = |stages, ranks, microbatches| {
        let shape = Shape { stages, ranks, microbatches };
        generate(named("1F1B").unwrap(), shape).unwrap_err().to_string()
    };
    assert!(refused(4, 2, 4).contains("needs exactly 1 stage on each rank"), "{}", refused(4, 2, 4));
    assert!(refused(4, 4, 0).contains("none can be 0"));
    assert!(refused(3, 4, 4).contains("on 3 ranks, not on 4"));
}
