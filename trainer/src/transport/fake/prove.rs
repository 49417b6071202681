//! [`prove`]: that what all ranks were recorded to do fits together, and comes to its end.
//!
//! The records are gone through together, as ranks would: a send passes while there is room for it, a receive when its message is
//! there, a collective when all members are at it. Every pair of a send and a receive is compared (header, number), and every collective
//! on all its members (operation, purpose, dtype, shapes). What is left when nobody can go on is a standstill. That does not depend on how
//! fast ranks are: what one rank has passed never keeps another from passing.
//!
//! It is stricter than running ranks as threads: a gather that was begun counts as one that is waited for at once.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
};

use super::{
    record::{Collective, Event, Message, Record},
    words::Words,
};
use crate::{
    Result,
    transport::{
        check,
        failure::{Failure, Order, Outcome},
    },
};

/// Ranks that a standstill names.
const NAMED: usize = 6;

/// Goes through the records of all ranks, `room` messages of each under way at most; gives the most that there were, by rank.
///
/// # Errors
/// `Corrupt` for two ranks that do different things, `Peer` for ranks that wait for each other or for what never comes: names
/// them, what each does, and where it is in its schedule.
pub fn prove(records: &[Record], words: &Words, room: usize) -> Result<Vec<usize>> {
    let mut run = Run::new(records, words, room);
    run.go()?;
    Ok(run.most)
}

struct Run<'a> {
    records: &'a [Record],
    words: &'a Words,
    room: usize,
    at: Vec<usize>,
    /// Whether a rank has sent the message, or come to the collective, that it is at.
    came: Vec<bool>,
    mail: BTreeMap<(usize, usize), VecDeque<Message>>,
    under_way: Vec<usize>,
    most: Vec<usize>,
    /// Ranks that are at a collective, by group.
    present: BTreeMap<u32, Vec<usize>>,
    /// Ranks that may be able to go on.
    ready: VecDeque<usize>,
    waits: Vec<bool>,
}

impl<'a> Run<'a> {
    fn new(records: &'a [Record], words: &'a Words, room: usize) -> Self {
        let ranks = records.len();
        Self {
            records,
            words,
            room,
            at: vec![0; ranks],
            came: vec![false; ranks],
            mail: BTreeMap::new(),
            under_way: vec![0; ranks],
            most: vec![0; ranks],
            present: BTreeMap::new(),
            ready: (0..ranks).collect(),
            waits: vec![false; ranks],
        }
    }

    fn go(&mut self) -> Outcome<()> {
        while let Some(rank) = self.ready.pop_front() {
            self.set(rank, |run| &mut run.waits, true);
            while self.advance(rank)? {}
        }
        let stuck: Vec<usize> = (0..self.records.len()).filter(|rank| self.event(*rank).is_some()).collect();
        if stuck.is_empty() { Ok(()) } else { Err(Failure::Standstill(self.standstill(&stuck))) }
    }

    fn set<T>(&mut self, rank: usize, of: impl FnOnce(&mut Self) -> &mut Vec<T>, value: T) {
        of(self).get_mut(rank).into_iter().zip([value]).for_each(|(place, value)| *place = value);
    }

    fn wake(&mut self, rank: usize) {
        if self.waits.get(rank) == Some(&true) {
            self.set(rank, |run| &mut run.waits, false);
            self.ready.push_back(rank);
        }
    }

    fn event(&self, rank: usize) -> Option<(u32, Event)> {
        self.records.get(rank)?.events.get(*self.at.get(rank)?).copied()
    }

    fn pass(&mut self, rank: usize) {
        self.at.get_mut(rank).into_iter().for_each(|at| *at += 1);
        self.set(rank, |run| &mut run.came, false);
    }

    /// Whether `rank` passed the event that it is at.
    fn advance(&mut self, rank: usize) -> Outcome<bool> {
        match self.event(rank).map(|(_, event)| event) {
            None => Ok(false),
            Some(Event::Open(group)) => self.meet(rank, group),
            Some(Event::Collective(it)) => self.meet(rank, it.group),
            Some(Event::Send(message)) => Ok(self.send(rank, message)),
            Some(Event::Receive(message)) => self.receive(rank, message),
            Some(Event::Flush) => {
                let empty = self.under_way.get(rank) == Some(&0);
                if empty {
                    self.pass(rank);
                }
                Ok(empty)
            }
        }
    }

