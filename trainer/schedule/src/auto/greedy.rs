//! The greedy scheduler: all ranks are filled together, microbatch by microbatch, for one setting of its knobs.
//!
//! Warm-up: as many forwards as fit into memory before the first gradient can arrive. Then, for each further microbatch, one
//! forward on the ranks that want one, from first to last, and one input gradient on every rank, from last to first. Weight
//! gradients go where memory has to be freed, where a rank would wait, and to the end. A stage that can't be split does
//! whole backwards instead, and has no weight gradients to fill with.

use super::{
    Knobs, Problem,
    order::{Counts, Kind, Order},
};

/// The order for one setting; `None` where it does not fit the memory.
pub(super) fn order(problem: &Problem, knobs: Knobs) -> Option<Order> {
    let lanes = vec![Lane::default(); problem.ranks()];
    let mut greedy = Greedy { problem, knobs, lanes };
    greedy.warm_up()?;
    for _ in 1..problem.microbatches {
        greedy.forwards()?;
        greedy.gradients()?;
    }
    (0..problem.ranks()).try_for_each(|rank| greedy.drain(rank))?;
    Some(Order { rows: greedy.lanes.into_iter().map(|lane| lane.row).collect() })
}

/// One rank's row as far as it is filled.
#[derive(Debug, Clone, Default)]
struct Lane {
    row: Vec<Kind>,
    counts: Counts,
    /// End of the last cell.
    end: f64,
    /// What it holds then.
    held: f64,
    /// How long it has waited since its first cell.
    idle: f64,
    /// Ends of its forwards, and of its input gradients.
    forward: Vec<f64>,
    gradient: Vec<f64>,
}

impl Lane {
    const fn pending(&self) -> usize {
        self.counts.input - self.counts.weight
    }
}

struct Greedy<'a> {
    problem: &'a Problem,
    knobs: Knobs,
    lanes: Vec<Lane>,
}

