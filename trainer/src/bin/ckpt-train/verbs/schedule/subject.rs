//! [`Subject`]: the schedule that a verb is about, made of options, a configuration or a file; and [`Setting`], what it is for.

use std::{fs, path::Path};

use schedule::{
    Effort, Gather, Memory, Plan, Problem, Program, Shape, StageMemory, StageTimes, Table, Times, Timing, csv,
};
use trainer::{Error, Place, Result};

use super::{
    args::{Numbers, Which},
    numbers::{Amounts, Durations},
};

/// The name under which a schedule is made for the numbers.
pub(super) const AUTO: &str = "auto";

/// Ranks, microbatches, and what was said of times and memory.
#[derive(Debug, Clone)]
pub(super) struct Setting<'a> {
    pub(super) numbers: &'a Numbers,
    pub(super) ranks: usize,
    pub(super) microbatches: usize,
    /// As the configuration has it.
    stages_per_rank: Option<usize>,
    schedule: Option<String>,
}

/// A schedule, and what it is for.
#[derive(Debug)]
pub(super) struct Subject {
    /// As its generator calls itself, `auto`, or the file.
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) table: Table,
    /// As the file has it, where that holds communication.
    program: Option<Program>,
    pub(super) timing: Timing,
    pub(super) memory: Memory,
    /// What is wasteful about it, or how it was made.
    pub(super) notes: Vec<String>,
}

impl<'a> Setting<'a> {
    /// Of the options, and of the configuration where they leave something out.
    pub(super) fn new(numbers: &'a Numbers) -> Result<Self> {
        let mut setting = Self { numbers, ranks: 0, microbatches: 0, stages_per_rank: None, schedule: None };
        if numbers.source.given() {
            let resolved = numbers.source.resolve()?;
            let parallelism = &resolved.config.parallelism;
            setting.ranks = parallelism.mesh.pp;
            setting.microbatches = usize::try_from(resolved.batches.microbatches).unwrap_or(usize::MAX);
            setting.stages_per_rank = usize::try_from(parallelism.stages_per_rank).ok();
            setting.schedule = Some(parallelism.schedule.clone());
        }
        setting.ranks = numbers.pp.unwrap_or(setting.ranks);
        setting.microbatches = numbers.microbatches.unwrap_or(setting.microbatches);
        setting.stages_per_rank = numbers.stages_per_rank.or(setting.stages_per_rank);
        Ok(setting)
    }

    /// That there are numbers at all.
    pub(super) fn complete(&self) -> Result<()> {
        let lacks = [(self.ranks, "--pp"), (self.microbatches, "--microbatches")];
        match lacks.iter().find(|(number, _)| *number == 0) {
            Some((_, option)) => Err(Error::config(format!("{option} is not given, or 0"))
                .hint("say for how many: --pp 4 --microbatches 8, or --config run.toml")),
            None => Ok(()),
        }
    }

    /// Times of every stage of `table`; weight gradients that can't be split off are in the input gradient's.
    pub(super) fn timing(&self, stages: usize, per_rank: usize) -> Result<Timing> {
        let share = self.numbers.splittable;
        let split = |Durations([forward, input, weight, transfer]): Durations| Times {
            forward,
            input: input + (1.0 - share) * weight,
            weight: share * weight,
            transfer,
        };
        let timing = match self.numbers.times.as_slice() {
            [] => Timing::even(stages, per_rank, split(Durations([1.0, 1.0, 1.0, 0.0]))),
            [one] => Timing::even(stages, per_rank, split(*one)),
            several => {
                let times: Vec<Times> = several.iter().map(|it| split(*it)).collect();
                let stage = |it: &Times| StageTimes::new(it.forward, it.input, it.weight);
                let mut timing = Timing::of_stages(times.iter().map(stage).collect(), 0.0);
                // A stage's transfer is of what it gives: activations onwards, gradients back.
                timing.forward = times.iter().take(times.len() - 1).map(|it| it.transfer).collect();
                timing.backward = times.iter().skip(1).map(|it| it.transfer).collect();
                timing
            }
        };
        timing.check(stages).map_err(|error| several("--times", &error.to_string()))?;
        Ok(timing)
    }

    /// Memory of every stage; without --memory, microbatches of a whole rank.
    pub(super) fn memory(&self, stages: usize, per_rank: usize) -> Result<Memory> {
        let stage = |Amounts([activation, kept, weights]): Amounts, parts: f64| StageMemory {
            activation: activation / parts,
            kept: kept / parts,
            weights: weights / parts,
            gathered: 0.0,
        };
        let parts = per_rank.max(1) as f64;
        let memory = match self.numbers.memory.as_slice() {
            [] => vec![stage(Amounts([1.0, 1.0, 0.0]), parts); stages],
            [one] => vec![stage(*one, parts); stages],
            several => several.iter().map(|it| stage(*it, 1.0)).collect(),
        };
        let memory = Memory { stages: memory };
        memory.check(stages).map_err(|error| several("--memory", &error.to_string()))?;
        Ok(memory)
    }

