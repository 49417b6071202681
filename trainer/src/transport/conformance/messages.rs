//! Cases of messages between two ranks.

use std::time::{Duration, Instant};

use tch::{Device, Kind as Dtype, Tensor};

use super::{Case, ensure, floats, refused, same};
use crate::{
    ErrorKind, Result,
    transport::{Count, DTYPES, Header, Kind, Transport},
};

pub(super) const CASES: &[Case] = &[
    Case { name: "messages arrive in the order they were sent", ranks: 2, step: None, run: order },
    Case { name: "several tensors and empty ones arrive as one message", ranks: 2, step: None, run: several },
    Case { name: "a header of any length arrives", ranks: 2, step: None, run: long_header },
    Case { name: "a message without tensors arrives", ranks: 2, step: None, run: bare },
    Case { name: "a chain of stages passes microbatches both ways", ranks: 4, step: None, run: chain },
    Case { name: "many messages may be in flight", ranks: 2, step: None, run: many },
    Case {
        name: "foreseen messages are taken in whatever order their senders allow",
        ranks: 3,
        step: None,
        run: foreseen,
    },
    Case {
        name: "a foreseen message that nobody sends keeps nobody from leaving",
        ranks: 2,
        step: None,
        run: never_sent,
    },
    Case {
        name: "an unexpected message is refused and both are named",
        ranks: 2,
        step: None,
        run: unexpected,
    },
    Case {
        name: "a longer message than expected is refused, not written",
        ranks: 2,
        step: None,
        run: longer,
    },
    Case { name: "a message that its header belies is not sent", ranks: 2, step: None, run: belied },
    Case { name: "there is no message to oneself or outside", ranks: 2, step: None, run: outside },
    Case { name: "after a flush the sender may change what it sent", ranks: 2, step: None, run: changed },
    Case { name: "messages carry every dtype", ranks: 2, step: None, run: dtypes },
    Case { name: "messages do not pile up before a slow receiver", ranks: 2, step: None, run: piling },
];

pub(super) const BUFFERED: &[Case] =
    &[Case { name: "both directions of a pair are independent", ranks: 2, step: None, run: crossing }];

pub(super) const SYNC: &[Case] = &[
    Case { name: "a send in sync mode returns when the message is taken", ranks: 2, step: None, run: taken },
    Case {
        name: "two ranks that both send first in sync mode are named as waiting for each other",
        ranks: 2,
        step: Some(Duration::from_millis(800)),
        run: both_first,
    },
];

fn header(microbatch: usize, kind: Kind, tensors: &[Tensor]) -> Header {
    let dtype = tensors.first().map_or(Dtype::Float, Tensor::kind);
    let shapes = tensors.iter().map(Tensor::size).collect();
    Header { step: 7, stage: 1, microbatch, kind, shapes, dtype }
}

fn dtypes(transport: &dyn Transport) -> Result<()> {
    for (microbatch, dtype) in DTYPES.into_iter().enumerate() {
        let tensors = [floats(1, 33)?.f_to_kind(dtype)?, floats(0, 0)?.f_to_kind(dtype)?];
        let header = header(microbatch, Kind::Backward, &tensors);
        if transport.rank() == 0 {
            transport.send(1, &header, &tensors)?;
        } else {
            let found = transport.recv(0, &header)?;
            found.iter().zip(&tensors).try_for_each(|(found, it)| same("message", found, it))?;
        }
    }
    transport.flush()
}

/// The sender is held back, so what is under way stays within what the transport has room for.
fn piling(transport: &dyn Transport) -> Result<()> {
    const MESSAGES: usize = 120;
    let tensors = [floats(1, 1024)?];
    for microbatch in 0..MESSAGES {
        let header = header(microbatch, Kind::Forward, &tensors);
        if transport.rank() == 0 {
            transport.send(1, &header, &tensors)?;
            let now = transport.traffic();
            ensure(now.under_way <= now.room, || format!("message {microbatch}: {now:?}"))?;
        } else {
            std::thread::sleep(Duration::from_millis(1));
            transport.recv(0, &header)?;
        }
    }
    transport.flush()?;
    let end = transport.traffic();
    let (moved, idle) =
        if transport.rank() == 0 { (end.sent, end.received) } else { (end.received, end.sent) };
    let right = moved == Count { messages: 120, bytes: 120 * 4096 } && idle == Count::default();
    ensure(right && end.under_way == 0, || format!("{end:?}"))?;
    let held = transport.rank() == 1 || (end.peak_under_way <= end.room.max(1) && end.held_back > 0);
    ensure(held, || format!("{end:?}"))
}

