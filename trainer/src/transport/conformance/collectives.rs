//! Cases of collectives.

use tch::{Device, Kind as Dtype, Tensor};

use super::{Case, ensure, extent, floats, integers, same};
use crate::{
    Result,
    mesh::{Axis, MeshShape},
    transport::{Gathering, Group, Purpose, Transport},
};

pub(super) const CASES: &[Case] = &[
    Case { name: "all_gather takes uneven and empty shapes", ranks: 4, step: None, run: uneven },
    Case { name: "all_gather of nothing gives nothing", ranks: 3, step: None, run: nothing },
    Case { name: "all_gather carries i64", ranks: 3, step: None, run: integral },
    Case { name: "what was gathered survives the next collective", ranks: 3, step: None, run: survives },
    Case { name: "exchange takes uneven and empty parts", ranks: 4, step: None, run: exchange },
    Case { name: "all_reduce sums f32 and i64", ranks: 4, step: None, run: reduce },
    Case { name: "bytes of different lengths are gathered", ranks: 4, step: None, run: bytes },
    Case { name: "long and short bytes may follow each other", ranks: 3, step: None, run: long_bytes },
    Case { name: "a barrier lets nobody pass before all have come", ranks: 3, step: None, run: barrier },
    Case { name: "a group of one is alone", ranks: 2, step: None, run: alone },
    Case { name: "a large part is gathered whole", ranks: 2, step: None, run: large },
    Case { name: "all groups of a mesh work side by side", ranks: 8, step: None, run: mesh },
    Case { name: "bf16 is gathered, exchanged and summed", ranks: 2, step: None, run: halves },
    Case {
        name: "gathers that were begun are taken in any order, with other collectives in between",
        ranks: 3,
        step: None,
        run: begun,
    },
    Case { name: "a gather that was begun may be dropped untaken", ranks: 3, step: None, run: dropped },
];

pub(super) const BUFFERED: &[Case] =
    &[Case { name: "messages and collectives do not disturb each other", ranks: 4, step: None, run: mixed }];

fn purpose(text: &str) -> Purpose {
    Purpose(text.to_owned())
}

fn world(transport: &dyn Transport) -> Vec<usize> {
    (0..transport.size()).collect()
}

fn uneven(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let part = |rank: usize| -> Result<Tensor> {
        Ok(floats(rank * 10, rank * 2)?.f_view([extent(rank), 2].as_slice())?)
    };
    let parts = (0..4).map(part).collect::<Result<Vec<Tensor>>>()?;
    let shapes: Vec<_> = parts.iter().map(Tensor::size).collect();
    let found = group.all_gather(&purpose("weights"), &parts[group.index()], &shapes)?;
    ensure(found.len() == 4, || format!("{} parts", found.len()))?;
    found.iter().zip(&parts).try_for_each(|(found, part)| same("gathered", found, part))
}

fn nothing(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let mine = Tensor::f_zeros([0, 5], (Dtype::Float, Device::Cpu))?;
    let found = group.all_gather(&purpose("empty"), &mine, &vec![vec![0, 5]; 3])?;
    ensure(found.len() == 3, || format!("{} parts", found.len()))?;
    found.iter().try_for_each(|found| same("gathered", found, &mine))
}

fn integral(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let large = 1_usize << 53;
    let part = |rank: usize| integers(large + rank, rank + 1);
    let shapes: Vec<_> = (0..3).map(|rank| vec![extent(rank + 1)]).collect();
    let found = group.all_gather(&purpose("counts"), &part(group.index())?, &shapes)?;
    (0..3).try_for_each(|rank| same("gathered", &found[rank], &part(rank)?))
}

fn survives(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let gather = |round: usize| {
        group.all_gather(&purpose("round"), &floats(round * 10 + group.index(), 3)?, &vec![vec![3]; 3])
    };
    let (first, second) = (gather(0)?, gather(1)?);
    (0..3).try_for_each(|rank| {
        same("first", &first[rank], &floats(rank, 3)?)?;
        same("second", &second[rank], &floats(10 + rank, 3)?)
    })
}

/// What `from` gives to `to`: nothing where they are equal modulo 3.
fn part(from: usize, to: usize) -> Result<Tensor> {
    floats(from * 100 + to, (from + 2 * to) % 3 * 4)
}

fn exchange(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let me = group.index();
    for round in 0..3 {
        let parts = (0..4).map(|to| part(me, to)).collect::<Result<Vec<_>>>()?;
        let expected = (0..4).map(|from| part(from, me)).collect::<Result<Vec<_>>>()?;
        let shapes: Vec<_> = expected.iter().map(Tensor::size).collect();
        let found = group.exchange(&purpose(&format!("round {round}")), parts, &shapes)?;
        ensure(found.len() == 4, || format!("{} parts", found.len()))?;
        found.iter().zip(&expected).try_for_each(|(found, part)| same("exchanged", found, part))?;
    }
    Ok(())
}

