//! What can happen next in a world, and what it does.

use super::world::{Act, At, Folder, GRACE, Reader, TRIES, World};
use super::{Bound, Mutation};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A writer puts what its folder lacks next.
    Put(u8),
    /// A writer appends its commit.
    Append(u8, Answer),
    /// A writer in doubt reads the record of its number, and puts it again where there is none.
    ReadBack(u8, Answer),
    /// A writer crashes, and begins its next try.
    Crash(u8),
    /// A put that had failed lands.
    Land(u8),
    /// The collector reads the log.
    Look,
    Retire(u8, Answer),
    Condemn(u8, Answer),
    /// The collector deletes the next object of a folder.
    Delete(u8),
    /// The reader reads the log, and chooses the newest checkpoint.
    Open,
    /// The reader reads the next part of it.
    Read,
    /// The reader says in the log that it was whole.
    Verified,
    Tick,
}

/// What a store does with a create whose number is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Acknowledged,
    /// The record landed, the answer did not.
    Lost,
    /// The record did not land, and may yet.
    Late,
}

const ANSWERS: [Answer; 3] = [Answer::Acknowledged, Answer::Lost, Answer::Late];

impl World {
    /// Everything that can happen.
    pub(super) fn steps(&self, bound: &Bound, mutation: Mutation, steps: &mut Vec<Step>) {
        let answers = if self.losses > 0 { ANSWERS.as_slice() } else { &[Answer::Acknowledged] };
        for (w, writer) in (0..).zip(&self.writers) {
            match writer.at {
                At::Data | At::Manifest => steps.push(Step::Put(w)),
                At::Append => steps.extend(answers.iter().map(|answer| Step::Append(w, *answer))),
                At::Doubt { .. } => steps.extend(answers.iter().map(|answer| Step::ReadBack(w, *answer))),
                At::Done => {}
            }
            if self.crashes > 0 && writer.at != At::Done && writer.at != At::Data {
                steps.push(Step::Crash(w));
            }
        }
        let free = |slot: u8| slot == self.length().saturating_add(1);
        steps
            .extend((0..).zip(&self.late).filter(|(_, (slot, _))| free(*slot)).map(|(at, _)| Step::Land(at)));
        self.collector_steps(answers, mutation, steps);
        match self.reader {
            Reader::Idle if self.reads > 0 => steps.push(Step::Open),
            Reader::Reading { .. } => steps.push(Step::Read),
            Reader::Whole { .. } => steps.push(Step::Verified),
            Reader::Idle | Reader::Broken => {}
        }
        // A reader is done before the grace period of what it has chosen is over: that is what the period is for.
        let late = matches!(self.reader, Reader::Reading { since, .. } if self.now.saturating_sub(since) + 1 >= GRACE);
        if self.now < bound.ticks && !late {
            steps.push(Step::Tick);
        }
    }

    /// The collector goes by what it saw, however old that is.
    fn collector_steps(&self, answers: &[Answer], mutation: Mutation, steps: &mut Vec<Step>) {
        if self.view != Some(self.length()) {
            steps.push(Step::Look);
        }
        let Some(view) = self.view else { return };
        let seen = self.facts(view, mutation);
        let going = seen.going.iter();
        steps.extend(going.flat_map(|seq| answers.iter().map(move |answer| Step::Retire(*seq, *answer))));
        let grace = if mutation == Mutation::NoGrace { 0 } else { GRACE };
        for (dir, folder) in (0..).zip(&self.folders) {
            if *folder == Folder::default() {
                continue;
            }
            let condemned = seen.condemned.get(usize::from(dir)).copied().flatten();
            let time = condemned.and_then(|seq| self.times.get(usize::from(seq).checked_sub(1)?));
            match time {
                Some(at) if self.now.saturating_sub(*at) >= grace => steps.push(Step::Delete(dir)),
                Some(_) => {}
                None if seen.data & (1 << dir) != 0 => {}
                None if mutation == Mutation::DeletedWithoutCondemned => steps.push(Step::Delete(dir)),
                None => steps.extend(answers.iter().map(|answer| Step::Condemn(dir, *answer))),
            }
        }
    }

    /// The world after a step; none where nothing changes.
    pub(super) fn after(&self, step: Step, mutation: Mutation) -> Option<Self> {
        let mut next = self.clone();
        match step {
            Step::Put(w) => next.put(w),
            Step::Append(w, answer) => next.append(w, answer, mutation),
            Step::ReadBack(w, answer) => next.read_back(w, answer, mutation),
            Step::Crash(w) => {
                next.crashes -= 1;
                next.next_try(w);
            }
            Step::Land(at) => {
                let (_, act) = next.late.remove(usize::from(at));
                next.land(act);
            }
            Step::Look => next.view = Some(next.length()),
            Step::Retire(seq, answer) => next.collect(Act::Retire { seq }, answer, mutation),
            Step::Condemn(dir, answer) => next.collect(Act::Condemn { dir }, answer, mutation),
            Step::Delete(dir) => {
                let folder = next.folders.get_mut(usize::from(dir))?;
                // Manifests first: what is left must not look whole.
                if folder.manifest { folder.manifest = false } else { folder.data = false }
            }
            Step::Open => next.open(mutation)?,
            Step::Read => next.read()?,
            Step::Verified => {
                let Reader::Whole { seq } = next.reader else { return None };
                next.reader = Reader::Idle;
                let act = Act::Verified { seq };
                if next.judged(act, mutation) {
                    next.land(act);
                }
            }
            Step::Tick => next.now += 1,
        }
        (next != *self).then_some(next)
    }