fn taken(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 8)?];
    let header = header(0, Kind::Forward, &tensors);
    let pause = Duration::from_millis(150);
    if transport.rank() == 1 {
        std::thread::sleep(pause);
        return transport.recv(0, &header).map(drop);
    }
    let since = Instant::now();
    transport.send(1, &header, &tensors)?;
    let took = since.elapsed();
    ensure(took >= pause * 9 / 10, || format!("returned after {took:?}"))?;
    ensure(transport.traffic().under_way == 0, || format!("{:?}", transport.traffic()))
}

fn both_first(transport: &dyn Transport) -> Result<()> {
    let (tensors, peer) = ([floats(1, 8)?], 1 - transport.rank());
    let header = header(0, Kind::Forward, &tensors);
    let words = ["microbatch 0", "to take", &format!("rank {peer}")];
    refused(transport.send(peer, &header, &tensors), ErrorKind::Peer, &words)
}

fn order(transport: &dyn Transport) -> Result<()> {
    for microbatch in 0..20 {
        let tensors = [floats(microbatch * 10, microbatch + 1)?];
        let header = header(microbatch, Kind::Forward, &tensors);
        if transport.rank() == 0 {
            transport.send(1, &header, &tensors)?;
        } else {
            let found = transport.recv(0, &header)?;
            ensure(found.len() == 1, || format!("{} tensors", found.len()))?;
            same("message", &found[0], &tensors[0])?;
        }
    }
    transport.flush()
}

/// Ranks 1 and 2 send to rank 0, which has foreseen all but the last of each, and takes those of rank 2 first.
fn foreseen(transport: &dyn Transport) -> Result<()> {
    const MESSAGES: usize = 5;
    let tensors = |from: usize, microbatch: usize| -> Result<[Tensor; 2]> {
        Ok([floats(from * 100 + microbatch, 30 + microbatch)?, floats(0, 0)?])
    };
    let due = |from: usize, microbatch: usize| -> Result<Header> {
        Ok(header(microbatch, Kind::Forward, &tensors(from, microbatch)?))
    };
    if transport.rank() > 0 {
        for microbatch in 0..MESSAGES {
            let tensors = tensors(transport.rank(), microbatch)?;
            transport.send(0, &header(microbatch, Kind::Forward, &tensors), &tensors)?;
        }
        return transport.flush();
    }
    for microbatch in 0..MESSAGES - 1 {
        [1, 2].into_iter().try_for_each(|from| transport.expect(from, &due(from, microbatch)?))?;
    }
    for from in [2, 1] {
        for microbatch in 0..MESSAGES {
            let found = transport.recv(from, &due(from, microbatch)?)?;
            ensure(found.len() == 2, || format!("{} tensors", found.len()))?;
            let sent = tensors(from, microbatch)?;
            found.iter().zip(&sent).try_for_each(|(found, sent)| same("message", found, sent))?;
        }
    }
    transport.flush()
}

fn never_sent(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 64)?];
    let mine = header(0, Kind::Forward, &tensors);
    let peer = 1 - transport.rank();
    if transport.rank() == 0 {
        transport.send(peer, &mine, &tensors)?;
    } else {
        transport.recv(peer, &mine)?;
    }
    transport.expect(peer, &header(1, Kind::Backward, &tensors))?;
    transport.flush()
}

fn several(transport: &dyn Transport) -> Result<()> {
    let empty = Tensor::f_zeros([3, 0, 2], (Dtype::Float, Device::Cpu))?;
    let scalar = Tensor::f_scalar_tensor(4.5, (Dtype::Float, Device::Cpu))?;
    // A transpose: its elements are not in the order of its memory.
    let turned = floats(0, 6)?.f_view([2_i64, 3].as_slice())?.f_transpose(0, 1)?;
    let tensors = [floats(3, 4)?, empty, scalar, turned];
    let header = header(0, Kind::Backward, &tensors);
    if transport.rank() == 0 {
        transport.send(1, &header, &tensors)?;
        return transport.flush();
    }
    let found = transport.recv(0, &header)?;
    ensure(found.len() == tensors.len(), || format!("{} tensors", found.len()))?;
    found.iter().zip(&tensors).try_for_each(|(found, expected)| same("message", found, expected))
}

fn long_header(transport: &dyn Transport) -> Result<()> {
    let tensor =
        |index: usize| -> Result<Tensor> { Ok(floats(index, 2)?.f_view([1_i64, 1, 1, 2].as_slice())?) };
    let tensors = (0..200).map(tensor).collect::<Result<Vec<_>>>()?;
    let header = header(1, Kind::Forward, &tensors);
    if transport.rank() == 0 {
        transport.send(1, &header, &tensors)?;
        return transport.flush();
    }
    let found = transport.recv(0, &header)?;
    found.iter().zip(&tensors).try_for_each(|(found, expected)| same("message", found, expected))
}

fn bare(transport: &dyn Transport) -> Result<()> {
    let header = header(5, Kind::Forward, &[]);
    if transport.rank() == 0 {
        transport.send(1, &header, &[])?;
        return transport.flush();
    }
    transport.recv(0, &header).and_then(|found| ensure(found.is_empty(), || format!("{found:?}")))
}

