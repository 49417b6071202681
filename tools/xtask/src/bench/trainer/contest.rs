//! [`Contest`]: several ways to train the same model on the same tokens, in turns, and the rows that come of it.
//!
//! Every way is a process, or one for each rank, that lives as long as the measurement and does a few steps whenever it is its turn,
//! alone; in a round every way has one turn, each round beginning with another, so that a machine that slows down slows all of them.
//! One round before them does not count. Ratios are within a round.
//!
//! Invariant: a contest whose ways train models of other sizes, or whose losses go apart, gives no row.

use super::Part;
use super::row::{Relation, Row};
use super::sizes::Sizes;
use super::turns::{Answer, Turns};
use super::way::{Ground, Way};
use crate::bench::figure::Target;
use crate::bench::rounds::in_turn;
use crate::error::Error;

/// By how much losses of two ways may differ at the same step, relative: their first weights are other random numbers, and in bf16
/// they round otherwise.
const APART: f64 = 0.1;

/// Ways in turns.
#[derive(Debug)]
pub(super) struct Contest {
    pub(super) sizes: Sizes,
    /// Of a turn.
    pub(super) steps: usize,
    pub(super) ways: Vec<Way>,
}

/// What a way said, round by round.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) way: Way,
    pub(super) answers: Vec<Answer>,
}

impl Contest {
    /// One round that does not count, and `rounds` that do.
    pub(super) fn run(&self, ground: &Ground, rounds: u32) -> Result<Vec<Ran>, Error> {
        let start = |way: &Way| {
            let turns = ground.start(way, self.sizes)?;
            Ok((turns, Ran { way: way.clone(), answers: Vec::new() }))
        };
        let mut all = self.ways.iter().map(start).collect::<Result<Vec<(Turns, Ran)>, Error>>()?;
        let places: Vec<usize> = (0..all.len()).collect();
        for round in 0..=rounds {
            let mut said = Vec::new();
            for at in in_turn(&places, round as usize) {
                let Some((turns, ran)) = all.get_mut(*at) else { continue };
                let answer = turns.go(self.steps)?;
                said.push(format!("{} {:.3} ({:.3})", ran.way.name, answer.mean(), answer.used()));
                ran.answers.push(answer);
            }
            eprintln!("round {round} of {rounds}: seconds of a step (of processors): {}", said.join(", "));
        }
        let mut all: Vec<Ran> = all.into_iter().map(|(_, ran)| ran).collect();
        alike(&all)?;
        all.iter_mut().for_each(|ran| drop(ran.answers.remove(0)));
        Ok(all)
    }
}

/// That all ways did the same work: models of one size, and losses that stay together.
fn alike(all: &[Ran]) -> Result<(), Error> {
    let Some((first, others)) = all.split_first() else { return Ok(()) };
    for other in others {
        for (round, (a, b)) in first.answers.iter().zip(&other.answers).enumerate() {
            if a.parameters != b.parameters || apart(a.loss, b.loss) {
                let said = |ran: &Ran, it: &Answer| {
                    format!("{}: {} parameters, loss {:?}", ran.way.name, it.parameters, it.loss)
                };
                let what =
                    format!("comparisons of ways in round {round} ({}; {})", said(first, a), said(other, b));
                return Err(Error::Checks { count: 1, what });
            }
        }
    }
    Ok(())
}

/// Whether two ways learn otherwise. What trains nothing learns like all others.
fn apart(a: Option<f64>, b: Option<f64>) -> bool {
    let close = |(a, b): (f64, f64)| (a - b).abs() <= APART * a.abs();
    !a.zip(b).is_none_or(close)
}

/// The row that compares two ways.
pub(super) fn row(
    part: Part,
    relation: Relation,
    (ours, theirs): (&Ran, &Ran),
    target: Option<Target>,
) -> Row {
    let means = |ran: &Ran| ran.answers.iter().map(Answer::mean).collect::<Vec<_>>();
    let used = |ran: &Ran| ran.answers.iter().map(Answer::used).collect::<Vec<_>>();
    let row = Row::new(
        (part, relation),
        (ours.way.name.clone(), means(ours)),
        (theirs.way.name.clone(), means(theirs)),
        target,
    );
    row.with_processor(&used(ours), &used(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(name: &str, answers: &[(u64, f64)]) -> Ran {
        let answer = |(parameters, loss): &(u64, f64)| Answer {
            steps: vec![1.0],
            processor: 1.0,
            parameters: *parameters,
            loss: (*loss != 0.0).then_some(*loss),
            from: None,
            loading: None,
            saves: vec![],
            during_saves: 0,
        };
        Ran { way: Way::ours(name, 1, &[]), answers: answers.iter().map(answer).collect() }
    }

    #[test]
    fn ways_that_train_another_model_or_learn_otherwise_are_not_compared() {
        let ours = || ran("ours", &[(7, 5.5), (7, 4.0)]);
        assert!(alike(&[ours(), ran("close", &[(7, 5.4), (7, 4.2)])]).is_ok());
        assert!(alike(&[ours(), ran("trains nothing", &[(7, 0.0), (7, 0.0)])]).is_ok());
        let larger = alike(&[ours(), ran("larger", &[(8, 5.5), (8, 4.0)])]).unwrap_err().to_string();
        assert!(larger.contains("round 0") && larger.contains("8 parameters"), "{larger}");
        let apart = alike(&[ours(), ran("apart", &[(7, 5.5), (7, 5.0)])]).unwrap_err().to_string();
        assert!(apart.contains("round 1") && apart.contains("loss Some(5.0)"), "{apart}");
        assert!(alike(&[ours(), ran("nan", &[(7, f64::NAN), (7, 4.0)])]).is_err());
    }
}