    /// What memory is counted in.
    pub(super) fn unit(&self) -> &'static str {
        if self.numbers.memory.is_empty() { "microbatches of a rank" } else { "memory" }
    }

    /// The limit of every rank; none if none is given.
    pub(super) fn limits(&self) -> Result<Option<Vec<f64>>> {
        match self.numbers.limit.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(vec![*one; self.ranks])),
            all if all.len() == self.ranks => Ok(Some(all.to_vec())),
            all => {
                let said = format!("there are {} limits, but {} pipeline ranks", all.len(), self.ranks);
                Err(several("--limit", &said))
            }
        }
    }

    /// A schedule made for the numbers, within `limits`.
    pub(super) fn automatic(&self, limits: Vec<f64>) -> Result<(Plan, Problem)> {
        if self.stages_per_rank.is_some_and(|stages| stages > 1) && self.numbers.stages_per_rank.is_some() {
            return Err(Error::config("automatic schedules have one stage on each rank")
                .hint("leave --stages-per-rank out, or choose InterleavedZeroBubble or ZBVZeroBubble"));
        }
        let problem = Problem {
            timing: self.timing(self.ranks, 1)?,
            memory: self.memory(self.ranks, 1)?,
            limits,
            splittable: vec![self.numbers.splittable > 0.0; self.ranks],
            microbatches: self.microbatches,
            goal: self.numbers.goal.into(),
        };
        Ok((schedule::plan(&problem, Effort::default())?, problem))
    }

    /// The schedule called `name`.
    pub(super) fn named(&self, name: &str) -> Result<Subject> {
        self.complete()?;
        if name.eq_ignore_ascii_case(AUTO) {
            let limits = self.limits()?.unwrap_or_else(|| vec![f64::INFINITY; self.ranks]);
            return self.planned(AUTO.to_owned(), limits);
        }
        let generator = schedule::named(name)?;
        let takes = generator.stages_per_rank();
        // What the configuration says is for its own schedule.
        let own = self.stages_per_rank.filter(|own| takes.contains(own));
        let per_rank = self.numbers.stages_per_rank.or(own).unwrap_or(*takes.start());
        let shape = Shape {
            stages: self.ranks.saturating_mul(per_rank),
            ranks: self.ranks,
            microbatches: self.microbatches,
        };
        let table = schedule::generate(generator, shape)?;
        let notes = schedule::advice(generator, shape).iter().map(ToString::to_string).collect();
        self.subject(generator.name().to_owned(), table, None, notes)
    }

    /// `auto`, within `limits`.
    pub(super) fn planned(&self, name: String, limits: Vec<f64>) -> Result<Subject> {
        let (plan, problem) = self.automatic(limits)?;
        let (cost, floor) = (plan.cost, problem.floor());
        let over = if floor > 0.0 { 100.0 * (cost / floor - 1.0) } else { 0.0 };
        let notes =
            vec![format!("made by {}; {over:.1} % above what no order can be shorter than", origin(&plan))];
        self.subject(name, plan.table, None, notes)
    }

    fn subject(
        &self,
        name: String,
        table: Table,
        program: Option<Program>,
        notes: Vec<String>,
    ) -> Result<Subject> {
        let shape = Shape {
            stages: table.stages(),
            ranks: table.placement.ranks(),
            microbatches: table.microbatches,
        };
        let (timing, memory) =
            (self.timing(shape.stages, shape.per_rank())?, self.memory(shape.stages, shape.per_rank())?);
        Ok(Subject { name, shape, table, program, timing, memory, notes })
    }

    fn file(&mut self, path: &Path, which: &Which) -> Result<Subject> {
        let text = fs::read_to_string(path).place(path.display())?;
        let options = csv::Options {
            dialect: which.dialect,
            ranks: Some(self.ranks).filter(|ranks| *ranks > 0),
            microbatches: Some(self.microbatches).filter(|count| *count > 0),
            ..csv::Options::default()
        };
        let document = csv::read(&text, &options).place(path.display())?;
        let table = document.table().place(path.display())?;
        let program = (document.format() == csv::Format::ComputeComms)
            .then(|| document.program(Gather::PerPart).place(path.display()))
            .transpose()?;
        (self.ranks, self.microbatches) = (table.placement.ranks(), table.microbatches);
        self.subject(path.display().to_string(), table, program, Vec::new())
    }

    /// What a verb is about.
    pub(super) fn which(&mut self, which: &Which) -> Result<Subject> {
        if let Some(path) = &which.csv {
            return self.file(path, which);
        }
        let name = which.name.clone().or_else(|| self.schedule.clone());
        let name = name.ok_or_else(|| {
            Error::config("no schedule is named").hint(format!(
                "give one of {}, {AUTO}; or --csv FILE, or --config run.toml",
                schedule::known().join(", ")
            ))
        })?;
        // As the configuration has it: a name, or the path of a file.
        if name.to_ascii_lowercase().ends_with(".csv") {
            self.file(Path::new(&name), which)
        } else {
            self.named(&name)
        }
    }
}

impl Subject {
    /// As it is lowered, or as the file has it.
    pub(super) fn program(&self) -> Result<Program> {
        self.program.clone().map_or_else(|| Ok(schedule::lower(&self.table, Gather::PerPart)?), Ok)
    }

    /// Its name, and what it is for.
    pub(super) fn title(&self) -> String {
        let Shape { ranks, microbatches, .. } = self.shape;
        let stages = match self.shape.per_rank() {
            1 => String::new(),
            several => format!(" with {several} stages each"),
        };
        format!("{}: {ranks} ranks{stages}, {microbatches} microbatches", self.name)
    }
}

fn several(option: &str, said: &str) -> Error {
    Error::config(format!("{option}: {said}")).hint(format!("give {option} once for all, or once for each"))
}

/// In words.
fn origin(plan: &Plan) -> String {
    match &plan.origin {
        schedule::Origin::Greedy(_) => "the greedy scheduler".to_owned(),
        schedule::Origin::InTime => "the scheduler in time".to_owned(),
        schedule::Origin::Known(name) => format!("hand, as {name} within the memory"),
        schedule::Origin::Improved { moves } => format!("the search ({moves} moves)"),
    }
}
