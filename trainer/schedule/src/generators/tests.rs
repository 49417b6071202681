//! Generated tables, and numbers and names that are refused.

use super::{super::Step, *};
use crate::grid::{shapes, tables};

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
fn zb_h1_is_the_published_table() {
    assert_eq!(
        rows("ZBH1", 4, 4, 8),
        [
            "0 0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
            "1 1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7",
            "2 2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7",
            "3 3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7",
        ]
    );
}

#[test]
fn zb_h2_is_the_published_table() {
    assert_eq!(
        rows("ZBH2", 4, 4, 8),
        [
            "0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
            "1 1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 1I7 1W5 1W6 1W7",
            "2 2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 2W4 2W5 2W6 2W7",
            "3 3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7",
        ]
    );
}

#[test]
fn interleaved_1f1b_is_the_published_table_on_the_first_and_the_last_rank() {
    let rows = rows("Interleaved1F1B", 8, 4, 8);
    assert_eq!(
        rows[0],
        "0 0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 4B5 \
         4B6 4B7 0B4 0B5 0B6 0B7"
    );
    assert_eq!(
        rows[3],
        "3 3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 \
         7F7 7B7 3B4 3B5 3B6 3B7"
    );
}

#[test]
fn interleaved_zero_bubble_has_a_shorter_warm_up_and_weight_gradients_behind() {
    let rows = rows("InterleavedZeroBubble", 4, 2, 2);
    assert_eq!(rows[0], "0 0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1");
    assert_eq!(rows[1], "1 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1");
}

#[test]
fn zbv_is_the_published_table_on_the_first_and_the_last_rank() {
    let rows = rows("ZBVZeroBubble", 8, 4, 8);
    assert_eq!(
        rows[0],
        "0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 7W4 0I1 0W1 \
         7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7"
    );
    assert_eq!(
        rows[3],
        "3 3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 4I3 \
         4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7"
    );
}

#[test]
fn dualpipe_v_runs_forwards_with_backwards_of_the_other_stage() {
    assert_eq!(
        rows("DualPipeV", 4, 2, 4),
        [
            "0 0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 (3F3;0B1)OVERLAP_F_B 3B3 0I2 \
             0W2 0I3 0W3",
            "1 1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 \
             2W3 1W3",
        ]
    );
}

#[test]
fn dualpipe_v_needs_a_microbatch_for_each_stage() {
    let shape = Shape { stages: 8, ranks: 4, microbatches: 7 };
    assert_eq!(
        generate(named("dualpipev").unwrap(), shape).unwrap_err().to_string(),
        "schedule DualPipeV needs a microbatch for each stage: there are 8 stages and 7 microbatches; the nearest that \
         fit: 8 microbatches"
    );
}

#[test]
fn looped_bfs_goes_back_in_order_and_its_other_form_as_torch_does() {
    assert_eq!(
        rows("LoopedBFS", 4, 2, 2),
        ["0 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"]
    );
    assert_eq!(
        rows("looped_bfs_reversed", 4, 2, 2),
        ["0 0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0", "1 1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0"]
    );
}

/// So that a gradient that is summed as its parts come has the same bits in all of them.
#[test]
fn weight_gradients_come_in_the_order_of_microbatches_on_every_stage() {
    for (generator, _, table) in tables().filter(|(it, ..)| it.name() != "LoopedBFSReversed") {
        let mut next = vec![0; table.stages()];
        for part in table.ranks.iter().flatten().flat_map(|cell| cell.parts()) {
            if let Step::B(microbatch) | Step::W(microbatch) = part.step {
                assert_eq!(microbatch, next[part.stage], "{} {part}", generator.name());
                next[part.stage] += 1;
            }
        }
    }
}

#[test]
fn fewer_microbatches_than_ranks_are_a_short_warm_up() {
    assert_eq!(
        rows("1F1B", 4, 4, 2),
        ["0 0F0 0F1 0B0 0B1", "1 1F0 1F1 1B0 1B1", "2 2F0 2F1 2B0 2B1", "3 3F0 3B0 3F1 3B1"]
    );
}

