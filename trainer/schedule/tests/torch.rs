//! Files that torch wrote (`torch/make.py`): they are read and written again byte for byte, hold what the generators here
//! make, and are programs that pass every check.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use schedule::{
    Action, Gather, Program, Shape, Step, Table,
    csv::{self, Dialect, Format, Options},
    generate, lower, named,
};

/// The name here, ranks, stages of each, microbatches, computations and the whole program.
macro_rules! made {
    ($name:literal, $file:literal, $shape:expr) => {
        Made {
            name: $name,
            shape: $shape,
            computations: include_str!(concat!("torch/", $file, "_compute_only.csv")),
            program: include_str!(concat!("torch/", $file, "_compute_comms.csv")),
        }
    };
}

struct Made {
    name: &'static str,
    /// Ranks, stages of each, microbatches.
    shape: [usize; 3],
    computations: &'static str,
    program: &'static str,
}

const MADE: [Made; 8] = [
    made!("Interleaved1F1B", "interleaved1f1b_4x2_8", [4, 2, 8]),
    made!("Interleaved1F1B", "interleaved1f1b_3x2_5", [3, 2, 5]),
    made!("InterleavedZeroBubble", "interleavedzerobubble_2x2_8", [2, 2, 8]),
    made!("ZB1P", "interleavedzerobubble_4x1_8", [4, 1, 8]),
    made!("LoopedBFSReversed", "loopedbfs_2x2_4", [2, 2, 4]),
    made!("ZBVZeroBubble", "zbvzerobubble_4x2_8", [4, 2, 8]),
    made!("ZBVZeroBubble", "zbvzerobubble_3x2_2", [3, 2, 2]),
    made!("DualPipeV", "dualpipev_4x2_10", [4, 2, 10]),
];

impl Made {
    fn ours(&self) -> Table {
        let [ranks, each, microbatches] = self.shape;
        generate(named(self.name).unwrap(), Shape { stages: each * ranks, ranks, microbatches }).unwrap()
    }

    fn read(&self) -> (csv::Document, csv::Document) {
        let read = |text| csv::read(text, &Options::default()).unwrap();
        (read(self.computations), read(self.program))
    }
}

#[test]
fn generators_make_what_torch_makes() {
    for made in MADE {
        let (computations, program) = made.read();
        assert_eq!(computations.table().unwrap(), made.ours(), "{}", made.name);
        assert_eq!(program.table().unwrap(), made.ours(), "{}", made.name);
    }
}

#[test]
fn files_of_torch_are_written_again_byte_for_byte() {
    for made in MADE {
        let (computations, program) = made.read();
        assert_eq!((computations.format(), program.format()), (Format::ComputeOnly, Format::ComputeComms));
        assert_eq!((computations.dialect(), program.dialect()), (Dialect::Newer, Dialect::Newer));
        assert_eq!(computations.text(), made.computations);
        assert_eq!(program.text(), made.program);
    }
}

#[test]
fn programs_of_torch_hold_both_rules_of_communication_and_are_what_lowering_makes_here() {
    for made in MADE {
        let theirs = made.read().1.program(Gather::PerPart).unwrap();
        let ours = lower(&made.ours(), Gather::Stages(3)).unwrap();
        let splits = made.ours().ranks.iter().flatten().any(|it| matches!(it.step, Step::W(_)));
        if splits {
            // A weight gradient needs no weights: here a stage is freed before the last of them, there after it, and what
            // others send comes a cell earlier or later; what torch keeps in one cell is two here. Computations, and the order of
            // messages, stay the same.
            assert_eq!(kept(&theirs, Action::computes), kept(&ours, Action::computes), "{}", made.name);
            assert_eq!(kept(&theirs, sends), kept(&ours, sends), "{}", made.name);
            assert_eq!(kept(&theirs, receives), kept(&ours, receives), "{}", made.name);
        } else {
            assert_eq!(ours, theirs, "{}", made.name);
        }
    }
}

fn kept(program: &Program, kind: impl Fn(&Action) -> bool) -> Vec<Vec<Action>> {
    let of = |row: &Vec<Action>| row.iter().flat_map(|cell| cell.parts()).filter(&kind).collect();
    program.table().ranks.iter().map(of).collect()
}

fn sends(action: &Action) -> bool {
    matches!(action.step, Step::SendF(_) | Step::SendB(_))
}

fn receives(action: &Action) -> bool {
    matches!(action.step, Step::RecvF(_) | Step::RecvB(_))
}
