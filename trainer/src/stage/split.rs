//! Which parts each stage runs, and which names that makes: every layer goes where the stage split puts it, what comes
//! before the first layer goes with the first stage, what comes after the last with the last.
//!
//! Invariant of [`Inventory`]: stages' parts tile the model's parts in order, so that no name is lost, and none is on two
//! stages unless the model uses it twice (a tie).

use std::{collections::BTreeMap, fmt, ops::Range};

use fqn::Fqn;
use reshard::Stages;

use crate::{Error, Result, model::Model};

/// The parts of `stage`, as `stages` splits the layers of `model`.
///
/// # Errors
/// `Config` for a stage that isn't there, layers that are not placed or not in order, and a part between layers of two
/// stages that is none.
pub fn parts_of_stage(model: &dyn Model, stages: &Stages, stage: usize) -> Result<Range<usize>> {
    let all = ranges(model, stages)?;
    let count = all.len();
    all.into_iter().nth(stage).ok_or_else(|| {
        Error::config(format!("stage {stage} is not there: the model is split into {count} stages"))
    })
}

/// Names on every stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    stages: Vec<StageNames>,
    ties: Vec<Fqn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct StageNames {
    parts: Vec<String>,
    names: Vec<(Fqn, u64)>,
}

/// Lists the names of every stage, and checks that each name of the model is on exactly one, or on the several that use
/// it.
///
/// # Errors
/// As [`parts_of_stage`]; `Config` for names that no stage has.
pub fn inventory(model: &dyn Model, stages: &Stages) -> Result<Inventory> {
    let listed = ranges(model, stages)?.into_iter().map(|parts| names_of(model, parts));
    let stages = listed.collect::<Result<Vec<_>>>()?;
    let mut holders: BTreeMap<&Fqn, usize> = BTreeMap::new();
    for (name, _) in stages.iter().flat_map(|stage| &stage.names) {
        *holders.entry(name).or_default() += 1;
    }
    let lost = model.params().iter().filter(|spec| !holders.contains_key(&spec.fqn));
    let lost: Vec<_> = lost.map(|spec| spec.fqn.to_string()).collect();
    if !lost.is_empty() {
        return Err(Error::config(format!(
            "no stage has {}: no part of the model uses them",
            lost.join(", ")
        )));
    }
    let ties = holders.into_iter().filter(|(_, on)| *on > 1).map(|(name, _)| name.clone()).collect();
    Ok(Inventory { stages, ties })
}

impl Inventory {
    /// Names on `stage`, in the model's order of use, with their numbers of elements.
    pub fn names(&self, stage: usize) -> &[(Fqn, u64)] {
        self.stages.get(stage).map_or(&[], |stage| &stage.names)
    }

    /// Names that several stages have.
    pub fn ties(&self) -> &[Fqn] {
        &self.ties
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = std::collections::BTreeSet::new();
        for (stage, StageNames { parts, names: here }) in self.stages.iter().enumerate() {
            let elements: u64 = here.iter().map(|(_, elements)| elements).sum();
            let count = here.len();
            writeln!(f, "stage {stage}: {}: {count} names, {elements} elements", parts.join(", "))?;
            for (name, elements) in here {
                let tie = if self.ties.contains(name) { ", tied" } else { "" };
                writeln!(f, "  {name} ({elements}{tie})")?;
                names.insert(name);
            }
        }
        let (stages, ties) = (self.stages.len(), self.ties.len());
        write!(f, "{} names on {stages} stages: all of the model's, {ties} on several stages", names.len())
    }
}

/// The parts of all stages, in order.
fn ranges(model: &dyn Model, stages: &Stages) -> Result<Vec<Range<usize>>> {
    let count = usize::try_from(stages.count()).map_err(|_| Error::config("too many stages"))?;
    let of_parts = stage_of_parts(model, stages, count)?;
    let mut begin = 0;
    let cut = |stage| {
        let end = begin + of_parts.iter().filter(|of| **of == stage).count();
        Ok(std::mem::replace(&mut begin, end)..end).and_then(|range: Range<usize>| match range.is_empty() {
            true => Err(Error::config(format!("stage {stage} has no part of the model"))),
            false => Ok(range),
        })
    };
    (0..count).map(cut).collect()
}

/// The stage of each part; ascending.
fn stage_of_parts(model: &dyn Model, stages: &Stages, count: usize) -> Result<Vec<usize>> {
    let parts = model.parts();
    let last_layer = parts.iter().rposition(|part| part.layer.is_some());
    let mut current = 0;
    let mut found = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let stage = match part.layer {
            Some(layer) => {
                stages.of(layer).and_then(|stage| usize::try_from(stage).ok()).ok_or_else(|| {
                    Error::config(format!("layer {layer} ({}) is on no stage", part.name))
                        .hint("the stage split was made for another model")
                })?
            }
            None if last_layer.is_none_or(|last| index > last) => count.saturating_sub(1),
            None => current,
        };
        if stage < current || stage >= count {
            let name = &part.name;
            return Err(Error::config(format!(
                "{name} is on stage {stage}, but the part before it is on stage {current} of {count}: stages must be \
                 contiguous"
            )));
        }
        current = stage;
        found.push(stage);
    }
    Ok(found)
}

fn names_of(model: &dyn Model, parts: Range<usize>) -> Result<StageNames> {
    let used =
        model.parts().get(parts.clone()).ok_or_else(|| Error::internal(format!("no parts {parts:?}")))?;
    let mut names: Vec<(Fqn, u64)> = Vec::new();
    for part in used {
        for index in &part.params {
            let spec = model.params().get(*index).ok_or_else(|| {
                Error::internal(format!("part {} uses parameter {index}, which the model lacks", part.name))
            })?;
            let elements = spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap_or(0)).product();
            if !names.iter().any(|(name, _)| *name == spec.fqn) {
                names.push((spec.fqn.clone(), elements));
            }
        }
    }
    Ok(StageNames { parts: used.iter().map(|part| part.name.clone()).collect(), names })
}
