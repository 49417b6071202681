//! Collectives among threads: members put what they give into a round and take what they get once all have.
//!
//! Invariants: the k-th collective of every member is the same round; its operation and purpose are those of the first
//! to arrive, and whoever arrives with another one fails the world; a round lives until its last member has taken it, or has said
//! that it will not.

use std::{cell::Cell, collections::BTreeMap, fmt, sync::Arc};

use tch::Tensor;

use super::world::{RoomKey, Shared, State, Wait};
use crate::{
    Result,
    transport::{
        Gathering, Group, Purpose, check,
        failure::{Failure, Outcome},
    },
};

/// The rounds of a group that are not over.
#[derive(Default)]
pub(super) struct Room {
    rounds: BTreeMap<u64, Round>,
}

struct Round {
    /// Position of the first to arrive, and what it does.
    first: (usize, Act),
    given: Vec<Option<Gift>>,
    taken: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Act {
    operation: &'static str,
    purpose: Purpose,
}

enum Gift {
    Tensor(Tensor),
    Parts(Vec<Option<Tensor>>),
    Bytes(Arc<[u8]>),
}

/// One member's access to its group.
pub(super) struct LocalGroup {
    shared: Arc<Shared>,
    room: RoomKey,
    name: String,
    members: Vec<usize>,
    index: usize,
    next: Cell<u64>,
}

/// What a member may take of a round that it has begun; dropped, it takes nothing.
struct Claim {
    member: LocalGroup,
    sequence: u64,
    open: bool,
}

impl Claim {
    /// As [`LocalGroup::finish`].
    fn finish<T>(&mut self, act: &Act, take: impl FnOnce(&mut [Option<Gift>]) -> Outcome<T>) -> Outcome<T> {
        let member = &self.member;
        let found = member.finish(self.sequence, act, member.shared.limit(member.rank()), take)?;
        self.open = false;
        Ok(found)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.open {
            self.member.done(&mut self.member.shared.lock(), self.sequence);
        }
    }
}

impl LocalGroup {
    pub(super) fn new(
        shared: Arc<Shared>,
        room: RoomKey,
        name: &str,
        members: &[usize],
        index: usize,
    ) -> Self {
        let (name, members) = (name.to_owned(), members.to_vec());
        Self { shared, room, name, members, index, next: Cell::new(0) }
    }

    /// This member again, to take what it has begun.
    fn again(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            room: self.room.clone(),
            name: self.name.clone(),
            members: self.members.clone(),
            index: self.index,
            next: Cell::new(0),
        }
    }

    /// Waits until all members have asked for the group.
    pub(super) fn open(&self) -> Outcome<()> {
        let act = Act { operation: "opening", purpose: Purpose("start".to_owned()) };
        self.meet(&act, Gift::Bytes(Arc::from([])), self.shared.limits.start, |_| Ok(()))
    }

    fn rank(&self) -> usize {
        self.members[self.index]
    }

    /// Gives, waits until all members have, and takes.
    fn meet<T>(
        &self,
        act: &Act,
        gift: Gift,
        limit: std::time::Duration,
        take: impl FnOnce(&mut [Option<Gift>]) -> Outcome<T>,
    ) -> Outcome<T> {
        let sequence = self.begin(act, gift)?;
        self.finish(sequence, act, limit, take)
    }

    /// Gives what is this member's of the next collective; its number.
    fn begin(&self, act: &Act, gift: Gift) -> Outcome<u64> {
        let sequence = self.next.replace(self.next.get() + 1);
        self.give(sequence, act, gift).map(|()| sequence)
    }

    /// Waits until all have given, and takes.
    fn finish<T>(
        &self,
        sequence: u64,
        act: &Act,
        limit: std::time::Duration,
        take: impl FnOnce(&mut [Option<Gift>]) -> Outcome<T>,
    ) -> Outcome<T> {
        let what = format!("{act} of group {}", self.name);
        let wait = Wait { rank: self.rank(), what: &what, limit };
        let mut take = Some(take);
        let ready = |state: &mut State| {
            let Some(round) = self.round(state, sequence).filter(|round| round.complete()) else {
                return Ok(None);
            };
            let found = take.take().map(|take| take(&mut round.given)).transpose()?;
            self.done(state, sequence);
            Ok(found)
        };
        self.shared.wait(&wait, ready, |state| self.missing(state, sequence))
    }

