//! [`RankScheme`]: what becomes of state that every data rank has of its own when their number changes, as rules over key paths.
//!
//! A value of one rank is a tree of named leaves: `dataloader.dp_rank_2` holds `token_buffer` and `sample_idx`. The path of a leaf
//! leaves the rank out, so that one rule is for all of them: `dataloader.token_buffer`. A rule covers what its pattern matches and
//! all below it; of a scheme's rules the first that covers a leaf decides.
//!
//! ```
//! use fqn::rank_state::{RankScheme, Spread};
//!
//! let scheme = RankScheme::from_flags(&["dataloader.**=same", "dataloader.dp_rank_{rank}.token_buffer=concat"])?;
//! assert_eq!(scheme.spread(&["dataloader", "token_buffer"]), Some(Spread::Concat)); // later flags win
//! assert_eq!(scheme.spread(&["dataloader", "rng", "seed"]), Some(Spread::Same));
//! assert_eq!(scheme.spread(&["train_state", "step"]), None);
//! # Ok::<(), fqn::rank_state::RankStateError>(())
//! ```
//!
//! Invariant: nothing is guessed. A leaf that no rule covers has no meaning here, whatever it is called.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::pattern::{Pattern, PatternError};

mod cursor;

pub use cursor::{Below, Cursor};

/// Most rules of a scheme that is given or recorded.
pub const MOST_RULES: usize = 1024;

/// Most bytes of a rule's pattern.
const LONGEST: usize = 1024;

/// What a change of the number of data ranks does to a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// The same on all ranks, and kept.
    Same,
    /// Lists, joined in the order of ranks and cut into contiguous parts.
    Concat,
    /// Lists: item `j` of rank `r` of `R` is item `j·R + r` of the whole.
    Interleave,
    /// Numbers, added up and shared out, what is left over on the first ranks.
    Sum,
    /// The number of data ranks, rewritten.
    Ranks,
    /// Left out.
    Drop,
}

/// One rule of a scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRule {
    /// Paths of leaves, or of what holds them.
    pub pattern: Pattern,
    /// What becomes of them.
    pub spread: Spread,
}

/// Rules, in order of precedence: the first that covers a leaf decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Written>", into = "Vec<Written>")]
pub struct RankScheme(Vec<RankRule>);

/// Why a rule is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankStateError {
    /// Not `PATTERN=HOW`.
    #[error("{0:?} is not PATH=HOW, for example 'dataloader.token_buffer=concat'")]
    Flag(String),
    /// A word that is none of the six.
    #[error("{0:?} is none of same, concat, interleave, sum, ranks, drop")]
    Spread(String),
    /// A pattern that is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A pattern that is longer than paths are.
    #[error("the pattern {0:?}… is longer than {LONGEST} bytes")]
    Long(String),
    /// More rules than anybody writes.
    #[error("{0} rules are more than {MOST_RULES}")]
    TooMany(usize),
}

/// A rule as text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    r#match: String,
    how: Spread,
}

impl Spread {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Same, Self::Concat, Self::Interleave, Self::Sum, Self::Ranks, Self::Drop];

    /// The text form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Concat => "concat",
            Self::Interleave => "interleave",
            Self::Sum => "sum",
            Self::Ranks => "ranks",
            Self::Drop => "drop",
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Spread {
    type Err = RankStateError;

    fn from_str(text: &str) -> Result<Self, RankStateError> {
        let found = Self::ALL.into_iter().find(|spread| spread.name() == text);
        found.ok_or_else(|| RankStateError::Spread(text.escape_default().to_string()))
    }
}

impl RankRule {
    /// A rule for the paths that `pattern` matches. A segment that ends in `{rank}` stands for the rank, which paths leave out.
    ///
    /// # Errors
    /// A pattern that is none, or too long.
    pub fn new(pattern: &str, spread: Spread) -> Result<Self, RankStateError> {
        if pattern.len() > LONGEST {
            return Err(RankStateError::Long(pattern.chars().take(40).collect()));
        }
        let without: Vec<&str> = pattern.split('.').filter(|segment| !segment.ends_with("{rank}")).collect();
        Ok(Self { pattern: Pattern::new(&without.join("."))?, spread })
    }
}

impl RankScheme {
    /// Rules in order of precedence.
    #[must_use]
    pub const fn new(rules: Vec<RankRule>) -> Self {
        Self(rules)
    }

    /// Rules from texts of the form `PATH=HOW`; where several cover a leaf, the last one given decides.
    ///
    /// # Errors
    /// The first text that is no rule; too many.
    pub fn from_flags<S: AsRef<str>>(texts: &[S]) -> Result<Self, RankStateError> {
        few(texts.len())?;
        let rule = |text: &str| {
            let flag = || RankStateError::Flag(text.escape_default().to_string());
            let (pattern, spread) = text.rsplit_once('=').ok_or_else(flag)?;
            RankRule::new(pattern.trim(), spread.trim().parse()?)
        };
        let rules = texts.iter().rev().map(|text| rule(text.as_ref()));
        Ok(Self(rules.collect::<Result<_, _>>()?))
    }

    /// These rules, then `others`: where both cover a leaf, these decide.
    #[must_use]
    pub fn before(mut self, others: Self) -> Self {
        self.0.extend(others.0.into_iter().filter(|rule| !self.0.contains(rule)).collect::<Vec<_>>());
        self
    }

    /// The rules, in order of precedence.
    #[must_use]
    pub fn rules(&self) -> &[RankRule] {
        &self.0
    }

    /// Whether it has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule that decides on the leaf at `path`, which leaves the rank out; `None` where none covers it.
    #[must_use]
    pub fn rule(&self, path: &[&str]) -> Option<&RankRule> {
        self.0.get(self.at(path).rule()?)
    }