impl Greedy<'_> {
    fn warm_up(&mut self) -> Option<()> {
        for rank in 0..self.lanes.len() {
            self.append(rank, Kind::F)?;
        }
        for (rank, more) in self.more_to_warm_up()?.into_iter().enumerate() {
            (0..more).try_for_each(|_| self.append(rank, Kind::F))?;
        }
        (0..self.lanes.len()).rev().try_for_each(|rank| self.append(rank, self.backward(rank)))
    }

    /// How many forwards each rank does after its first one and before the first gradient.
    fn more_to_warm_up(&self) -> Option<Vec<usize>> {
        let mut more = vec![0; self.lanes.len()];
        // When the first gradient leaves the rank after.
        let mut sent: Option<f64> = None;
        for (rank, lane) in self.lanes.iter().enumerate().rev() {
            let mut end = lane.end;
            let arrives = sent.map_or(end, |sent| self.problem.gradient_arrival(rank, sent));
            if sent.is_some() {
                let (forward, takes) =
                    (self.problem.stage(rank).forward, self.problem.stage_memory(rank).activation);
                let mut held = lane.held;
                let count = more.get_mut(rank)?;
                while lane.counts.forward + *count < self.problem.microbatches
                    && held + takes <= self.room(rank)
                {
                    let enough =
                        if self.knobs.wait_for_gradient { end + forward > arrives } else { end >= arrives };
                    if enough {
                        break;
                    }
                    (held, end, *count) = (held + takes, end + forward, *count + 1);
                }
            }
            sent = Some(end.max(arrives) + self.backward_time(rank));
        }
        // A rank can't be as far ahead as the one before it, or it would only wait for it, unless there is nothing left.
        for rank in 1..more.len() {
            let before = *more.get(rank - 1)?;
            let (done, count) = (self.lanes.get(rank)?.counts.forward, more.get_mut(rank)?);
            while *count > 0 && *count >= before && done + *count < self.problem.microbatches {
                *count -= 1;
            }
        }
        Some(more)
    }

    /// One forward on each rank that wants one.
    fn forwards(&mut self) -> Option<()> {
        let ranks = self.lanes.len();
        let mut wanted: Vec<bool> = (0..ranks).map(|rank| self.wants_forward(rank)).collect::<Option<_>>()?;
        // What the next rank does not take up now need not be computed now.
        let mut after = true;
        for (rank, wants) in wanted.iter_mut().enumerate().rev() {
            *wants &= after || rank + 1 == ranks;
            after = *wants;
        }
        for rank in (0..ranks).filter(|rank| wanted.get(*rank) == Some(&true)) {
            self.make_room(rank, self.problem.stage_memory(rank).activation)?;
            if let Some(before) = rank.checked_sub(1) {
                let sent = *self.lanes.get(before)?.forward.get(self.lanes.get(rank)?.counts.forward)?;
                self.fill(rank, self.problem.forward_arrival(rank, sent))?;
            }
            self.append(rank, Kind::F)?;
        }
        Some(())
    }

    fn wants_forward(&self, rank: usize) -> Option<bool> {
        let lane = self.lanes.get(rank)?;
        if lane.counts.forward >= self.problem.microbatches {
            return Some(false);
        }
        let Some(next) = self.lanes.get(rank + 1).filter(|_| self.knobs.hurry_gradients) else {
            return Some(true);
        };
        Some(lane.counts.forward < next.counts.forward + 2 || !self.waits_for_gradient(rank, lane, next))
    }

    /// Whether a rank that is two forwards ahead better leaves one out, so as to be there for its next gradient.
    fn waits_for_gradient(&self, rank: usize, lane: &Lane, next: &Lane) -> bool {
        let gradient = next.end + self.problem.stage(rank + 1).forward + self.backward_time(rank + 1);
        let gradient = self.problem.gradient_arrival(rank, gradient);
        if lane.end >= gradient {
            return true;
        }
        let stage = self.problem.stage(rank);
        let freed = self.weights_to_free(rank, lane) as f64 * stage.weight;
        let in_time = lane.end + stage.forward + freed <= gradient;
        !in_time && gradient - lane.end <= self.slack(lane)
    }

    /// How many weight gradients have to go before another forward fits.
    fn weights_to_free(&self, rank: usize, lane: &Lane) -> usize {
        let memory = self.problem.stage_memory(rank);
        let mut held = lane.held + memory.activation;
        let mut count = 0;
        while held > self.room(rank) && count < lane.pending() {
            held -= memory.kept;
            count += 1;
        }
        count
    }

    /// The next input gradient on every rank.
    fn gradients(&mut self) -> Option<()> {
        for rank in (0..self.lanes.len()).rev() {
            let kind = self.backward(rank);
            self.make_room(rank, self.change(rank, kind))?;
            let next = self.lanes.get(rank)?.counts.input;
            if let Some(after) = self.lanes.get(rank + 1) {
                let sent = *after.gradient.get(next)?;
                self.fill(rank, self.problem.gradient_arrival(rank, sent))?;
            }
            if rank == 0 && self.lanes.first()?.counts.forward == self.problem.microbatches {
                self.drain(0)?;
            }
            self.append(rank, kind)?;
        }
        Some(())
    }

    /// Weight gradients while they end before `until`; and another one into what is left of the gap, if the knob says so
    /// or the rank would become the one that has waited most.
    fn fill(&mut self, rank: usize, until: f64) -> Option<()> {
        let takes = self.problem.stage(rank).weight;
        while self.lanes.get(rank).is_some_and(|lane| lane.pending() > 0 && lane.end + takes <= until) {
            self.append(rank, Kind::W)?;
        }
        let lane = self.lanes.get(rank)?;
        let fills = self.knobs.fill_small_gaps || until - lane.end > self.slack(lane);
        if lane.pending() > 0 && lane.end < until && fills { self.append(rank, Kind::W) } else { Some(()) }
    }

    fn make_room(&mut self, rank: usize, takes: f64) -> Option<()> {
        while self.lanes.get(rank)?.held + takes > self.room(rank) {
            if self.lanes.get(rank)?.pending() == 0 {
                return None;
            }
            self.append(rank, Kind::W)?;
        }
        Some(())
    }

    fn drain(&mut self, rank: usize) -> Option<()> {
        while self.lanes.get(rank)?.pending() > 0 {
            self.append(rank, Kind::W)?;
        }
        Some(())
    }

    /// How much longer a lane could wait without being the one that has waited most.
    fn slack(&self, lane: &Lane) -> f64 {
        self.lanes.iter().map(|lane| lane.idle).fold(0.0, f64::max) - lane.idle
    }

    fn room(&self, rank: usize) -> f64 {
        let room = self.problem.room(rank);
        room + room.abs() * 1e-9
    }

    fn backward(&self, rank: usize) -> Kind {
        if self.problem.split(rank) { Kind::I } else { Kind::B }
    }

    fn backward_time(&self, rank: usize) -> f64 {
        let stage = self.problem.stage(rank);
        if self.problem.split(rank) { stage.input } else { stage.backward() }
    }

    /// What a cell changes of what its rank holds.
    fn change(&self, rank: usize, kind: Kind) -> f64 {
        let memory = self.problem.stage_memory(rank);
        match kind {
            Kind::F => memory.activation,
            Kind::I => memory.kept - memory.activation,
            Kind::W => -memory.kept,
            Kind::B => -memory.activation,
        }
    }

    fn append(&mut self, rank: usize, kind: Kind) -> Option<()> {
        let counts = self.lanes.get(rank)?.counts;
        let ready = match kind {
            Kind::W => 0.0,
            Kind::F => match rank.checked_sub(1) {
                Some(before) => {
                    self.problem.forward_arrival(rank, *self.lanes.get(before)?.forward.get(counts.forward)?)
                }
                None => 0.0,
            },
            Kind::I | Kind::B => match self.lanes.get(rank + 1) {
                Some(after) => self.problem.gradient_arrival(rank, *after.gradient.get(counts.input)?),
                None => 0.0,
            },
        };
        let stage = self.problem.stage(rank);
        let (change, counts) = (self.change(rank, kind), counts.then(kind)?);
        let lane = self.lanes.get_mut(rank)?;
        let start = lane.end.max(ready);
        if !lane.row.is_empty() {
            lane.idle += start - lane.end;
        }
        lane.end = start + stage.of(kind);
        match kind {
            Kind::F => lane.forward.push(lane.end),
            Kind::I | Kind::B => lane.gradient.push(lane.end),
            Kind::W => {}
        }
        lane.row.push(kind);
        (lane.held, lane.counts) = (lane.held + change, counts);
        Some(())
    }
}
