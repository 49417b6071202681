//! What a resume costs beside reading the checkpoint: from the start of the processes to the end of their first step, less what loading
//! took and a step takes. That holds starting libtorch, meeting the other ranks, and deciding what to go on from.

use std::time::Instant;

use super::Part;
use super::row::{Relation, Row};
use super::sizes::Sizes;
use super::turns::Turns;
use super::way::{Ground, Way, remove};
use crate::bench::figure::Target;
use crate::bench::measurement::Spread;
use crate::error::Error;

const LONGER: Target = Target::AtMost(1.0);
/// Steps that say how long a step takes.
const STEPS: usize = 2;

/// Of one process and of four, from a checkpoint of the other.
pub(super) fn rows(ground: &Ground, sizes: Sizes, rounds: u32) -> Result<Vec<Row>, Error> {
    let root = ground.folder().join("resumed");
    let ways = |interval| {
        // A part of what a run is, in exact mode: the same on both meshes.
        let microbatch = "training.micro_batch=1";
        let four = Way::ours(
            "4 x gloo: start to the end of the first step",
            4,
            &["comm.transport=gloo", microbatch],
        );
        let one = Way::ours("one process: start to the end of the first step", 1, &[microbatch]);
        (one.saving(&root, interval), four.saving(&root, interval))
    };
    let (writer_of_one, writer_of_four) = ways(1);
    let (one, four) = ways(0);
    let mut rows = Vec::new();
    for (writer, reader) in [(writer_of_four, one), (writer_of_one, four)] {
        remove(&root)?;
        write(ground, &writer, sizes)?;
        let mut measured = Vec::new();
        for round in 0..=rounds {
            let once = Once::measure(ground, &reader, sizes)?;
            eprintln!(
                "round {round} of {rounds}: {}: {:.3} s, of which loading {:.3} s and a step {:.3} s",
                reader.name, once.whole, once.loading, once.step
            );
            if round > 0 {
                measured.push(once);
            }
        }
        let whole = measured.iter().map(|once| once.whole).collect();
        let least = measured.iter().map(|once| once.loading + once.step).collect();
        let of = (Part::Resume, Relation::Longer);
        rows.push(Row::new(of, (reader.name, whole), ("loading and a step", least), Some(LONGER)));
    }
    remove(&root)?;
    Ok(rows)
}

/// A run of a few steps, saved where it ends.
fn write(ground: &Ground, writer: &Way, sizes: Sizes) -> Result<(), Error> {
    ground.start(writer, sizes)?.go(1).map(drop)
}

/// One resume, in seconds.
struct Once {
    whole: f64,
    loading: f64,
    step: f64,
}

impl Once {
    fn measure(ground: &Ground, reader: &Way, sizes: Sizes) -> Result<Self, Error> {
        let began = Instant::now();
        let mut turns = ground.start(reader, sizes)?;
        let first = turns.go(1)?;
        let whole = began.elapsed().as_secs_f64();
        let resumed = first.from.filter(|steps| *steps > 0).and(first.loading);
        let loading = resumed.ok_or_else(|| Error::Checks {
            count: 1,
            what: "resumes: the run began anew, so that nothing was loaded;".to_owned(),
        })?;
        Ok(Self { whole, loading, step: usual(&mut turns)? })
    }
}

/// A step of a run that goes on.
fn usual(turns: &mut Turns) -> Result<f64, Error> {
    Ok(Spread::of(turns.go(STEPS)?.steps).median)
}