    /// What becomes of the leaf at `path`; `None` where no rule covers it.
    #[must_use]
    pub fn spread(&self, path: &[&str]) -> Option<Spread> {
        self.rule(path).map(|rule| rule.spread)
    }
}

impl From<RankScheme> for Vec<Written> {
    fn from(scheme: RankScheme) -> Self {
        let written = |rule: RankRule| Written { r#match: rule.pattern.to_string(), how: rule.spread };
        scheme.0.into_iter().map(written).collect()
    }
}

impl TryFrom<Vec<Written>> for RankScheme {
    type Error = RankStateError;

    fn try_from(written: Vec<Written>) -> Result<Self, RankStateError> {
        few(written.len())?;
        let rules = written.into_iter().map(|it| RankRule::new(&it.r#match, it.how));
        Ok(Self(rules.collect::<Result<_, _>>()?))
    }
}

const fn few(rules: usize) -> Result<(), RankStateError> {
    if rules > MOST_RULES { Err(RankStateError::TooMany(rules)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_said_of_all_leaves_below_a_place_is_known_before_any_of_them_is() {
        let scheme =
            RankScheme::from_flags(&["loader.**=same", "loader.rng=drop", "loader.*.x=sum"]).unwrap();
        for (path, below) in [
            (&["train"][..], Below::Nothing),
            (&["loader"], Below::Mixed),
            (&["loader", "rng"], Below::Mixed),
            (&["loader", "rng", "y"], Below::Rule(1)),
            (&["loader", "rng", "x"], Below::Rule(0)),
            (&["loader", "step", "y"], Below::Rule(2)),
            (&["loader.rng.y"], Below::Rule(1)),
        ] {
            assert_eq!(scheme.at(path).below(), below, "{path:?}");
        }
    }

    #[test]
    fn a_hostile_scheme_and_deep_paths_cost_no_more_than_their_own_length() {
        let written: Vec<Value> =
            (0..MOST_RULES).map(|at| json!({"match": format!("**.a{at}.**.b"), "how": "same"})).collect();
        let scheme: RankScheme = serde_json::from_value(written.clone().into()).unwrap();
        let begun = Instant::now();
        let mut cursor = scheme.cursor();
        (0..100).for_each(|_| cursor.push(&"deep".repeat(1000)));
        for _ in 0..100 {
            cursor.push("leaf");
            assert_eq!(cursor.rule(), None);
            cursor.pop();
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let more = [written, vec![json!({"match": "a", "how": "same"})]].concat();
        let error = serde_json::from_value::<RankScheme>(more.into()).unwrap_err().to_string();
        assert!(error.contains("1025 rules are more than 1024"), "{error}");
        let long = RankScheme::from_flags(&[format!("{}=same", "a".repeat(2000))]).unwrap_err().to_string();
        assert!(long.contains("longer than 1024 bytes"), "{long}");
    }

    proptest! {
        #[test]
        fn keys_one_by_one_are_covered_as_whole_paths_are(
            patterns in prop::collection::vec(r"(\*\*\.)?(a|\*|\{layer\}|\{a,b\.c\}|\{0\.\.3\})(\.(a|b\*|\*\*|\{\*\*rest\}|3)){0,3}", 1..4),
            path in prop::collection::vec("a|b|c|bc|3|12", 0..6),
        ) {
            let rules = patterns.iter().filter_map(|it| RankRule::new(it, Spread::Same).ok());
            let scheme = RankScheme::new(rules.collect());
            let covers = |rule: &RankRule| (1..=path.len()).any(|end| rule.pattern.matches(&path[..end].join(".")));
            let expected = scheme.rules().iter().position(covers);
            let cursor = scheme.at(&path);
            prop_assert_eq!(cursor.rule(), expected);
            if cursor.below() == Below::Nothing {
                prop_assert_eq!(expected, None);
            }
        }
    }

    #[test]
    fn a_rule_covers_what_it_matches_and_all_below() {
        let scheme = RankScheme::from_flags(&["loader.workers=drop", "loader.**.step = sum"]).unwrap();
        assert_eq!(scheme.spread(&["loader", "workers", "worker_0", "rng"]), Some(Spread::Drop));
        assert_eq!(scheme.spread(&["loader", "workers", "step"]), Some(Spread::Sum), "the later flag wins");
        assert_eq!(scheme.spread(&["loader", "epoch"]), None);
        assert_eq!(scheme.spread(&["workers"]), None);
        assert_eq!(scheme.spread(&[]), None);
    }

    #[test]
    fn what_is_no_rule_is_told() {
        for (text, word) in [
            ("loader.buffer", "is not PATH=HOW"),
            ("loader.buffer=join", "none of same, concat"),
            ("loader..buffer=sum", "segment"),
            ("=sum", "segment"),
        ] {
            let error = RankScheme::from_flags(&[text]).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_scheme_reads_back_from_json_as_it_was() {
        let scheme =
            RankScheme::from_flags(&["a.**=same", "a.rank_{rank}.b=concat", "a.world_size=ranks"]).unwrap();
        let text = serde_json::to_string(&scheme).unwrap();
        assert_eq!(
            text,
            r#"[{"match":"a.world_size","how":"ranks"},{"match":"a.b","how":"concat"},{"match":"a.**","how":"same"}]"#
        );
        assert_eq!(serde_json::from_str::<RankScheme>(&text).unwrap(), scheme);
        for hostile in
            [r#"[{"match":"a{","how":"same"}]"#, r#"[{"match":"a","how":"add"}]"#, r#"{"a":"same"}"#]
        {
            assert!(serde_json::from_str::<RankScheme>(hostile).is_err(), "{hostile}");
        }
    }
}
