//! Tables that must be refused, each with the place and the reason.

use super::{super::Placement, *};

fn table(rows: &[&str], stages: usize, microbatches: usize) -> Table {
    let row = |row: &&str| row.split_whitespace().map(|cell| cell.parse().unwrap()).collect();
    let ranks: Vec<_> = rows.iter().map(row).collect();
    Table { placement: Placement::looped(stages, ranks.len()).unwrap(), microbatches, ranks }
}

fn refused(rows: &[&str], microbatches: usize) -> String {
    validate(&table(rows, rows.len(), microbatches)).unwrap_err().to_string()
}

#[test]
fn full_and_split_backwards_may_be_mixed_between_microbatches() {
    validate(&table(&["0F0 0F1 0B0 0I1 0W1", "1F0 1F1 1I0 1B1 1W0"], 2, 2)).unwrap();
    validate(&table(&["0F0 1F0 1B0 0B0"], 2, 1)).unwrap();
}

#[test]
fn a_duplicate_is_refused() {
    assert_eq!(refused(&["0F0 0B0 0F0"], 1), "rank 0, step 2, cell 0F0: it was there already, at step 0");
    assert!(refused(&["0F0 0I0 0W0 0W0"], 1).contains("step 3, cell 0W0: it was there already, at step 2"));
}

#[test]
fn a_microbatch_out_of_range_is_refused() {
    assert_eq!(refused(&["0F0 0F2"], 2), "rank 0, step 1, cell 0F2: there are only 2 microbatches");
}

#[test]
fn a_stage_out_of_range_or_elsewhere_is_refused() {
    assert_eq!(refused(&["0F0 0B0", "2F0"], 1), "rank 1, step 0, cell 2F0: there are only 2 stages");
    assert_eq!(refused(&["0F0 1F0", "1F0"], 1), "rank 0, step 1, cell 1F0: stage 1 lies on rank 1");
}

#[test]
fn a_full_backward_beside_a_split_one_is_refused_both_ways() {
    let text = "a microbatch has B, or I and W";
    assert!(refused(&["0F0 0B0 0W0"], 1).contains("step 2, cell 0W0: 0B0 at step 1 is there too"));
    for row in ["0F0 0B0 0I0", "0F0 0I0 0B0", "0F0 0I0 0W0 0B0"] {
        assert!(refused(&[row], 1).ends_with(text), "{row}");
    }
}

#[test]
fn a_backward_without_its_forward_and_a_w_without_its_i_are_refused() {
    assert!(refused(&["0B0 0F0"], 1).starts_with("rank 0, step 0, cell 0B0: it needs 0F0"));
    assert!(refused(&["0I0 0F0"], 1).starts_with("rank 0, step 0, cell 0I0: it needs 0F0"));
    assert!(refused(&["0F0 0W0 0I0"], 1).starts_with("rank 0, step 1, cell 0W0: it needs 0I0"));
}

#[test]
fn the_last_ranks_microbatches_counted_from_1_are_refused() {
    let off_by_one = ["0F0 0F1 0B0 0B1", "1F1 1B0 1F2 1B1"];
    assert!(refused(&off_by_one, 2).starts_with("rank 1, step 1, cell 1B0: it needs 1F0"));
}

#[test]
fn missing_cells_are_named() {
    assert_eq!(refused(&["0F0 0B0"], 2), "rank 0, step 2 (the end of its row): cell 0F1 is missing");
    assert!(refused(&["0F0 0F1 0B0"], 2).contains("cell 0B1 is missing"));
    assert!(refused(&["0F0 0I0"], 1).contains("cell 0W0 is missing"));
    let absent_stage = validate(&table(&["0F0 0B0", ""], 2, 1)).unwrap_err().to_string();
    assert_eq!(absent_stage, "rank 1, step 0 (the end of its row): cell 1F0 is missing");
}

#[test]
fn communication_in_a_table_of_computations_is_refused() {
    assert!(refused(&["0F0 0REDUCE_GRAD"], 1).contains("cell 0REDUCE_GRAD: a table that is not lowered"));
}

#[test]
fn ranks_that_wait_for_each_other_are_all_named() {
    let crossed = refused(&["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], 2);
    assert_eq!(
        crossed,
        "deadlock: rank 0, step 1, cell 0B0 waits for 1B0 or 1I0 of rank 1, which is at 1F1; rank 1, step 1, cell 1F1 \
         waits for 0F1 of rank 0, which is at 0B0; in a circle: rank 0 → 1 → 0"
    );
    let one_rank = validate(&table(&["1F0 0F0 1B0 0B0"], 2, 1)).unwrap_err().to_string();
    assert_eq!(one_rank, "deadlock: rank 0, step 0, cell 1F0 waits for 0F0, which comes later on this rank");
}

#[test]
fn a_row_too_many_is_refused() {
    let mut extra = table(&["0F0 0B0"], 1, 1);
    extra.ranks.push(Vec::new());
    assert!(validate(&extra).unwrap_err().to_string().contains("2 rows"));
}

#[test]
fn both_parts_of_a_composite_count_and_are_checked() {
    let one_rank = |row: &str| validate(&table(&[row], 2, 2));
    one_rank("0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 0B0 0B1").unwrap();
    let refused = |row| one_rank(row).unwrap_err().to_string();
    assert_eq!(
        refused("0F0 1F0 (0F1;1B2)OVERLAP_F_B"),
        "rank 0, step 2, cell (0F1;1B2)OVERLAP_F_B: its part 1B2: there are only 2 microbatches"
    );
    assert!(
        refused("0F0 1F0 (0F0;1B0)OVERLAP_F_B").contains("its part 0F0: it was there already, at step 0")
    );
    assert!(refused("0F0 1F0 (0F1;2B0)OVERLAP_F_B").contains("its part 2B0: there are only 2 stages"));
    assert!(refused("0F0 1F0 1I0 (0F1;1B0)OVERLAP_F_B").contains("its part 1B0: 1I0 at step 2 is there too"));
    assert!(
        refused("0F0 1F0 (0F1;1B0)OVERLAP_F_B 1B0").contains("cell 1B0: it was there already, at step 2")
    );
    assert!(refused("0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 0B0").contains("cell 0B1 is missing"));
}

#[test]
fn parts_of_a_composite_may_not_need_each_other() {
    let row = "0F0 (1F0;1B0)OVERLAP_F_B 0B0";
    let refused = validate(&table(&[row], 2, 1)).unwrap_err().to_string();
    assert!(
        refused.ends_with("its part 1B0: it needs 1F0, which is not before it on this rank"),
        "{refused}"
    );
    let elsewhere = ["0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1F1 1B0 1B1"];
    let refused = validate(&table(&elsewhere, 2, 2)).unwrap_err().to_string();
    assert!(refused.contains("rank 0, step 1, cell (0F1;0B0)OVERLAP_F_B waits for 1B0 or 1I0"), "{refused}");
}
