//! [`Posted`]: receives that a schedule has posted and that nobody has needed yet. A RECV says where a message belongs; it is
//! taken when a computation needs it, so that a rank never waits for one message while it could compute with another.
//!
//! Invariant: messages of one peer are taken in the order in which they were posted, which is the order in which it sends
//! them (rule A of `schedule::Program`): what comes before the wanted one is taken with it. That a message lies untaken while
//! its sender goes on needs room at the sender; so a runner posts only where there is room for all messages of a step, and else
//! takes each at its RECV, which rule B makes safe without any room.

use std::collections::{BTreeMap, VecDeque};

use schedule::{Program, Step};

use crate::transport::{Header, Transport};

/// Receives that were posted, by peer, in order. `K` says what the message is for.
#[derive(Debug)]
pub(super) struct Posted<K> {
    by_peer: BTreeMap<usize, VecDeque<(K, Header)>>,
}

impl<K> Default for Posted<K> {
    fn default() -> Self {
        Self { by_peer: BTreeMap::new() }
    }
}

impl<K: PartialEq> Posted<K> {
    /// Remembers a receive from `peer`.
    pub(super) fn post(&mut self, peer: usize, key: K, header: Header) {
        self.by_peer.entry(peer).or_default().push_back((key, header));
    }

    /// What has to be taken, and from whom, until `key` is there: the last is the one. Nothing if it was not posted.
    pub(super) fn until(&mut self, key: &K) -> Option<(usize, Vec<(K, Header)>)> {
        self.by_peer.iter_mut().find_map(|(peer, queue)| {
            let at = queue.iter().position(|(posted, _)| posted == key)?;
            Some((*peer, queue.drain(..=at).collect()))
        })
    }
}

/// Whether every rank has room for all messages that it sends in a step of `program`.
pub(super) fn has_room(program: &Program, transport: &dyn Transport) -> bool {
    let sends = |row: &Vec<schedule::Action>| {
        row.iter().filter(|it| matches!(it.step, Step::SendF(_) | Step::SendB(_))).count()
    };
    let most = program.table().ranks.iter().map(sends).max().unwrap_or(0);
    most <= transport.traffic().room
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Kind;

    #[test]
    fn a_message_is_taken_with_all_that_its_peer_sent_before_it() {
        let header = |microbatch| Header {
            step: 1,
            stage: 2,
            microbatch,
            kind: Kind::Forward,
            shapes: vec![],
            dtype: tch::Kind::Float,
        };
        let mut posted = Posted::default();
        for (peer, key) in [(1, 'a'), (3, 'x'), (1, 'b'), (1, 'c')] {
            posted.post(peer, key, header(0));
        }
        let keys = |found: Option<(usize, Vec<(char, Header)>)>| {
            found.map(|(peer, all)| (peer, all.into_iter().map(|(key, _)| key).collect::<String>()))
        };
        assert_eq!(keys(posted.until(&'b')), Some((1, "ab".to_owned())));
        assert_eq!(keys(posted.until(&'x')), Some((3, "x".to_owned())));
        assert_eq!(keys(posted.until(&'b')), None);
        assert_eq!(keys(posted.until(&'c')), Some((1, "c".to_owned())));
    }
}
