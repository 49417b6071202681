//! Dialects and what speaks for them; files that must be refused, each with the place and what to do.

use proptest::prelude::*;

use super::*;
use crate::{
    Action, Gather, Placement, Program, ScheduleError, Shape, Step, generate, grid::tables, lower, named,
};

fn document(text: &str) -> Result<Document, ScheduleError> {
    read(text, &Options::default())
}

fn refused(text: &str) -> String {
    let read = document(text).and_then(|it| it.program(Gather::PerPart));
    read.map(|_| ()).unwrap_err().to_string()
}

const NEWER: &str = "0F0,0F1,,0I0,0W0,0I1,0W1\n,1F0,1I0,1F1,1I1,1W0,1W1\n";
const OLDER: &str = "0F0,0F1,,0B0,0W0,0B1,0W1\n,1F0,1B0,1F1,1B1,1W0,1W1\n";

#[test]
fn both_dialects_of_a_schedule_are_the_same_table_and_are_told_apart() {
    let (newer, older) = (document(NEWER).unwrap(), document(OLDER).unwrap());
    assert_eq!((newer.dialect(), older.dialect()), (Dialect::Newer, Dialect::Older));
    assert_eq!(newer.table().unwrap(), older.table().unwrap());
    assert_eq!(newer.cells()[0][2], None, "an idle time");
    assert_eq!((newer.text(), older.text()), (NEWER.to_owned(), OLDER.to_owned()));
}

#[test]
fn each_letter_that_only_one_dialect_has_decides() {
    let dialect = |text: &str| document(text).unwrap().dialect();
    assert_eq!(dialect("0F0,0B0"), Dialect::Newer, "a B alone is whole");
    assert_eq!(dialect("0F0,0BW0"), Dialect::Older);
    assert_eq!(dialect("0F0,0F1,0BW0,0B1,0W1"), Dialect::Older);
    assert_eq!(dialect("0F0,0F1,0B0,0I1,0W1"), Dialect::Newer);
    assert_eq!(dialect("0F0,1F0,0F1,(0F2;1BW0)OVERLAP_F_B"), Dialect::Older);
    let table = document("0F0,0F1,0BW0,0B1,0W1").unwrap().table().unwrap();
    assert_eq!(table.to_string(), "0 0F0 0F1 0B0 0I1 0W1\n");
}

#[test]
fn a_dialect_that_is_not_certain_is_refused_with_the_cells_that_disagree() {
    for (text, why) in [
        (
            "0F0,0F1,0I0,0W0,0BW1",
            "0I0 (row 1, column 3) is of the newer dialect (I, W, B = both) and 0BW1 (row 1, column 5)",
        ),
        ("0F0,0F1,0B0,0W0,0B1", "0B1 (row 1, column 5) is of the newer dialect (I, W, B = both) and 0W0"),
        ("0F0,0W0", "0W0 (row 1, column 2) has no I of its microbatch, as in the newer dialect, and no B"),
        ("0F0,0F1,0B0,0W1", "0W1 (row 1, column 4) has no I"),
    ] {
        let refused = refused(text);
        assert!(
            refused.starts_with("the file's dialect is not certain: ") && refused.contains(why),
            "{refused}"
        );
        assert!(refused.ends_with("declare the dialect"), "{refused}");
    }
}

#[test]
fn a_declared_dialect_is_held_to() {
    let declared =
        |text: &str, dialect| read(text, &Options { dialect: Some(dialect), ..Options::default() });
    let of = |text, dialect| declared(text, dialect).and_then(|it| it.table()).map(|it| it.to_string());
    assert_eq!(of("0F0,0B0", Dialect::Newer).unwrap(), "0 0F0 0B0\n");
    let refused = of("0F0,0B0", Dialect::Older).unwrap_err().to_string();
    assert!(refused.contains("cell 0W0 is missing"), "{refused}");
    let refused = of("0F0,0I0,0W0", Dialect::Older).unwrap_err().to_string();
    assert_eq!(
        refused,
        "row 1 (rank 0), column 2, cell \"0I0\": the older dialect has no I: it writes B for the gradient of the inputs"
    );
    let refused = of("0F0,0BW0", Dialect::Newer).unwrap_err().to_string();
    assert!(refused.contains("BW is of the older dialect"), "{refused}");
    assert_eq!("Older".parse::<Dialect>().unwrap(), Dialect::Older);
    assert!("old".parse::<Dialect>().unwrap_err().to_string().contains("there are newer"));
}

#[test]
fn every_schedule_is_written_and_read_in_both_dialects_alone_and_lowered() {
    for (generator, shape, table) in
        tables().filter(|(_, shape, _)| shape.ranks < 4 && shape.microbatches < 9)
    {
        let program = lower(&table, Gather::Stages(2)).unwrap();
        // Lowering takes composites apart.
        let part = |row: &Vec<Action>| row.iter().flat_map(|cell| cell.parts()).collect();
        let apart = Table { ranks: table.ranks.iter().map(part).collect(), ..table.clone() };
        for dialect in [Dialect::Newer, Dialect::Older] {
            for (text, lowered) in [(write(&table, dialect), false), (write(program.table(), dialect), true)]
            {
                let found =
                    document(&text).unwrap_or_else(|error| panic!("{} {shape:?}: {error}", generator.name()));
                assert_eq!(found.text(), text);
                assert_eq!(&found.table().unwrap(), if lowered { &apart } else { &table });
                if lowered {
                    assert_eq!(found.program(Gather::PerPart).unwrap(), program);
                }
                let splits = table.ranks.iter().flatten().any(|it| matches!(it.step, Step::I(_)));
                assert!(found.dialect() == dialect || !splits);
            }
        }
    }
}

