//! Cases of failures: late, dead, diverged and failing peers.

use std::time::{Duration, Instant};

use super::{Case, ensure, floats, integers, refused};
use crate::{
    ErrorKind, Result,
    transport::{Header, Kind, Purpose, Transport},
};

const SHORT: Option<Duration> = Some(Duration::from_millis(600));
const LONG: Option<Duration> = Some(Duration::from_secs(60));
/// How soon "at once" is, on a machine that does other things too.
const SOON: Duration = Duration::from_secs(10);

pub(super) const CASES: &[Case] = &[
    Case { name: "a member that does not come is named within the limit", ranks: 3, step: SHORT, run: stuck },
    Case {
        name: "a member that does not come to a gather is named by who begins and takes it",
        ranks: 3,
        step: SHORT,
        run: stuck_gather,
    },
    Case {
        name: "a message that does not come ends in an error within the limit",
        ranks: 2,
        step: SHORT,
        run: silent,
    },
    Case {
        name: "a flush that nobody takes ends in an error within the limit",
        ranks: 2,
        step: SHORT,
        run: untaken,
    },
    Case { name: "a peer that is gone ends a collective at once", ranks: 3, step: LONG, run: gone },
    Case { name: "a peer that is gone ends a receive at once", ranks: 2, step: LONG, run: gone_sender },
    Case { name: "a rank that aborts ends the waits of all others", ranks: 3, step: LONG, run: aborts },
    Case { name: "members with different purposes are both named", ranks: 2, step: LONG, run: purposes },
    Case { name: "a part that is not as announced is refused", ranks: 2, step: LONG, run: belied },
    Case { name: "misuse is refused before anything is sent", ranks: 2, step: LONG, run: misuse },
    Case { name: "the scene tells the last actions and the failure", ranks: 2, step: SHORT, run: scene },
];

pub(super) const BUFFERED: &[Case] = &[Case {
    name: "a rank that aborts with messages under way ends the waits for it",
    ranks: 3,
    step: LONG,
    run: aborts_sending,
}];

fn purpose(text: &str) -> Purpose {
    Purpose(text.to_owned())
}

fn all(transport: &dyn Transport) -> Vec<usize> {
    (0..transport.size()).collect()
}

fn header(microbatch: usize) -> Header {
    let dtype = tch::Kind::Float;
    Header { step: 2, stage: 1, microbatch, kind: Kind::Forward, shapes: vec![vec![4]], dtype }
}

fn within(since: Instant, limit: Duration) -> Result<()> {
    ensure(since.elapsed() < limit, || format!("took {:?}, not within {limit:?}", since.elapsed()))
}

fn stuck(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("dp", &all(transport))?;
    let _ = group.all_reduce(&purpose("warm-up"), integers(1, 1)?)?;
    let since = Instant::now();
    if transport.rank() == 2 {
        transport.note(&"computing for too long");
        std::thread::sleep(Duration::from_millis(2500));
        return Ok(());
    }
    let outcome = group.all_reduce(&purpose("gradients"), integers(1, 1)?);
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["gradients", "dp", "rank 2"])
}

fn stuck_gather(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("dp", &all(transport))?;
    let gather = |what: &str| {
        let mine = floats(group.index(), 6000)?;
        group.begin_all_gather(&purpose(what), &mine, &vec![vec![6000]; 3])?.take()
    };
    gather("warm-up")?;
    let since = Instant::now();
    if transport.rank() == 2 {
        std::thread::sleep(Duration::from_millis(2500));
        return Ok(());
    }
    let outcome = gather("weights of part 3");
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["weights of part 3", "dp", "rank 2"])
}

fn silent(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 0 {
        std::thread::sleep(Duration::from_millis(2000));
        return Ok(());
    }
    let since = Instant::now();
    let outcome = transport.recv(0, &header(3));
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["microbatch 3", "rank 0"])
}

fn untaken(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 1 {
        std::thread::sleep(Duration::from_millis(2000));
        return Ok(());
    }
    let since = Instant::now();
    let outcome = transport.send(1, &header(3), &[floats(0, 4)?]).and_then(|()| transport.flush());
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["rank 1"])
}

fn gone(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("tp", &all(transport))?;
    group.barrier(&purpose("warm-up"))?;
    if transport.rank() == 1 {
        return Ok(());
    }
    let since = Instant::now();
    let outcome = group.all_reduce(&purpose("logits"), integers(1, 1)?);
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["rank"])
}

fn gone_sender(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 0 {
        return Ok(());
    }
    let since = Instant::now();
    let outcome = transport.recv(0, &header(0));
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["rank 0"])
}

fn aborts(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &all(transport))?;
    let warm = group.barrier(&purpose("warm-up"));
    if transport.rank() == 2 {
        warm?;
        transport.abort(&"the loss is not finite");
        // It lingers, as a rank that still writes its scene does.
        std::thread::sleep(Duration::from_millis(500));
        return Ok(());
    }
    let since = Instant::now();
    // Who is slow to leave the warm-up meets the failure there.
    let outcome = warm.and_then(|()| match transport.rank() {
        0 => group.barrier(&purpose("step")),
        _ => transport.recv(2, &header(0)).map(drop),
    });
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["rank 2", "the loss is not finite"])
}

fn aborts_sending(transport: &dyn Transport) -> Result<()> {
    let pause = Duration::from_millis(800);
    if transport.rank() == 0 {
        transport.send(2, &header(0), &[floats(0, 4)?])?;
        transport.abort(&"the disk is full");
        std::thread::sleep(pause);
        return Ok(());
    }
    if transport.rank() == 2 {
        std::thread::sleep(pause);
        return Ok(());
    }
    let since = Instant::now();
    let outcome = transport.recv(0, &header(0));
    within(since, SOON)?;
    refused(outcome, ErrorKind::Peer, &["rank 0", "the disk is full"])
}

fn purposes(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("tp", &all(transport))?;
    let mine = format!("layer {}", transport.rank());
    let outcome = group.all_gather_bytes(&purpose(&mine), b"x");
    // Whichever notices says both; the other may only learn that the first has failed, which quotes it.
    let text = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
    ensure(text.contains("layer 0") && text.contains("layer 1"), || format!("{outcome:?}"))
}

fn belied(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("tp", &all(transport))?;
    let me = transport.rank();
    let shapes = if me == 0 { vec![vec![2], vec![3]] } else { vec![vec![2], vec![4]] };
    let outcome = group.all_gather(&purpose("layer"), &floats(0, 2 + 2 * me)?, &shapes);
    if me == 0 { refused(outcome, ErrorKind::Corrupt, &["layer", "rank 1", "rank 0"]) } else { Ok(()) }
}

fn misuse(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 1 {
        return Ok(());
    }
    let group = transport.group("self", &[0])?;
    let doubles = floats(0, 2)?.f_to_kind(tch::Kind::Double)?;
    refused(group.all_gather(&purpose("x"), &doubles, &[vec![2]]), ErrorKind::Internal, &["Double"])
}

fn scene(transport: &dyn Transport) -> Result<()> {
    if transport.rank() == 0 {
        std::thread::sleep(Duration::from_millis(2000));
        return Ok(());
    }
    transport.note(&"F3 of stage 1");
    refused(transport.recv(0, &header(4)), ErrorKind::Peer, &["rank 0"])?;
    let scene = transport.scene();
    let whole =
        scene.contains("F3 of stage 1") && scene.contains("failed at") && scene.contains("microbatch 4");
    ensure(whole, || scene)
}