fn reduce(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let found = group.all_reduce(&purpose("loss"), floats(group.index(), 3)?)?;
    same("sum", &found, &Tensor::f_from_slice(&[6.0_f32, 10.0, 14.0])?)?;
    let found = group.all_reduce(&purpose("tokens"), integers(group.index() << 40, 1)?)?;
    same("sum", &found, &integers(6 << 40, 1)?)?;
    let empty = Tensor::f_zeros([0], (Dtype::Float, Device::Cpu))?;
    same("sum", &group.all_reduce(&purpose("nothing"), empty.shallow_clone())?, &empty)
}

fn halves(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    // Small parts ride in frames, large ones do not.
    for count in [3, 5000] {
        let part = |rank: usize| -> Result<Tensor> {
            Ok(Tensor::f_full(
                [extent(count)],
                if rank == 0 { 1.5 } else { 2.5 },
                (Dtype::BFloat16, Device::Cpu),
            )?)
        };
        let (mine, shapes) = (part(group.index())?, vec![vec![extent(count)]; 2]);
        let found = group.all_gather(&purpose("weights"), &mine, &shapes)?;
        (0..2).try_for_each(|rank| same("gathered", &found[rank], &part(rank)?))?;
        let found =
            group.exchange(&purpose("parts"), vec![mine.shallow_clone(), mine.shallow_clone()], &shapes)?;
        (0..2).try_for_each(|rank| same("exchanged", &found[rank], &part(rank)?))?;
        let sum = group.all_reduce(&purpose("sum"), mine)?;
        same("sum", &sum, &Tensor::f_full([extent(count)], 4.0, (Dtype::BFloat16, Device::Cpu))?)?;
    }
    Ok(())
}

/// A group, and gathers of uneven parts on it: small ones ride in frames, large ones do not.
struct Gathers<'a> {
    group: &'a dyn Group,
    count: usize,
}

impl Gathers<'_> {
    fn part(&self, round: usize, member: usize) -> Result<Tensor> {
        floats(100 * round + 10 * member, self.count + member)
    }

    fn begin(&self, round: usize) -> Result<Gathering> {
        let shapes: Vec<_> = (0..self.group.size()).map(|member| vec![extent(self.count + member)]).collect();
        let mine = self.part(round, self.group.index())?;
        self.group.begin_all_gather(&purpose(&format!("weights {round}")), &mine, &shapes)
    }

    fn take(&self, round: usize, begun: Gathering) -> Result<()> {
        let found = begun.take()?;
        ensure(found.len() == self.group.size(), || format!("{} parts", found.len()))?;
        let mut all = found.iter().enumerate();
        all.try_for_each(|(member, found)| {
            same(&format!("gather {round}"), found, &self.part(round, member)?)
        })
    }

    /// Another collective of the same group.
    fn between(&self) -> Result<()> {
        let sum = self.group.all_reduce(&purpose("between"), integers(self.group.index(), 1)?)?;
        same("sum", &sum, &integers((0..self.group.size()).sum(), 1)?)
    }
}

fn begun(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    for count in [3, 5000] {
        let gathers = Gathers { group: &*group, count };
        let (first, second) = (gathers.begin(0)?, gathers.begin(1)?);
        gathers.between()?;
        let third = gathers.begin(2)?;
        // Each member in an order of its own.
        let mut all = [(0, first), (1, second), (2, third)];
        all.rotate_left(group.index());
        for (round, begun) in all {
            gathers.take(round, begun)?;
            gathers.between()?;
        }
    }
    Ok(())
}

fn dropped(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    for count in [3, 5000] {
        let gathers = Gathers { group: &*group, count };
        let kept = gathers.begin(0)?;
        // By all, then by one alone, whose part the others get.
        drop(gathers.begin(1)?);
        let one = gathers.begin(2)?;
        if group.index() == 1 {
            drop(one);
        } else {
            gathers.take(2, one)?;
        }
        gathers.between()?;
        gathers.take(0, kept)?;
        drop(gathers.begin(3)?);
    }
    // Nobody leaves before the others have what is on its way.
    group.barrier(&purpose("end"))
}

fn bytes(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let text = |rank: usize| format!("rank {rank}").repeat(rank).into_bytes();
    let found = group.all_gather_bytes(&purpose("names"), &text(group.index()))?;
    let expected: Vec<_> = (0..4).map(text).collect();
    ensure(found == expected, || format!("{found:?} is not {expected:?}"))
}

