//! Placement presets and user rules: which [`PlacementRule`] a name has on any mesh, as data.
//!
//! A rules file is TOML:
//! ```toml
//! [[rule]]
//! match = "layers.*.attention.wq.weight"  # a pattern
//! place = "tp:0,dp:0,pp:layer"            # tensor parallelism cuts first, data parallelism cuts what is left
//! divides = "heads"                       # optional: what the tp cut must not break
//! parts = "gate,up"                       # optional: fused parts, each of which the tp cut falls inside
//! tied = "tp:0,dp:0,pp:first+last"        # optional: place for an embedding whose head is the same tensor
//!
//! [[rename]]
//! match = "encoder.{**rest}"
//! to = "{rest}"
//!
//! [[rank_state]]                          # state that every data rank has of its own: see `rank_state`
//! match = "dataloader.token_buffer"
//! how = "concat"
//!
//! [[stack]]                                # tensors that may be one: used where stacking is asked for, see `stacking`
//! members = "layers.{layer}.experts.{expert}.{part}.weight"
//! stack = "layers.{layer}.moe.{part}@0"
//! ```
//! Within a file the first rule that matches wins; user rules come before a preset's ([`Rules::before`]).
//!
//! Invariants: [`Rules::apply`] changes nothing unless every tensor is covered; a rule that cuts a dimension that the
//! tensor lacks is an error; optimizer slots of their parameter's shape take its rule, others its stage and expert without
//! cuts, scalar ones replicate; a rule that says what must divide cuts over the counted axis by itself.

use serde::{Deserialize, Serialize};

use crate::{
    AxisName, Fqn, PlacementError, PlacementRule, RegistryError, Shape, TensorId,
    pattern::{Pattern, PatternError, Template},
    rank_state::{RankScheme, RankStateError},
    stacking::{StackError, Stacking},
};

mod apply;
mod detect;
mod divide;
mod facts;
mod flags;
#[cfg(test)]
mod models;
mod parse;
mod parts;
#[cfg(test)]
mod tests;

pub use apply::Applied;
pub use detect::{Fit, detect, named, presets};
pub use divide::{Constraint, Indivisible};
pub use facts::{FactError, ModelFacts};
pub use parts::Parts;

/// What a tensor-parallel cut counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Query heads.
    Heads,
    /// Key and value heads.
    KvHeads,
    /// Width of the feed-forward layer.
    Ffn,
    /// Width of one expert's feed-forward layer.
    ExpertFfn,
    /// Rows of the vocabulary: `ceil` chunks are fine, so it constrains nothing.
    Vocab,
    /// Experts.
    Experts,
    /// Scales, each of a block of a weight: a cut between two of them is a cut between two blocks.
    Blocks,
    /// Layers, over the pipeline axis.
    Layers,
}

/// One placement rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Names it is for.
    pub pattern: Pattern,
    /// Their placement.
    pub place: PlacementRule,
    /// Their placement if the tensor is tied.
    pub tied: Option<PlacementRule>,
    /// What its tensor-parallel cut counts in.
    pub divides: Option<Unit>,
    /// Fused parts along the dimension of its tensor-parallel cut.
    pub parts: Option<Parts>,
    /// Line in its file, or position among the flags.
    pub line: usize,
}

/// One rename rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// Names it is for.
    pub pattern: Pattern,
    /// What they become.
    pub to: Template,
}

/// What a preset says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preset {
    /// Short name: `llama-hf`.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Patterns that must all occur for it to be considered.
    pub needs: Vec<Pattern>,
    /// Names of the output head: a model that has none ties it to the embedding.
    pub head: Option<Pattern>,
}

/// A set of rules, in order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// The preset they are; `None` for a user's own.
    pub preset: Option<Preset>,
    /// Placement rules, first match wins.
    pub rules: Vec<Rule>,
    /// Rename rules, first match wins.
    pub renames: Vec<Rename>,
    /// What becomes of state that every data rank has of its own, first match wins.
    pub rank_state: RankScheme,
    /// How names of members and of their stacks belong together. Nothing is stacked unless it is asked for.
    pub stacks: Vec<Stacking>,
}

/// A tensor that no rule covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncovered {
    /// The tensor.
    pub id: TensorId,
    /// The rule whose pattern is nearest.
    pub nearest: Option<String>,
}