    fn give(&self, sequence: u64, act: &Act, gift: Gift) -> Outcome<()> {
        let mut state = self.shared.lock();
        state.whole(self.rank())?;
        let room = state.rooms.entry(self.room.clone()).or_default();
        let round = room.rounds.entry(sequence).or_insert_with(|| Round {
            first: (self.index, act.clone()),
            given: self.members.iter().map(|_| None).collect(),
            taken: 0,
        });
        let (first, theirs) = &round.first;
        if theirs != act {
            return Err(self.diverged(act, self.members[*first], theirs));
        }
        round.given[self.index] = Some(gift);
        if round.complete() {
            drop(state);
            self.members.iter().for_each(|member| self.shared.ring(*member));
        }
        Ok(())
    }

    fn diverged(&self, mine: &Act, other: usize, theirs: &Act) -> Failure {
        let (group, rank) = (self.name.clone(), self.rank());
        Failure::Diverged { group, rank, mine: mine.to_string(), other, theirs: theirs.to_string() }
    }

    fn round<'a>(&self, state: &'a mut State, sequence: u64) -> Option<&'a mut Round> {
        state.rooms.get_mut(&self.room)?.rounds.get_mut(&sequence)
    }

    /// This member will look at the round no more; after all have said so it is over.
    fn done(&self, state: &mut State, sequence: u64) {
        let Some(room) = state.rooms.get_mut(&self.room) else { return };
        if let Some(round) = room.rounds.get_mut(&sequence) {
            round.taken += 1;
            if round.taken == self.members.len() {
                room.rounds.remove(&sequence);
            }
        }
    }

    fn missing(&self, state: &State, sequence: u64) -> Vec<usize> {
        let round = state.rooms.get(&self.room).and_then(|room| room.rounds.get(&sequence));
        let given = round.map_or(&[][..], |round| &round.given);
        let absent = given.iter().zip(&self.members).filter(|(gift, _)| gift.is_none());
        absent.map(|(_, member)| *member).collect()
    }

    fn tensors(&self, operation: &'static str, purpose: &Purpose, mine: &Tensor) -> Outcome<Vec<Tensor>> {
        let act = Act { operation, purpose: purpose.clone() };
        let gift = Gift::Tensor(mine.f_contiguous()?.f_detach()?);
        self.meet(&act, gift, self.shared.limit(self.rank()), |given| {
            Ok(given.iter().filter_map(Option::as_ref).filter_map(Gift::tensor).collect())
        })
    }

    fn gathered(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what("all_gather", purpose);
        check::dtype(&what, mine)?;
        check::shapes(&what, self.members.len(), shapes)?;
        check::own(&what, mine, shapes.get(self.index))?;
        let found = self.tensors("all_gather", purpose, mine)?;
        self.alike(&what, mine, &found, shapes)?;
        Ok(found)
    }

    /// As [`Self::gathered`], in two steps.
    fn gathering(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Gathering> {
        let what = self.what("all_gather", purpose);
        check::dtype(&what, mine)?;
        check::shapes(&what, self.members.len(), shapes)?;
        check::own(&what, mine, shapes.get(self.index))?;
        let act = Act { operation: "all_gather", purpose: purpose.clone() };
        let mine = mine.f_contiguous()?.f_detach()?;
        let sequence = self.begin(&act, Gift::Tensor(mine.shallow_clone()))?;
        let (mut claim, shapes) = (Claim { member: self.again(), sequence, open: true }, shapes.to_vec());
        Ok(Gathering::later(move || {
            let found = claim.finish(&act, |given| {
                Ok(given.iter().filter_map(Option::as_ref).filter_map(Gift::tensor).collect::<Vec<_>>())
            });
            let member = &claim.member;
            let alike = found.and_then(|found| member.alike(&what, &mine, &found, &shapes).map(|()| found));
            member.shared.guarded(member.rank(), alike)
        }))
    }

    fn exchanged(&self, purpose: &Purpose, parts: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what("exchange", purpose);
        check::shapes(&what, self.members.len(), shapes)?;
        if parts.len() != self.members.len() {
            return Err(Failure::Misuse(format!(
                "{what}: {} parts for {} members",
                parts.len(),
                self.size()
            )));
        }
        parts.iter().try_for_each(|part| check::dtype(&what, part).map(drop))?;
        let mine = parts[self.index].shallow_clone();
        let parts = parts.iter().map(|part| part.f_contiguous()?.f_detach().map(Some));
        let act = Act { operation: "exchange", purpose: purpose.clone() };
        let gift = Gift::Parts(parts.collect::<Result<_, _>>()?);
        let mut found = Vec::with_capacity(self.members.len());
        self.meet(&act, gift, self.shared.limit(self.rank()), |given| {
            found.extend(given.iter_mut().flatten().filter_map(|gift| gift.part(self.index)));
            Ok(())
        })?;
        self.alike(&what, &mine, &found, shapes)?;
        Ok(found)
    }

    fn reduced(&self, purpose: &Purpose, mine: &Tensor) -> Outcome<Tensor> {
        let what = self.what("all_reduce", purpose);
        check::dtype(&what, mine)?;
        let found = self.tensors("all_reduce", purpose, mine)?;
        self.alike(&what, mine, &found, &vec![mine.size(); self.members.len()])?;
        let (first, others) =
            found.split_first().ok_or_else(|| Failure::Misuse(format!("{what}: nothing")))?;
        let mut sum = first.f_detach_copy()?;
        others.iter().try_for_each(|other| sum.f_add_(other).map(drop))?;
        Ok(sum)
    }

    fn alike(&self, what: &str, mine: &Tensor, found: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<()> {
        let unlike = found
            .iter()
            .zip(shapes)
            .zip(&self.members)
            .find(|((found, shape), _)| found.size() != **shape || found.kind() != mine.kind());
        unlike.map_or(Ok(()), |((found, shape), from)| {
            let expected = format!("{:?} {shape:?}", mine.kind());
            let (from, found, rank) = (*from, check::describe(found), self.rank());
            Err(Failure::Unlike { what: what.to_owned(), from, found, rank, expected })
        })
    }

    fn bytes(&self, purpose: &Purpose, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let act = Act { operation: "all_gather_bytes", purpose: purpose.clone() };
        let found =
            self.meet(&act, Gift::Bytes(Arc::from(mine)), self.shared.limit(self.rank()), |given| {
                Ok(given.iter().filter_map(Option::as_ref).filter_map(Gift::bytes).collect::<Vec<_>>())
            })?;
        Ok(found.iter().map(|bytes| bytes.to_vec()).collect())
    }

    fn what(&self, operation: &str, purpose: &Purpose) -> String {
        format!("{operation} ({purpose}) of group {}", self.name)
    }
}

impl Group for LocalGroup {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.shared.guarded(self.rank(), self.gathered(purpose, mine, shapes))
    }

    fn begin_all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Gathering> {
        self.shared.guarded(self.rank(), self.gathering(purpose, mine, shapes))
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.shared.guarded(self.rank(), self.exchanged(purpose, &parts, shapes))
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        self.shared.guarded(self.rank(), self.reduced(purpose, &mine))
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared.guarded(self.rank(), self.bytes(purpose, mine))
    }
}

#[cfg(test)]
impl Room {
    /// Rounds that are not over.
    pub(super) fn open(&self) -> usize {
        self.rounds.len()
    }
}

impl Round {
    fn complete(&self) -> bool {
        self.given.iter().all(Option::is_some)
    }
}

impl Gift {
    fn tensor(&self) -> Option<Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor.shallow_clone()),
            Self::Parts(_) | Self::Bytes(_) => None,
        }
    }

    fn part(&mut self, of: usize) -> Option<Tensor> {
        match self {
            Self::Parts(parts) => parts.get_mut(of)?.take(),
            Self::Tensor(_) | Self::Bytes(_) => None,
        }
    }

    fn bytes(&self) -> Option<Arc<[u8]>> {
        match self {
            Self::Bytes(bytes) => Some(Arc::clone(bytes)),
            Self::Tensor(_) | Self::Parts(_) => None,
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.operation, self.purpose)
    }
}