fn advised(name: &str, stages: usize, ranks: usize, microbatches: usize) -> String {
    let hints = advice(named(name).unwrap(), Shape { stages, ranks, microbatches });
    hints.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn few_microbatches_are_advised_against_by_how_few_they_are() {
    assert!(advised("1F1B", 4, 4, 2).contains("never keep all of them at work"));
    assert!(advised("1F1B", 4, 4, 2).ends_with("take at least 8"));
    assert!(advised("1F1B", 4, 4, 7).contains("idle about 30 % of the time; take at least 8"));
    assert!(advised("1F1B", 4, 4, 8).contains("16 are better where memory"));
    assert_eq!(advised("1F1B", 4, 4, 16), "");
    assert_eq!(advised("1F1B", 1, 1, 1), "");
    assert!(advised("ZBH2", 4, 4, 6).contains("ZBH2 needs 7 microbatches for its whole effect"));
}

#[test]
fn rounds_longer_than_the_ranks_are_advised_against_with_the_nearest_multiples() {
    let hint = "rounds are of 7 microbatches on 4 ranks, which keeps more activations alive than rounds of 4; 4 or 8 \
                microbatches make such";
    assert!(advised("Interleaved1F1B", 8, 4, 7).ends_with(hint), "{}", advised("Interleaved1F1B", 8, 4, 7));
    assert_eq!(advised("Interleaved1F1B", 8, 4, 16), "");
}

#[test]
fn names_are_known_in_any_case_and_by_their_aliases_and_others_get_the_nearest() {
    for (written, canonical) in [
        (" gPiPe ", "GPipe"),
        ("1f1b", "1F1B"),
        ("zero_bubble", "ZBH1"),
        ("zero-bubble", "ZBH1"),
        ("ZB1P", "ZBH1"),
        ("zb-h1", "ZBH1"),
        ("zb_h2", "ZBH2"),
        ("interleaved_1f1b", "Interleaved1F1B"),
        ("interleaved-1F1B", "Interleaved1F1B"),
        ("interleaved_zero_bubble", "InterleavedZeroBubble"),
        ("zbvzerobubble", "ZBVZeroBubble"),
        ("zb-v", "ZBVZeroBubble"),
        ("dual_pipe_v", "DualPipeV"),
        ("looped-bfs", "LoopedBFS"),
    ] {
        assert_eq!(named(written).unwrap().name(), canonical);
    }
    let refused = named("1f1bb").unwrap_err().to_string();
    assert!(
        refused.starts_with("no schedule is called \"1f1bb\"; the nearest is 1F1B, known are GPipe, 1F1B, ")
    );
    assert!(named("pipe").unwrap_err().to_string().contains("nearest is GPipe"));
}

#[test]
fn no_two_schedules_share_a_name() {
    let mut all: Vec<_> = REGISTRY.iter().flat_map(|it| names(*it)).map(plain).collect();
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn every_generated_table_is_valid_over_a_grid_and_other_shapes_are_refused_for_their_shape() {
    for generator in REGISTRY {
        let mut made = 0;
        for shape in shapes() {
            match generate(*generator, shape) {
                Ok(_) => made += 1,
                Err(ScheduleError::Shape(_)) => {}
                Err(other) => panic!("{} of {shape:?}: {other}", generator.name()),
            }
        }
        assert!(made > 50, "{} was made for {made} shapes only", generator.name());
    }
}

#[test]
fn microbatches_of_a_refusal_are_the_nearest_that_fit() {
    let refused = |microbatches| {
        let shape = Shape { stages: 8, ranks: 4, microbatches };
        generate(named("Interleaved1F1B").unwrap(), shape).unwrap_err().to_string()
    };
    assert_eq!(
        refused(9),
        "schedule Interleaved1F1B takes microbatches in rounds: 9 on 4 ranks make 2 rounds, and 9 is no multiple of 2; \
         the nearest that fit: 8 or 10 microbatches"
    );
    for microbatches in [8, 10] {
        generate(named("Interleaved1F1B").unwrap(), Shape { stages: 8, ranks: 4, microbatches }).unwrap();
    }
}

#[test]
fn three_stages_can_be_interleaved_on_one_rank_only_and_the_refusal_says_so() {
    let refused = |ranks| {
        let shape = Shape { stages: 3, ranks, microbatches: 8 };
        generate(named("interleaved-1f1b").unwrap(), shape).unwrap_err().to_string()
    };
    let why = "schedule Interleaved1F1B needs at least 2 stages on each rank, the same number on all: 3 stages can be \
               scheduled so on 1 ranks, not on";
    assert_eq!(refused(2), format!("{why} 2"));
    assert_eq!(refused(3), format!("{why} 3; for 1 stage on each rank take 1F1B"));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let refused = |stages, ranks, microbatches| {
        let shape = Shape { stages, ranks, microbatches };
        generate(named("1F1B").unwrap(), shape).unwrap_err().to_string()
    };
    assert!(refused(4, 2, 4).contains("needs exactly 1 stage on each rank"), "{}", refused(4, 2, 4));
    assert!(refused(4, 4, 0).contains("none can be 0"));
    assert!(
        refused(4, 4, 1 << 40)
            .contains("4 stages of 1099511627776 microbatches are more than 16777216 together")
    );
    assert!(refused(usize::MAX, 1, 2).contains("together"));
    assert!(refused(3, 4, 4).contains("on 3 ranks, not on 4"));
}
