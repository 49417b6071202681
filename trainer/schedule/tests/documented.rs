//! The crate's documentation has a table of all schedules: its numbers are those of the tables that are made, and its
//! formulas hold for them.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use schedule::{Action, Shape, Step, Table, Times, generate, known, named, simulate};

/// Cells of each line of the table, by the name in the first one.
fn lines() -> Vec<(String, Vec<String>)> {
    let text = include_str!("../src/lib.rs");
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let cells =
        |line: &str| line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    lines.map(|line| (cells(line)[0].clone(), cells(line))).collect()
}

fn table(name: &str, ranks: usize, per_rank: usize, microbatches: usize) -> Option<Table> {
    generate(named(name).unwrap(), Shape { stages: per_rank * ranks, ranks, microbatches }).ok()
}

/// Most microbatches of a stage that are alive at once on `rank`: from F to B or W.
fn peak(table: &Table, rank: usize) -> usize {
    let mut live = 0_usize;
    let counted = table.row(rank).iter().flat_map(|cell: &Action| cell.parts()).map(|part| {
        match part.step {
            Step::F(_) => live += 1,
            Step::B(_) | Step::W(_) => live -= 1,
            _ => {}
        }
        live
    });
    counted.max().unwrap_or(0)
}

#[test]
fn the_documented_table_has_every_schedule_and_the_numbers_of_what_is_made() {
    let lines = lines();
    assert_eq!(lines.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), known());
    for (name, cells) in lines {
        let per_rank: usize = cells[5].parse().unwrap();
        let made = table(&name, 4, per_rank, 8).unwrap();
        let peaks: Vec<_> =
            (0..4).map(|rank| (peak(&made, rank) as f64 / per_rank as f64).to_string()).collect();
        assert_eq!(peaks.join(" "), cells[6], "{name}");
        let took = simulate(&made, &Times::UNIT.of_part(per_rank)).unwrap().makespan;
        assert_eq!(took.to_string(), cells[7], "{name}");
    }
}

/// Peaks by the formulas of the table, in microbatches of one stage.
fn formula(name: &str, [ranks, per_rank, microbatches]: [usize; 3], rank: usize) -> Option<usize> {
    let after = ranks - 1 - rank;
    Some(match name {
        "GPipe" | "LoopedBFS" | "LoopedBFSReversed" => per_rank * microbatches,
        "1F1B" => microbatches.min(ranks - rank),
        "ZBH1" => microbatches.min(ranks),
        "ZBH2" => microbatches.min(2 * ranks - 1),
        "Interleaved1F1B" => ((per_rank - 1) * ranks + 2 * after + 1).min(per_rank * microbatches),
        "InterleavedZeroBubble" => ((per_rank - 1) * ranks + ranks).min(per_rank * microbatches),
        "ZBVZeroBubble" => 2 * ranks,
        "VMin" => {
            let less = match (ranks % 3, rank % 3) {
                (2, 0) if rank == 0 => 1,
                (2, 0) => 2,
                _ => 0,
            };
            2 * ((ranks + 4) / 3) - less
        }
        "VHalf" => 2 * ((ranks + 2) / 2),
        "DualPipeV" => 2 * ranks + 1,
        _ => return None,
    })
}

#[test]
fn the_documented_peaks_are_those_of_what_is_made_for_2_4_and_8_ranks() {
    for name in known() {
        let mut made = 0;
        for ranks in [2, 4, 8] {
            for per_rank in 1..=4 {
                for microbatches in [2 * ranks, 4 * ranks, 5 * ranks] {
                    let Some(table) = table(name, ranks, per_rank, microbatches) else { continue };
                    made += 1;
                    for rank in 0..ranks {
                        let says = formula(name, [ranks, per_rank, microbatches], rank);
                        assert_eq!(
                            Some(peak(&table, rank)),
                            says,
                            "{name} {ranks} x {per_rank}, {microbatches}, rank {rank}"
                        );
                    }
                }
            }
        }
        assert!(made >= 9, "{name}: {made}");
    }
}

#[test]
fn fewer_microbatches_than_ranks_never_need_more_than_all_of_them() {
    for name in known() {
        for (ranks, microbatches) in [(4, 1), (4, 3), (8, 5)] {
            let least = *named(name).unwrap().stages_per_rank().start();
            let Some(table) = table(name, ranks, least, microbatches) else { continue };
            for rank in 0..ranks {
                assert!(peak(&table, rank) <= least * microbatches, "{name}");
            }
        }
    }
}