/// Why rules cannot be read or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Not TOML.
    #[error("rules are not TOML: {0}")]
    Toml(String),
    /// A key that means nothing.
    #[error("line {line}: unknown key {key:?} in [{table}]{}", nearest.as_ref().map_or_else(String::new, |n| format!(", did you mean {n:?}?")))]
    UnknownKey {
        /// The key.
        key: String,
        /// Table it is in.
        table: &'static str,
        /// Nearest key that means something.
        nearest: Option<&'static str>,
        /// Line.
        line: usize,
    },
    /// A key that a rule needs.
    #[error("line {line}: [{table}] has no {key:?}")]
    MissingKey {
        /// The key.
        key: &'static str,
        /// Table.
        table: &'static str,
        /// Line.
        line: usize,
    },
    /// A value of another type.
    #[error("line {line}: {key:?} must be {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// Line.
        line: usize,
    },
    /// A pattern or template that is none.
    #[error("line {line}: {source}")]
    Pattern {
        /// Line.
        line: usize,
        /// Why.
        source: PatternError,
    },
    /// A placement that is none.
    #[error("line {line}: {source}")]
    Place {
        /// Line.
        line: usize,
        /// Why.
        source: PlacementError,
    },
    /// A rule on the command line that is none.
    #[error("{flag:?} is no placement rule: {why}")]
    Flag {
        /// The rule as given.
        flag: String,
        /// Why not.
        why: String,
    },
    /// What divides is counted over one axis, and the cut is over several as one.
    #[error(
        "line {line}: {place} cuts over {axis} and other axes as one, but divides and parts count by {axis} alone: \
         name the axes one after another"
    )]
    Joined {
        /// Line.
        line: usize,
        /// The placement.
        place: PlacementRule,
        /// The axis that is counted by.
        axis: AxisName,
    },
    /// Fused parts that are none.
    #[error("line {line}: {why}")]
    PartsText {
        /// Line.
        line: usize,
        /// Why not.
        why: String,
    },
    /// Fused parts that a tensor can't have.
    #[error("rule {rule:?} names the fused parts of {id}, but {why}")]
    Parts {
        /// The tensor.
        id: TensorId,
        /// Pattern of the rule.
        rule: String,
        /// Why it can't have them.
        why: String,
    },
    /// A rule for state of data ranks that is none.
    #[error("line {line}: {source}")]
    RankState {
        /// Line.
        line: usize,
        /// Why.
        source: RankStateError,
    },
    /// A pair of names of members and stack that is none.
    #[error("line {line}: {source}")]
    Stack {
        /// Line.
        line: usize,
        /// Why not.
        source: Box<StackError>,
    },
    /// A hole that the pattern doesn't fill.
    #[error("line {line}: {{{hole}}} in {to:?} is not captured by {pattern:?}")]
    Hole {
        /// The hole.
        hole: String,
        /// The template.
        to: String,
        /// The pattern.
        pattern: String,
        /// Line.
        line: usize,
    },
    /// Names that no rule covers.
    #[error("{}", uncovered_text(.0))]
    Uncovered(Vec<Uncovered>),
    /// A cut of a dimension that the tensor lacks.
    #[error("rule {rule:?} places {id} by {place}, but its shape {shape} has no dimension {dim}")]
    NoDimension {
        /// The tensor.
        id: TensorId,
        /// Pattern of the rule.
        rule: String,
        /// Its placement.
        place: String,
        /// Shape of the tensor.
        shape: Box<Shape>,
        /// Missing dimension.
        dim: usize,
    },
    /// `pp:layer` for a tensor of no layer.
    #[error(
        "rule {rule:?} places {id} by its layer (pp:layer), but its name holds no layer index: use pp:first, pp:last or pp:all"
    )]
    NoLayer {
        /// The tensor.
        id: TensorId,
        /// Pattern of the rule.
        rule: String,
    },
    /// `ep:expert` for a tensor of no expert.
    #[error("rule {rule:?} places {id} by its expert (ep:expert), but its name holds no expert index")]
    NoExpert {
        /// The tensor.
        id: TensorId,
        /// Pattern of the rule.
        rule: String,
    },
    /// A rename gives a name that is none or is taken.
    #[error("renaming {from} to {to:?}: {why}")]
    Rename {
        /// Name before.
        from: Fqn,
        /// Name made.
        to: String,
        /// Why not.
        why: String,
    },
    /// Two tensors of one id.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn uncovered_text(list: &[Uncovered]) -> String {
    let mut text = format!("{} names are covered by no rule:", list.len());
    for one in list.iter().take(8) {
        let near = one.nearest.as_ref().map_or_else(String::new, |n| format!(" (nearest rule {n:?})"));
        text.push_str(&format!(" {}{near};", one.id));
    }
    if list.len() > 8 {
        text.push_str(&format!(" and {} more;", list.len() - 8));
    }
    text + " add a [[rule]] for them"
}

impl Rules {
    /// These rules, then `others`: where both match, these win. The preset is that of `others`, if it has one.
    #[must_use]
    pub fn before(mut self, others: Self) -> Self {
        self.rules.extend(others.rules);
        self.renames.extend(others.renames);
        self.rank_state = self.rank_state.before(others.rank_state);
        self.stacks.extend(others.stacks);
        self.preset = others.preset.or(self.preset);
        self
    }

    /// The rule for `name`.
    #[must_use]
    pub fn rule_for(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.pattern.matches(name))
    }
}

impl Rule {
    /// Dimension and axis of the cut that [`Self::divides`] is about: the expert-parallel one for experts, else the
    /// tensor-parallel one.
    pub(crate) fn unit_cut(&self) -> Option<(&AxisName, usize)> {
        self.cut_over(if self.divides == Some(Unit::Experts) { "ep" } else { "tp" })
    }

    /// Refuses what a mesh must divide, or fused parts, beside a cut over several axes as one: it has as many parts as all of
    /// them have ranks together, and only one axis would be checked.
    fn counts_by_one_axis(&self) -> Result<(), RulesError> {
        let counts = self.divides.is_some() || self.parts.is_some();
        let by = if self.divides == Some(Unit::Experts) && self.parts.is_none() { "ep" } else { "tp" };
        for place in [Some(&self.place), self.tied.as_ref()].into_iter().flatten().filter(|_| counts) {
            let joined = place.cuts().iter().filter(|cut| cut.axes.len() > 1);
            if let Some(axis) = joined.flat_map(|cut| &cut.axes).find(|axis| axis.as_str() == by) {
                return Err(RulesError::Joined { line: self.line, place: place.clone(), axis: axis.clone() });
            }
        }
        Ok(())
    }

    /// The cut over the axis called `name`.
    pub(crate) fn cut_over(&self, name: &str) -> Option<(&AxisName, usize)> {
        let each = self.place.cuts().iter().flat_map(|cut| cut.axes.iter().map(|axis| (axis, cut.dim)));
        each.into_iter().find(|(axis, _)| axis.as_str() == name)
    }
}