fn long_bytes(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    for round in 0..4 {
        let text = |rank: usize| vec![u8::try_from(rank + round).unwrap_or(0); (rank + round) % 3 * 70_000];
        let found = group.all_gather_bytes(&purpose("record"), &text(group.index()))?;
        let lengths: Vec<_> = found.iter().map(Vec::len).collect();
        ensure((0..3).all(|rank| found[rank] == text(rank)), || {
            format!("round {round}: lengths {lengths:?}")
        })?;
    }
    Ok(())
}

fn barrier(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let since = std::time::Instant::now();
    let pause = std::time::Duration::from_millis(120);
    group.barrier(&purpose("ready"))?;
    if group.index() == 1 {
        std::thread::sleep(pause);
    }
    group.barrier(&purpose("go"))?;
    ensure(since.elapsed() >= pause, || format!("passed after {:?}", since.elapsed()))
}

fn alone(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("self", &[transport.rank()])?;
    let mine = floats(transport.rank(), 2)?;
    ensure(group.size() == 1 && group.index() == 0, || "not alone".to_owned())?;
    same("gathered", &group.all_gather(&purpose("own"), &mine, &[vec![2]])?[0], &mine)?;
    same("sum", &group.all_reduce(&purpose("own"), mine.shallow_clone())?, &mine)?;
    same("exchanged", &group.exchange(&purpose("own"), vec![mine.shallow_clone()], &[vec![2]])?[0], &mine)?;
    let found = group.all_gather_bytes(&purpose("own"), b"me")?;
    ensure(found == [b"me".to_vec()], || format!("{found:?}"))
}

fn large(transport: &dyn Transport) -> Result<()> {
    let group = transport.group("world", &world(transport))?;
    let part = |rank: usize| -> Result<Tensor> { Ok(floats(rank, 1000)?.f_repeat([2000_i64].as_slice())?) };
    let found = group.all_gather(&purpose("layer"), &part(group.index())?, &vec![vec![2_000_000]; 2])?;
    (0..2).try_for_each(|rank| same("gathered", &found[rank], &part(rank)?))
}

/// Every axis of a mesh of `transport.size()` ranks: gathers rank numbers, which must be the group's.
pub fn on_mesh(transport: &dyn Transport, mesh: MeshShape) -> Result<()> {
    let at = mesh.coordinates(transport.rank())?;
    let axes = [("dp", Axis::Dp), ("pp", Axis::Pp), ("tp", Axis::Tp)];
    let groups =
        axes.map(|(name, axis)| (mesh.group(at, axis), transport.group(name, &mesh.group(at, axis))));
    for round in 0..3 {
        for (members, group) in &groups {
            let group = group.as_ref().map_err(|error| crate::Error::internal(error.to_string()))?;
            let mine = integers(transport.rank(), 1)?;
            let what = purpose(&format!("round {round}"));
            let found = group.all_gather(&what, &mine, &vec![vec![1]; members.len()])?;
            members
                .iter()
                .zip(&found)
                .try_for_each(|(member, found)| same("rank", found, &integers(*member, 1)?))?;
            let sum = group.all_reduce(&what, mine)?;
            same("sum", &sum, &integers(members.iter().sum(), 1)?)?;
            let parts =
                members.iter().map(|to| integers(transport.rank() * 100 + to, 1)).collect::<Result<_>>()?;
            let found = group.exchange(&what, parts, &vec![vec![1]; members.len()])?;
            members.iter().zip(&found).try_for_each(|(from, found)| {
                same("exchanged", found, &integers(from * 100 + transport.rank(), 1)?)
            })?;
        }
    }
    Ok(())
}

fn mesh(transport: &dyn Transport) -> Result<()> {
    on_mesh(transport, MeshShape { dp: 2, pp: 2, tp: 2 })
}

fn mixed(transport: &dyn Transport) -> Result<()> {
    use crate::transport::{Header, Kind};
    let group = transport.group("world", &world(transport))?;
    let (me, ranks) = (transport.rank(), transport.size());
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let header = |microbatch| Header {
        step: 0,
        stage: 0,
        microbatch,
        kind: Kind::Forward,
        shapes: vec![vec![5]],
        dtype: Dtype::Float,
    };
    for round in 0..5 {
        transport.send(next, &header(round), &[floats(me * 10 + round, 5)?])?;
        let sum = group.all_reduce(&purpose("between"), integers(me, 1)?)?;
        same("sum", &sum, &integers(6, 1)?)?;
        let found = transport.recv(before, &header(round))?;
        same("message", &found[0], &floats(before * 10 + round, 5)?)?;
    }
    transport.flush()
}
