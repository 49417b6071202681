//! A transport of channels between threads, with a time limit, that can lose a message.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use tch::Tensor;

use crate::{
    Error, ErrorKind, Result,
    transport::{Group, Header, Traffic, Transport},
};

type Message = (Header, Vec<Tensor>);

pub(super) struct Wire {
    rank: usize,
    size: usize,
    to: BTreeMap<usize, Sender<Message>>,
    from: BTreeMap<usize, Receiver<Message>>,
    /// Which of this rank's messages never arrives.
    pub(super) loses: Option<usize>,
    /// How many messages may be under way, as it says.
    pub(super) room: usize,
    /// Which of this rank's messages waits for another rank's first one, and who tells.
    pub(super) holds: Option<(usize, Receiver<()>)>,
    /// Whom this rank tells when it sends.
    pub(super) frees: Option<Sender<()>>,
    sent: RefCell<Vec<Header>>,
    notes: RefCell<Vec<String>>,
}

/// One end for each rank.
pub(super) fn wires(size: usize) -> Vec<Wire> {
    let end = |rank| {
        let (to, from) = (BTreeMap::new(), BTreeMap::new());
        let (sent, notes) = (RefCell::default(), RefCell::default());
        Wire { rank, size, to, from, loses: None, room: 0, holds: None, frees: None, sent, notes }
    };
    let mut ends: Vec<_> = (0..size).map(end).collect();
    for from in 0..size {
        for to in (0..size).filter(|to| *to != from) {
            let (sender, receiver) = channel();
            ends[from].to.insert(to, sender);
            ends[to].from.insert(from, receiver);
        }
    }
    ends
}

impl Transport for Wire {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn group(&self, name: &str, _: &[usize]) -> Result<Rc<dyn Group>> {
        Err(Error::internal(format!("no group {name} on this wire")))
    }

    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        if tensors.iter().any(Tensor::requires_grad) {
            return Err(Error::internal("what is sent is part of a graph"));
        }
        let shapes: Vec<_> = tensors.iter().map(Tensor::size).collect();
        assert_eq!(shapes, header.shapes, "the header is not what is sent");
        let turn = self.sent.borrow().len();
        self.sent.borrow_mut().push(header.clone());
        if self.loses == Some(turn) {
            return Ok(());
        }
        if let Some((_, told)) = self.holds.as_ref().filter(|(held, _)| *held == turn) {
            let waited = told.recv_timeout(Duration::from_secs(20));
            waited.map_err(|_| Error::new(ErrorKind::Peer, "nobody sent what this message waits for"))?;
        }
        if let Some(frees) = &self.frees {
            // Who was told before may be gone.
            let _ = frees.send(());
        }
        let copies = tensors.iter().map(Tensor::copy).collect();
        let sent = self.to[&to].send((header.clone(), copies));
        sent.map_err(|_| Error::new(ErrorKind::Peer, format!("rank {to} is gone")))
    }

    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        match self.from[&from].recv_timeout(Duration::from_secs(20)) {
            Ok((header, tensors)) if header == *expect => Ok(tensors),
            Ok((header, _)) => {
                let text = format!("rank {from} sent {header:?} where {expect:?} is expected");
                Err(Error::new(ErrorKind::Corrupt, text))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(ErrorKind::Peer, format!("rank {from} is gone")))
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::new(ErrorKind::Peer, format!("rank {from} did not send {expect:?} in time")))
            }
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        Traffic { room: self.room, ..Traffic::default() }
    }

    fn note(&self, action: &dyn fmt::Display) {
        self.notes.borrow_mut().push(action.to_string());
    }

    fn scene(&self) -> String {
        self.notes.borrow().join(" ")
    }
}
