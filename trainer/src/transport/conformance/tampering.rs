//! Cases of messages that go wrong between two ranks: the receiver names both sides, what was due, and what came.

use std::time::{Duration, Instant};

use super::{Case, ensure, floats, refused};
use crate::{
    ErrorKind, Result,
    transport::{Fault, Header, Kind, Tamper, Transport},
};

/// A case that needs a transport with this tampering.
#[derive(Debug, Clone, Copy)]
pub struct Tampered {
    /// What goes wrong.
    pub tamper: Tamper,
    /// What the ranks do.
    pub case: Case,
}

const STEP: u64 = 7;
const SHORT: Option<Duration> = Some(Duration::from_millis(800));

pub(super) const CASES: &[Tampered] = &[
    tampered(Fault::Drop, "a lost message is named by the one that comes in its place", None, lost::<false>),
    tampered(Fault::Drop, "a lost message that was foreseen is named likewise", None, lost::<true>),
    tampered(Fault::Drop, "a lost last message is named when it does not come", SHORT, lost_last::<false>),
    tampered(Fault::Drop, "a lost last message that was foreseen is named", SHORT, lost_last::<true>),
    tampered(
        Fault::Swap,
        "a message that overtook another is named, and the other",
        None,
        overtaken::<false>,
    ),
    tampered(
        Fault::Swap,
        "a message that overtook a foreseen one is named, and that",
        None,
        overtaken::<true>,
    ),
    tampered(Fault::Cut, "a message that is cut short is named", None, cut::<false>),
    tampered(Fault::Cut, "a foreseen message that is cut short is named", None, cut::<true>),
    tampered(Fault::Shape, "a message of another shape is named with both shapes", None, reshaped::<false>),
    tampered(Fault::Shape, "a foreseen message of another shape is named", None, reshaped::<true>),
    tampered(Fault::Dtype, "a message of another dtype is named with both dtypes", None, recast::<false>),
    tampered(Fault::Dtype, "a foreseen message of another dtype is named", None, recast::<true>),
];

const fn tampered(
    fault: Fault,
    name: &'static str,
    step: Option<Duration>,
    run: fn(&dyn Transport) -> Result<()>,
) -> Tampered {
    Tampered { tamper: Tamper { rank: 0, step: STEP, fault }, case: Case { name, ranks: 2, step, run } }
}

fn header(step: u64, microbatch: usize) -> Header {
    let dtype = tch::Kind::Float;
    Header { step, stage: 3, microbatch, kind: Kind::Forward, shapes: vec![vec![4, 16]], dtype }
}

/// Rank 0 sends a message of the step before, and `count` of this step; gives what rank 1, which foresees both or not, says of the first of
/// these.
fn received<const FORESEEN: bool>(transport: &dyn Transport, count: usize) -> Result<Option<Result<()>>> {
    let tensors = [floats(1, 64)?.f_view([4_i64, 16].as_slice())?];
    if transport.rank() == 0 {
        transport.send(1, &header(STEP - 1, 0), &tensors)?;
        let sent = (0..count).try_for_each(|at| transport.send(1, &header(STEP, at), &tensors));
        // The receiver gives up, and whether the sender learns of it before it is done is up to the transport.
        let _ = sent.and_then(|()| transport.flush());
        return Ok(None);
    }
    if FORESEEN {
        [STEP - 1, STEP].into_iter().try_for_each(|step| transport.expect(0, &header(step, 0)))?;
    }
    transport.recv(0, &header(STEP - 1, 0))?;
    Ok(Some(transport.recv(0, &header(STEP, 0)).map(drop)))
}

fn told<const FORESEEN: bool>(
    transport: &dyn Transport,
    count: usize,
    kind: ErrorKind,
    more: &[&str],
) -> Result<()> {
    let Some(outcome) = received::<FORESEEN>(transport, count)? else { return Ok(()) };
    let place = ["rank 1", "rank 0", "activations of microbatch 0", "stage 3", "step 7"];
    refused(outcome, kind, &[&place, more].concat())
}

fn lost<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    let words = ["microbatch 1", "message 2, while message 1 was due", "lost"];
    told::<FORESEEN>(transport, 3, ErrorKind::Corrupt, &words)
}

fn lost_last<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 0 {
        received::<FORESEEN>(transport, 1)?;
        std::thread::sleep(Duration::from_millis(2500));
        return Ok(());
    }
    let since = Instant::now();
    told::<FORESEEN>(transport, 1, ErrorKind::Peer, &["missing: rank 0"])?;
    ensure(since.elapsed() < Duration::from_secs(10), || format!("took {:?}", since.elapsed()))
}

fn overtaken<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    told::<FORESEEN>(
        transport,
        2,
        ErrorKind::Corrupt,
        &["microbatch 1", "message 2, while message 1 was due", "overtaken"],
    )
}

fn cut<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    told::<FORESEEN>(transport, 1, ErrorKind::Corrupt, &["[[4, 16]]", "cut short"])
}

fn reshaped<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    told::<FORESEEN>(transport, 1, ErrorKind::Corrupt, &["[[4, 16]]", "[[1, 64]]"])
}

fn recast<const FORESEEN: bool>(transport: &dyn Transport) -> Result<()> {
    told::<FORESEEN>(transport, 1, ErrorKind::Corrupt, &["Float [[4, 16]]", "BFloat16 [[4, 16]]"])
}