    fn send(&mut self, rank: usize, message: Message) -> bool {
        let under_way = self.under_way.get(rank).copied().unwrap_or(0);
        if self.came.get(rank) != Some(&true) {
            if under_way > self.room.saturating_sub(1) {
                return false;
            }
            self.mail.entry((rank, message.peer)).or_default().push_back(message);
            self.set(rank, |run| &mut run.under_way, under_way + 1);
            self.most.get_mut(rank).into_iter().for_each(|most| *most = (*most).max(under_way + 1));
            self.set(rank, |run| &mut run.came, true);
            self.wake(message.peer);
        }
        let fits = self.under_way.get(rank).is_some_and(|now| *now <= self.room);
        if fits {
            self.pass(rank);
        }
        fits
    }

    fn receive(&mut self, rank: usize, due: Message) -> Outcome<bool> {
        let from = due.peer;
        let Some(found) = self.mail.get_mut(&(from, rank)).and_then(VecDeque::pop_front) else {
            return Ok(false);
        };
        if let (Some(expected), Some(header)) =
            (self.words.header_of(due.header), self.words.header_of(found.header))
        {
            let order = Order { due: due.number, found: found.number };
            check::header(from, rank, &expected, &header, order)?;
            if !found.whole {
                let found = "they are not what it says".to_owned();
                return Err(Failure::Cut { from, to: rank, header: Box::new((*header).clone()), found });
            }
        }
        self.under_way.get_mut(from).into_iter().for_each(|count| *count = count.saturating_sub(1));
        self.wake(from);
        self.pass(rank);
        Ok(true)
    }

    /// Comes to a collective, or to the opening of a group; all pass when the last has come.
    fn meet(&mut self, rank: usize, group: u32) -> Outcome<bool> {
        if self.came.get(rank) == Some(&true) {
            return Ok(false);
        }
        self.set(rank, |run| &mut run.came, true);
        let present = self.present.entry(group).or_default();
        present.push(rank);
        let place = self.words.group_of(group);
        if place.as_ref().is_some_and(|place| present.len() < place.members.len()) {
            return Ok(false);
        }
        let mut members = self.present.remove(&group).unwrap_or_default();
        members.sort_unstable();
        self.alike(group, &members)?;
        for member in members {
            self.pass(member);
            if member != rank {
                self.wake(member);
            }
        }
        Ok(true)
    }

    /// Whether all members are at the same.
    fn alike(&self, group: u32, members: &[usize]) -> Outcome<()> {
        let at = |rank: &usize| Some((*rank, self.event(*rank)?.1));
        let all: Vec<(usize, Event)> = members.iter().filter_map(at).collect();
        let Some((first, one)) = all.first() else { return Ok(()) };
        let other = all.iter().find(|(_, event)| act(event) != act(one));
        if let Some((rank, event)) = other {
            let group = self.words.group_of(group).map_or_else(String::new, |place| place.name.clone());
            let (mine, theirs) = (self.said(event), self.said(one));
            return Err(Failure::Diverged { group, rank: *rank, mine, other: *first, theirs });
        }
        let collectives = all.iter().filter_map(|(rank, event)| match event {
            Event::Collective(it) => Some((*rank, *it)),
            _ => None,
        });
        self.shapes(&collectives.collect::<Vec<_>>())
    }

    /// Whether everyone gives what the others expect of it.
    fn shapes(&self, members: &[(usize, Collective)]) -> Outcome<()> {
        let same =
            |of: fn(&Collective) -> u32| members.windows(2).all(|pair| of(&pair[0].1) == of(&pair[1].1));
        let operation =
            members.first().and_then(|(_, it)| self.words.act_of(it.act)).map(|act| act.operation);
        let fits = match operation {
            // What all expect is the same list, in which each has its own.
            Some("all_gather") => same(|it| it.expected),
            Some("all_reduce") => same(|it| it.given),
            Some("exchange") => false,
            _ => true,
        };
        if fits {
            return Ok(());
        }
        let list = |number| self.words.shapes_of(number).map(|it| (*it).clone()).unwrap_or_default();
        let lists: Vec<_> =
            members.iter().map(|(rank, it)| (*rank, list(it.given), list(it.expected))).collect();
        for (i, (from, given, _)) in lists.iter().enumerate() {
            for (j, (rank, own, expected)) in lists.iter().enumerate() {
                // One shape for all, or one for each.
                let found = if given.len() == 1 { given.first() } else { given.get(j) };
                let due = if expected.is_empty() { own.first() } else { expected.get(i) };
                if found != due {
                    return Err(self.unlike(members, (*from, found), (*rank, due)));
                }
            }
        }
        Ok(())
    }