    fn put(&mut self, w: u8) {
        let Some(writer) = self.writers.get_mut(usize::from(w)) else { return };
        let dir = w * TRIES + writer.attempt;
        let Some(folder) = self.folders.get_mut(usize::from(dir)) else { return };
        match writer.at {
            At::Data => {
                // A second checkpoint refers to the bytes of the first, where its writer knows of that.
                let before = dir
                    .checked_sub(1)
                    .filter(|before| writer.attempt > 0 && self.acknowledged & (1 << before) != 0);
                (folder.data, writer.also, writer.at) = (true, before, At::Manifest);
            }
            _ => (folder.manifest, writer.at) = (true, At::Append),
        }
    }

    fn commit_of(&self, w: u8) -> Option<(Act, u8)> {
        let writer = self.writers.get(usize::from(w))?;
        let dir = w * TRIES + writer.attempt;
        Some((Act::Commit { dir, also: writer.also }, dir))
    }

    /// Reads the log to its end, judges, and creates the next record: the create succeeds only if that was the end, so this is one step.
    fn append(&mut self, w: u8, answer: Answer, mutation: Mutation) {
        let Some((act, dir)) = self.commit_of(w) else { return };
        if !self.judged(act, mutation) {
            self.refused |= 1 << dir;
            self.next_try(w);
            return;
        }
        self.create(w, act, dir, answer, mutation);
    }

    fn create(&mut self, w: u8, act: Act, dir: u8, answer: Answer, mutation: Mutation) {
        let slot = self.length().saturating_add(1);
        if answer != Answer::Acknowledged {
            self.losses -= 1;
        }
        match answer {
            Answer::Acknowledged => {
                self.land(act);
                self.acknowledge(w, dir);
                return;
            }
            Answer::Lost => self.land(act),
            Answer::Late => self.late.push((slot, act)),
        }
        if mutation == Mutation::UnknownIsSuccess {
            self.acknowledge(w, dir);
        } else if let Some(writer) = self.writers.get_mut(usize::from(w)) {
            writer.at = At::Doubt { slot };
        }
    }

    fn read_back(&mut self, w: u8, answer: Answer, mutation: Mutation) {
        let Some((act, dir)) = self.commit_of(w) else { return };
        let Some(At::Doubt { slot }) = self.writers.get(usize::from(w)).map(|writer| writer.at) else {
            return;
        };
        let there = usize::from(slot).checked_sub(1).and_then(|at| self.acts.get(at)).copied();
        match there {
            Some(found) if found == act => self.acknowledge(w, dir),
            Some(_) => {
                if let Some(writer) = self.writers.get_mut(usize::from(w)) {
                    writer.at = At::Append;
                }
            }
            // The same again, at the same number: whichever put lands, it is the same record.
            None => {
                self.late.retain(|late| *late != (slot, act));
                self.create(w, act, dir, answer, mutation);
            }
        }
    }

    fn acknowledge(&mut self, w: u8, dir: u8) {
        self.acknowledged |= 1 << dir;
        self.next_try(w);
    }

    fn next_try(&mut self, w: u8) {
        let Some(writer) = self.writers.get_mut(usize::from(w)) else { return };
        writer.attempt += 1;
        writer.also = None;
        writer.at = if writer.attempt < TRIES { At::Data } else { At::Done };
    }

    /// The collector appends; what it was answered it forgets, since it reads the log before it deletes.
    fn collect(&mut self, act: Act, answer: Answer, mutation: Mutation) {
        let slot = self.length().saturating_add(1);
        if !self.judged(act, mutation) {
            return;
        }
        match answer {
            Answer::Acknowledged => self.land(act),
            Answer::Lost => return,
            Answer::Late => {
                self.losses -= 1;
                self.late.push((slot, act));
            }
        }
        self.view = None;
    }

    fn open(&mut self, mutation: Mutation) -> Option<()> {
        let (seq, dir, also) = self.head(mutation).newest?;
        self.reader = Reader::Reading { seq, dir, also, parts: 0, since: self.now };
        self.reads -= 1;
        Some(())
    }

    fn read(&mut self) -> Option<()> {
        let Reader::Reading { seq, dir, also, parts, since } = self.reader else { return None };
        let there = match parts {
            0 => self.folder(dir).manifest,
            1 => self.folder(dir).data,
            _ => also.is_none_or(|also| self.folder(also).data),
        };
        self.reader = match (there, parts) {
            (false, _) => Reader::Broken,
            (true, 2) => Reader::Whole { seq },
            (true, _) => Reader::Reading { seq, dir, also, parts: parts + 1, since },
        };
        Some(())
    }
}