fn crossing(transport: &dyn Transport) -> Result<()> {
    let (me, peer) = (transport.rank(), 1 - transport.rank());
    for microbatch in 0..4 {
        let tensors = [floats(me * 100 + microbatch, 1000)?];
        transport.send(peer, &header(microbatch, Kind::Forward, &tensors), &tensors)?;
    }
    for microbatch in 0..4 {
        let expected = [floats(peer * 100 + microbatch, 1000)?];
        let found = transport.recv(peer, &header(microbatch, Kind::Forward, &expected))?;
        same("message", &found[0], &expected[0])?;
    }
    transport.flush()
}

fn chain(transport: &dyn Transport) -> Result<()> {
    let (me, last) = (transport.rank(), transport.size() - 1);
    for microbatch in 0..3 {
        if me > 0 {
            let expected = [floats(microbatch + me - 1, 8)?];
            let found = transport.recv(me - 1, &header(microbatch, Kind::Forward, &expected))?;
            same("activations", &found[0], &expected[0])?;
        }
        if me < last {
            let tensors = [floats(microbatch + me, 8)?];
            transport.send(me + 1, &header(microbatch, Kind::Forward, &tensors), &tensors)?;
            let expected = [floats(microbatch + 10 * (me + 1), 8)?];
            let found = transport.recv(me + 1, &header(microbatch, Kind::Backward, &expected))?;
            same("gradients", &found[0], &expected[0])?;
        }
        if me > 0 {
            let tensors = [floats(microbatch + 10 * me, 8)?];
            transport.send(me - 1, &header(microbatch, Kind::Backward, &tensors), &tensors)?;
        }
    }
    transport.flush()
}

fn many(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 256)?];
    for microbatch in 0..200 {
        let header = header(microbatch, Kind::Forward, &tensors);
        if transport.rank() == 0 {
            transport.send(1, &header, &tensors)?;
        } else {
            same("message", &transport.recv(0, &header)?[0], &tensors[0])?;
        }
    }
    transport.flush()
}

fn unexpected(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 4)?];
    if transport.rank() == 0 {
        // Whether the sender learns of it is up to the transport; it must not hang.
        let sent = transport.send(1, &header(3, Kind::Forward, &tensors), &tensors);
        let _ = sent.and_then(|()| transport.flush());
        return Ok(());
    }
    let outcome = transport.recv(0, &header(4, Kind::Backward, &tensors));
    let words = ["gradients of microbatch 4", "activations of microbatch 3", "rank 1", "rank 0"];
    refused(outcome, ErrorKind::Corrupt, &words)
}

fn longer(transport: &dyn Transport) -> Result<()> {
    let (sent, expected) = ([floats(1, 4096)?], [floats(1, 4)?]);
    if transport.rank() == 0 {
        let outcome = transport.send(1, &header(3, Kind::Forward, &sent), &sent);
        let _ = outcome.and_then(|()| transport.flush());
        return Ok(());
    }
    let outcome = transport.recv(0, &header(3, Kind::Forward, &expected));
    refused(outcome, ErrorKind::Corrupt, &["[[4]]", "[[4096]]"])
}

fn belied(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 4)?];
    let other = header(0, Kind::Forward, &[floats(1, 5)?]);
    if transport.rank() == 0 {
        return refused(transport.send(1, &other, &tensors), ErrorKind::Internal, &["[4]", "[[5]]"]);
    }
    Ok(())
}

fn outside(transport: &dyn Transport) -> Result<()> {
    let tensors = [floats(1, 4)?];
    let header = header(0, Kind::Forward, &tensors);
    if transport.rank() == 0 {
        refused(transport.send(2, &header, &tensors), ErrorKind::Internal, &["no peer 2"])?;
    } else {
        let outcome = transport.recv(1, &header);
        let known = outcome
            .as_ref()
            .is_err_and(|error| matches!(error.kind(), ErrorKind::Internal | ErrorKind::Peer));
        ensure(known, || format!("a rank has no peer in itself: {outcome:?}"))?;
    }
    Ok(())
}

fn changed(transport: &dyn Transport) -> Result<()> {
    let mut tensors = [floats(1, 64)?];
    let header = header(0, Kind::Forward, &tensors);
    if transport.rank() == 0 {
        transport.send(1, &header, &tensors)?;
        transport.flush()?;
        let _ = tensors[0].f_zero_()?;
        transport.send(1, &header, &tensors)?;
        return transport.flush();
    }
    let first = transport.recv(0, &header)?;
    let second = transport.recv(0, &header)?;
    same("first", &first[0], &tensors[0])?;
    same("second", &second[0], &tensors[0].f_zeros_like()?)
}