    fn unlike(
        &self,
        members: &[(usize, Collective)],
        (from, found): (usize, Option<&Vec<i64>>),
        (rank, due): (usize, Option<&Vec<i64>>),
    ) -> Failure {
        let what = members.first().map_or_else(String::new, |(_, it)| {
            let group = self.words.group_of(it.group).map_or_else(String::new, |place| place.name.clone());
            format!("{} of group {group}", self.said(&Event::Collective(*it)))
        });
        let text =
            |shape: Option<&Vec<i64>>| shape.map_or_else(|| "nothing".to_owned(), |it| format!("{it:?}"));
        Failure::Unlike { what, from, found: text(found), rank, expected: text(due) }
    }

    fn said(&self, event: &Event) -> String {
        match event {
            Event::Collective(it) => {
                self.words.act_of(it.act).map_or_else(String::new, |act| act.to_string())
            }
            _ => "the opening".to_owned(),
        }
    }

    /// Who waits for whom: those in a circle first.
    fn standstill(&self, stuck: &[usize]) -> String {
        let waits: BTreeMap<usize, (String, Option<usize>)> =
            stuck.iter().filter_map(|rank| Some((*rank, self.wait(*rank)?))).collect();
        let circle = circle(&waits);
        let mut named = circle.clone();
        named.extend(stuck.iter().copied().filter(|rank| !circle.contains(rank)));
        let mut text = format!("{} of {} ranks can't go on", stuck.len(), self.records.len());
        for (at, rank) in named.iter().take(NAMED).enumerate() {
            let before = if at == 0 { ": " } else { "; " };
            let _ =
                write!(text, "{before}rank {rank} waits {}", waits.get(rank).map_or("", |(what, _)| what));
        }
        if named.len() > NAMED {
            let _ = write!(text, "; and {} more", named.len() - NAMED);
        }
        if circle.len() > 1 {
            let ranks: Vec<_> = circle.iter().chain(circle.first()).map(ToString::to_string).collect();
            let _ = write!(text, "; in a circle: rank {}", ranks.join(" → "));
        }
        text
    }

    /// What a rank waits for, and one that it waits for.
    fn wait(&self, rank: usize) -> Option<(String, Option<usize>)> {
        let (note, event) = self.event(rank)?;
        let header = |number| self.words.header_of(number).map_or_else(String::new, |it| it.to_string());
        let (what, on) = match event {
            Event::Receive(it) => (format!("for {} from rank {}", header(it.header), it.peer), Some(it.peer)),
            Event::Send(_) | Event::Flush => {
                let mail = self.mail.range((rank, 0)..=(rank, usize::MAX));
                let oldest = mail.filter_map(|((_, to), queue)| Some((*to, queue.front()?))).next();
                let (to, message) = oldest?;
                (format!("for rank {to} to take {}", header(message.header)), Some(to))
            }
            Event::Open(group) | Event::Collective(Collective { group, .. }) => {
                let place = self.words.group_of(group)?;
                let here = self.present.get(&group).map_or(&[][..], Vec::as_slice);
                let absent: Vec<_> = place.members.iter().copied().filter(|it| !here.contains(it)).collect();
                let act = self.said(&event);
                (format!("at {act} of group {} for ranks {absent:?}", place.name), absent.first().copied())
            }
        };
        Some((format!("{what} (at {})", self.words.note_of(note)), on))
    }
}

/// What a rank comes to with others of a group: the opening, or a collective.
const fn act(event: &Event) -> Option<u32> {
    match event {
        Event::Collective(it) => Some(it.act),
        _ => None,
    }
}

/// Ranks of which each waits for the next, and the last for the first.
fn circle(waits: &BTreeMap<usize, (String, Option<usize>)>) -> Vec<usize> {
    let mut path: Vec<usize> = Vec::new();
    let mut next = waits.keys().next().copied();
    while let Some(rank) = next {
        if let Some(start) = path.iter().position(|it| *it == rank) {
            return path.split_off(start);
        }
        path.push(rank);
        next = waits.get(&rank).and_then(|(_, on)| *on);
    }
    Vec::new()
}
