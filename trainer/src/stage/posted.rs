//! [`Posted`]: receives that a schedule has posted and that nobody has needed yet. A RECV says where a message belongs, so that the
//! transport can bring it meanwhile ([`Transport::expect`]); it is taken when a computation needs it, so that a rank never waits for
//! one message while it could compute with another.
//!
//! Invariant: messages of one peer are taken in the order in which they were posted, which is the order in which it sends
//! them (rule A of `schedule::Program`): what comes before the wanted one is taken with it. That a message lies untaken while
//! its sender goes on needs room at the sender; so a runner posts only where there is room for all messages of a step, and else
//! takes each at its RECV, which rule B makes safe without any room.

use std::collections::{BTreeMap, VecDeque};

use schedule::{Action, Program, Step};

use crate::transport::{Header, Kind, Transport};

/// What a message between stages is: for which stage, what, of which microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Letter {
    pub(super) stage: usize,
    pub(super) kind: Kind,
    pub(super) microbatch: usize,
}

impl Letter {
    /// What `action`, no composite, takes from another stage; whether that is on another rank is the placement's to say.
    pub(super) const fn needed_by(action: Action) -> Option<Self> {
        let stage = action.stage;
        match action.step {
            Step::F(microbatch) => Some(Self { stage, kind: Kind::Forward, microbatch }),
            Step::I(microbatch) | Step::B(microbatch) => {
                Some(Self { stage, kind: Kind::Backward, microbatch })
            }
            _ => None,
        }
    }

    /// The action that receives it.
    pub(super) const fn receive(self) -> Action {
        Action::new(
            self.stage,
            match self.kind {
                Kind::Forward => Step::RecvF(self.microbatch),
                Kind::Backward => Step::RecvB(self.microbatch),
            },
        )
    }
}

/// Receives that were posted, by peer, in order.
#[derive(Debug, Default)]
pub(super) struct Posted {
    by_peer: BTreeMap<usize, VecDeque<(Letter, Header)>>,
}

impl Posted {
    /// Remembers a receive from `peer`.
    pub(super) fn post(&mut self, peer: usize, letter: Letter, header: Header) {
        self.by_peer.entry(peer).or_default().push_back((letter, header));
    }

    /// What has to be taken, and from whom, until `letter` is there: the last is the one. Nothing if it was not posted.
    pub(super) fn until(&mut self, letter: Letter) -> Option<(usize, Vec<(Letter, Header)>)> {
        self.by_peer.iter_mut().find_map(|(peer, queue)| {
            let at = queue.iter().position(|(posted, _)| *posted == letter)?;
            Some((*peer, queue.drain(..=at).collect()))
        })
    }

    /// The first that nobody has needed, if there is one.
    pub(super) fn left(&self) -> Option<Letter> {
        self.by_peer.values().flatten().next().map(|(letter, _)| *letter)
    }
}

/// Whether every rank has room for all messages that it sends in a step of `program`.
pub(super) fn has_room(program: &Program, transport: &dyn Transport) -> bool {
    let sends = |row: &Vec<Action>| {
        row.iter().filter(|it| matches!(it.step, Step::SendF(_) | Step::SendB(_))).count()
    };
    let most = program.table().ranks.iter().map(sends).max().unwrap_or(0);
    most <= transport.traffic().room
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(stage: usize, microbatch: usize) -> Letter {
        Letter { stage, kind: Kind::Forward, microbatch }
    }

    #[test]
    fn a_message_is_taken_with_all_that_its_peer_sent_before_it() {
        let header = |letter: Letter| Header {
            step: 1,
            stage: letter.stage,
            microbatch: letter.microbatch,
            kind: letter.kind,
            shapes: vec![],
            dtype: tch::Kind::Float,
        };
        let mut posted = Posted::default();
        for (peer, stage, microbatch) in [(1, 2, 0), (3, 5, 0), (1, 2, 1), (1, 2, 2)] {
            posted.post(peer, letter(stage, microbatch), header(letter(stage, microbatch)));
        }
        let mut taken = |stage, microbatch| {
            let (peer, all) = posted.until(letter(stage, microbatch))?;
            Some((
                peer,
                all.iter().map(|(it, header)| (it.microbatch, header.microbatch)).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(taken(2, 1), Some((1, vec![(0, 0), (1, 1)])));
        assert_eq!(taken(5, 0), Some((3, vec![(0, 0)])));
        assert_eq!(taken(2, 1), None);
        assert_eq!(posted.left(), Some(letter(2, 2)));
        assert!(posted.until(letter(2, 2)).is_some() && posted.left().is_none());
    }

    #[test]
    fn computations_need_what_the_receive_before_them_brings() {
        for (computes, receives) in [("2F3", "2RECV_F3"), ("2I3", "2RECV_B3"), ("2B3", "2RECV_B3")] {
            let letter = Letter::needed_by(computes.parse().unwrap()).unwrap();
            assert_eq!(letter.receive().to_string(), receives);
        }
        for none in ["2W3", "2SEND_F3", "2UNSHARD"] {
            assert_eq!(Letter::needed_by(none.parse().unwrap()), None);
        }
    }
}
