//! What every transport must do, as cases that run on any of them: each rank of a world runs the same function, and all
//! must come back without an error. Messages go between any two ranks: who runs the cases on a transport that wants to be told
//! announces all pairs before, by [`Transport::link`].
//!
//! Invariants: a case owns its world (the failures among them leave it broken); a case that is about time says which
//! limits it needs; nothing here knows which transport it runs on.

mod collectives;
mod failures;
mod messages;
mod tampering;

use std::{fmt, time::Duration};

use tch::Tensor;

pub use collectives::on_mesh;
pub use tampering::Tampered;

use super::Transport;
use crate::{Error, ErrorKind, Result};

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// What is true, as a sentence.
    pub name: &'static str,
    /// Ranks of its world.
    pub ranks: usize,
    /// The step limit it needs; none for the default.
    pub step: Option<Duration>,
    /// What each rank does.
    pub run: fn(&dyn Transport) -> Result<()>,
}

/// All cases of transports in `Mode::Async`.
#[must_use]
pub fn cases() -> Vec<Case> {
    [&cases_of_any_mode()[..], messages::BUFFERED, collectives::BUFFERED, failures::BUFFERED].concat()
}

/// Cases of transports in `Mode::Sync`: all that need no buffers, and what two ranks say that both send first.
#[must_use]
pub fn cases_in_sync() -> Vec<Case> {
    [&cases_of_any_mode()[..], messages::SYNC].concat()
}

fn cases_of_any_mode() -> Vec<Case> {
    [messages::CASES, collectives::CASES, failures::CASES].concat()
}

/// Cases of messages that go wrong, each with what must be done to them.
#[must_use]
pub fn tampered() -> Vec<Tampered> {
    tampering::CASES.to_vec()
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} ranks)", self.name, self.ranks)
    }
}

/// Errs with `why` unless `holds`.
fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::internal(why())) }
}

/// The error of what must fail, of `kind`, with all of `words` in its message.
fn refused<T>(outcome: Result<T>, kind: ErrorKind, words: &[&str]) -> Result<()> {
    let Err(error) = outcome else {
        return Err(Error::internal(format!("this must fail with {words:?}, and did not")));
    };
    let text = error.to_string();
    let all = words.iter().all(|word| text.contains(word));
    ensure(all && error.kind() == kind, || format!("not {kind:?} with {words:?}: {error:?}"))
}

/// Errs unless the tensors are equal in dtype, shape and every element.
fn same(what: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
    let alike = found.kind() == expected.kind() && found.size() == expected.size();
    let equal = alike && found.f_equal(expected)?;
    ensure(equal, || format!("{what}: {found:?} is not {expected:?}"))
}

/// `count` numbers from `first` on, as f32.
fn floats(first: usize, count: usize) -> Result<Tensor> {
    let values: Vec<f32> =
        (first..first + count).filter_map(|value| u16::try_from(value).ok()).map(f32::from).collect();
    Ok(Tensor::f_from_slice(&values)?)
}

/// `count` numbers from `first` on, as i64.
fn integers(first: usize, count: usize) -> Result<Tensor> {
    let values: Vec<i64> = (first..first + count).filter_map(|value| i64::try_from(value).ok()).collect();
    Ok(Tensor::f_from_slice(&values)?)
}

fn extent(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