#[test]
fn ends_of_lines_are_kept_and_marks_quotes_and_blanks_are_understood() {
    for text in ["0F0,0B0", "0F0,0B0\n", "0F0,0B0\r\n", "0F0,,0B0,,\r\n", "0F0,0F1,0B0,0B1\r\n"] {
        assert_eq!(document(text).unwrap().text(), text);
    }
    for text in ["\u{feff}0F0,0B0\n", "\"0F0\",\"0B0\"\n", " 0F0 ,\t0B0\n", "0F0,0B0\n\n\n"] {
        assert_eq!(document(text).unwrap().text(), "0F0,0B0\n", "{text:?}");
    }
}

#[test]
fn malformed_cells_are_named_by_row_column_and_text() {
    for (text, place, why) in [
        ("0F0,0F0junk,0B0", "row 1 (rank 0), column 2, cell \"0F0junk\": it is no action", "names none"),
        (
            "0F0,0B0\n1F0,1B",
            "row 2 (rank 1), column 2, cell \"1B\": it is no action",
            "number of a microbatch",
        ),
        ("0F0,B0", "row 1 (rank 0), column 2, cell \"B0\"", "does not begin with the number of a stage"),
        ("0F0;0B0", "row 1 (rank 0), column 1, cell \"0F0;0B0\"", "cells are separated by commas"),
        ("0F0,0b0", "column 2, cell \"0b0\"", "names none"),
        ("0F0,0UNSHARD1,0B0", "column 2, cell \"0UNSHARD1\"", "takes no microbatch"),
        ("0F0,(0F1;0B0)OVERLAP,0B1", "cell \"(0F1;0B0)OVERLAP\"", "only OVERLAP_F_B has parts"),
        ("0F0,0B0\u{1b}[2J", "cell \"0B0\\u{1b}[2J\"", "names none"),
        ("0F0,0F99999999999999999999", "column 2", "number of a microbatch"),
    ] {
        let refused = refused(text);
        assert!(refused.starts_with(place) || refused.contains(place), "{text}: {refused}");
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn rows_that_are_no_ranks_and_stages_that_lie_nowhere_or_twice_are_refused() {
    for (text, why) in [
        ("", "the file is empty"),
        ("\n", "the file is empty"),
        ("0F0,0B0\n\n1F0,1B0", "row 2 is empty: each row is a rank"),
        ("0F0,0B0\n,,", "rank 1 has no stage"),
        (
            "0F0,1F0,1B0\n0B0",
            "row 2 (rank 1), column 1, cell \"0B0\": stage 0 is on rank 0 already: 0F0 (row 1, column 1)",
        ),
        ("0F0,2F0,2B0,0B0", "there is no cell of stage 1, though there are higher ones"),
        ("999999999999F0", "there is no cell of stage 0"),
    ] {
        let refused = refused(text);
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
}

#[test]
fn what_is_declared_is_checked() {
    let with = |options: Options| read(NEWER, &options).and_then(|it| it.table()).unwrap_err().to_string();
    let none = Options::default;
    assert_eq!(
        with(Options { ranks: Some(4), ..none() }),
        "the file has 2 rows, one for each rank, but there are 4 pipeline ranks"
    );
    assert!(with(Options { microbatches: Some(3), ..none() }).contains("cell 0F2 is missing"));
    let fewer = with(Options { microbatches: Some(1), ..none() });
    assert_eq!(fewer, "row 1, column 2: rank 0, step 1, cell 0F1: there are only 1 microbatches");
    let placement = Placement::new(2, vec![1, 0]).unwrap();
    assert!(with(Options { placement: Some(placement), ..none() }).contains("stage 0 lies on rank 1"));
    let placement = Placement::looped(4, 2).unwrap();
    assert!(with(Options { placement: Some(placement), ..none() }).contains("has 2 stages, not 4"));
    let lowered = read("0F0,0B0,0REDUCE_GRAD", &Options { format: Some(Format::ComputeOnly), ..none() });
    assert!(
        lowered.unwrap_err().to_string().contains("column 3, cell \"0REDUCE_GRAD\": the file is declared")
    );
}

#[test]
fn placements_are_inferred_whatever_they_are() {
    let placed = |text: &str| document(text).unwrap().table().unwrap().placement;
    assert_eq!(placed("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0"), Placement::v(4, 2).unwrap());
    assert_eq!(placed("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0"), Placement::looped(4, 2).unwrap());
    assert_eq!(placed("1F0,1B0\n0F0,0B0"), Placement::new(2, vec![1, 0]).unwrap());
    assert_eq!(placed("0F0,1F0,1B0,0B0\n2F0,2B0"), Placement::new(2, vec![0, 0, 1]).unwrap());
}

#[test]
fn refusals_of_the_validator_say_where_in_the_file_the_cell_is() {
    let refused = refused(",0F0,,0B0,0F0");
    assert_eq!(refused, "row 1, column 5: rank 0, step 2, cell 0F0: it was there already, at step 0");
}

#[test]
fn a_file_with_communication_runs_as_it_is_and_passes_the_checks_of_programs() {
    let good = "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n";
    let program = document(good).unwrap().program(Gather::Stages(1)).unwrap();
    assert_eq!(write(program.table(), Dialect::Newer), good);
    let older = good.replace(",0REDUCE_GRAD", "").replace(",1REDUCE_GRAD", "");
    assert_eq!(document(&older).unwrap().program(Gather::PerPart).unwrap(), program);
    for (from, to, why) in [
        ("0RECV_B0,", "", "row 2, column 4: rank 1, step 3, cell 1SEND_B0: as exchange 1 with rank 0"),
        (",0REDUCE_GRAD", "", "cell 0REDUCE_GRAD is missing"),
        ("1F0,1B0,1SEND_B0", "1F0,1SEND_B0,1B0", "waits for 1B0 or 1I0 on this rank"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", "waits for 0F0 on this rank"),
        ("0SEND_F0", "0SEND_F0,0SEND_F0", "it was there already, at step 1"),
        ("0F0,0S", "0F0,,0S", "can't have empty cells between others"),
    ] {
        let refused = refused(&good.replace(from, to));
        assert!(refused.contains(why), "{from} for {to}: {refused}");
    }
}

#[test]
fn actions_of_the_older_dialect_agree_with_their_text_both_ways() {
    for (text, newer) in [
        ("1B0", "1I0"),
        ("1BW3", "1B3"),
        ("1W0", "1W0"),
        ("2SEND_B1", "2SEND_B1"),
        ("(0F7;7BW3)OVERLAP_F_B", "(0F7;7B3)OVERLAP_F_B"),
    ] {
        let action: Action = Dialect::Older.action(text).unwrap();
        assert_eq!(action.to_string(), newer);
        assert_eq!(Dialect::Older.text(action), text);
    }
    assert!(Dialect::Older.action("(0F7;7B3)OVERLAP_F_B").unwrap_err().contains("two parts"));
}

/// Cells that files are likely to have, and some that they can't have.
fn cell() -> impl Strategy<Value = String> {
    let numbers = prop_oneof![4 => 0..3_usize, 1 => Just(usize::MAX)];
    let names = prop::sample::select(vec![
        "F",
        "B",
        "I",
        "W",
        "BW",
        "SEND_F",
        "RECV_F",
        "SEND_B",
        "RECV_B",
        "UNSHARD",
        "RESHARD",
        "REDUCE_GRAD",
        "OVERLAP_F_B",
    ]);
    let plain = (numbers.clone(), names, prop::option::of(numbers)).prop_map(|(stage, name, microbatch)| {
        format!("{stage}{name}{}", microbatch.map(|it| it.to_string()).unwrap_or_default())
    });
    prop_oneof![
        8 => plain,
        1 => (0..3_usize, 0..3_usize, 0..3_usize).prop_map(|(s, m, b)| format!("({s}F{m};{s}B{b})OVERLAP_F_B")),
        1 => Just(String::new()),
        1 => "[0-9FBW();,\"\r ]{0,6}",
    ]
}

proptest! {
    #[test]
    fn whatever_a_file_holds_it_is_read_or_refused_and_what_is_accepted_is_written_again(
        rows in prop::collection::vec(prop::collection::vec(cell(), 0..8), 0..4),
    ) {
        let text: Vec<_> = rows.iter().map(|row| row.join(",")).collect();
        if let Ok(found) = document(&text.join("\n")) {
            prop_assert_eq!(document(&found.text()).unwrap(), found.clone());
            if let Ok(program) = found.program(Gather::Stages(2)) {
                prop_assert_eq!(Program::new(program.table().clone()).unwrap(), program);
            }
        }
    }
}

#[test]
fn a_cell_that_gets_lost_or_doubled_in_a_right_file_is_refused() {
    let shape = Shape { stages: 6, ranks: 3, microbatches: 6 };
    let table = generate(named("DualPipeV").unwrap(), shape).unwrap();
    let right = lower(&table, Gather::PerPart).unwrap().table().clone();
    for rank in 0..3 {
        for step in 0..right.ranks[rank].len() {
            for doubled in [false, true] {
                let mut rows = right.clone();
                let cell = rows.ranks[rank].remove(step);
                if doubled {
                    rows.ranks[rank].splice(step..step, [cell, cell]);
                }
                let program =
                    document(&write(&rows, Dialect::Newer)).and_then(|it| it.program(Gather::PerPart));
                assert!(program.is_err(), "rank {rank}, step {step}, cell {cell}, doubled: {doubled}");
            }
        }
    }
}
