//! [`Revision`]: which checkpoint of a root is meant.
//!
//! ```text
//!  latest      the one that was committed last
//!  latest~2    two before it, on its run's line
//!  step:1000   the newest of that training step
//!  seq:42      the one that record 42 committed
//!  tag:best    the one with that name
//!  9f3a61c2    the one whose manifest's digest begins so: 4 to 64 hexadecimal digits
//! ```

use std::{fmt, str::FromStr};

use crate::{
    Error, ErrorKind, Result,
    commit::{Checkpoint, Label, Seq, State},
};

/// Which checkpoint of a root is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revision {
    /// The newest, or so many before it on its run's line.
    Latest {
        /// How many before it.
        back: usize,
    },
    /// The newest of a training step.
    Step(u64),
    /// The one that a record committed.
    Seq(Seq),
    /// The one that has a name.
    Tag(Label),
    /// The one whose manifest's digest begins so.
    Digest(String),
}

/// A text that means no revision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no revision: latest, latest~N, step:N, seq:N, tag:NAME, or 4 to 64 digits of a manifest's digest"
)]
pub struct RevisionError(String);

impl From<RevisionError> for Error {
    fn from(error: RevisionError) -> Self {
        Self::incompatible(error.to_string()).caused_by(error)
    }
}

impl FromStr for Revision {
    type Err = RevisionError;

    fn from_str(text: &str) -> Result<Self, RevisionError> {
        let no = || RevisionError(text.chars().take(80).collect());
        if let Some(back) = text.strip_prefix("latest~") {
            return back.parse().map(|back| Self::Latest { back }).map_err(|_| no());
        }
        match text.split_once(':') {
            Some(("step", step)) => step.parse().map(Self::Step).map_err(|_| no()),
            Some(("seq", seq)) => {
                let seq = seq.parse().ok().and_then(|number| Seq::new(number).ok());
                seq.map(Self::Seq).ok_or_else(no)
            }
            Some(("tag", tag)) => tag.parse().map(Self::Tag).map_err(|_| no()),
            Some(_) => Err(no()),
            None if text == "latest" => Ok(Self::Latest { back: 0 }),
            None => {
                let hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
                if hex && (4..=64).contains(&text.len()) {
                    Ok(Self::Digest(text.to_owned()))
                } else {
                    Err(no())
                }
            }
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest { back: 0 } => f.write_str("latest"),
            Self::Latest { back } => write!(f, "latest~{back}"),
            Self::Step(step) => write!(f, "step:{step}"),
            Self::Seq(seq) => write!(f, "seq:{seq}"),
            Self::Tag(tag) => write!(f, "tag:{tag}"),
            Self::Digest(digits) => f.write_str(digits),
        }
    }
}

impl Revision {
    /// The checkpoint that is meant.
    ///
    /// # Errors
    /// `NotFound`, saying what there is; `Incompatible` for digits that several manifests begin with.
    pub fn resolve<'s>(&self, state: &'s State) -> Result<(Seq, &'s Checkpoint)> {
        let found = match self {
            Self::Latest { back } => newest(state).and_then(|(_, newest)| state.line(&newest.run).nth(*back)),
            Self::Step(step) => pick(state, |_, checkpoint| checkpoint.step == *step),
            Self::Seq(seq) => pick(state, |found, _| found == *seq),
            Self::Tag(tag) => state.tags.get(tag).and_then(|tagged| pick(state, |found, _| found == *tagged)),
            Self::Digest(digits) => self.by_digest(state, digits)?,
        };
        found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("no checkpoint {self} here")).hint(listed(state))
        })
    }

    fn by_digest<'s>(&self, state: &'s State, digits: &str) -> Result<Option<(Seq, &'s Checkpoint)>> {
        let begins = |checkpoint: &Checkpoint| checkpoint.manifest.sha256.to_string().starts_with(digits);
        let found: Vec<_> = state.checkpoints.iter().filter(|(_, checkpoint)| begins(checkpoint)).collect();
        match found.as_slice() {
            [(first, one), (_, other), ..] if one.manifest != other.manifest => Err(Error::incompatible(
                format!("{} manifests begin with {self}, record {first}'s the first", found.len()),
            )
            .hint("give more digits")),
            // The same manifest committed twice is one checkpoint.
            _ => Ok(found.last().map(|(seq, checkpoint)| (**seq, *checkpoint))),
        }
    }
}

fn newest(state: &State) -> Option<(Seq, &Checkpoint)> {
    pick(state, |_, _| true)
}

/// The newest checkpoint that `is` accepts.
fn pick(state: &State, is: impl Fn(Seq, &Checkpoint) -> bool) -> Option<(Seq, &Checkpoint)> {
    let mut newest_first = state.checkpoints.iter().rev().map(|(seq, checkpoint)| (*seq, checkpoint));
    newest_first.find(|(seq, checkpoint)| is(*seq, checkpoint))
}

/// What there is, newest first, in one line.
fn listed(state: &State) -> String {
    const SHOWN: usize = 5;
    let one = |(seq, checkpoint): (&Seq, &Checkpoint)| format!("seq:{seq} (step {})", checkpoint.step);
    let shown: Vec<String> = state.checkpoints.iter().rev().take(SHOWN).map(one).collect();
    let tags: Vec<String> = state.tags.keys().take(SHOWN).map(|tag| format!("tag:{tag}")).collect();
    match state.checkpoints.len() {
        0 => "every checkpoint of this root was retired".to_owned(),
        count if count > SHOWN => {
            format!("there are {count}, the newest: {}", [shown, tags].concat().join(", "))
        }
        _ => format!("there are: {}", [shown, tags].concat().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{commit::ManifestRef, digest::Sha256Digest};

    fn state() -> State {
        let mut state = State::default();
        let mut ancestor = None;
        for (number, step) in [(2_u64, 100_u64), (3, 200), (5, 100)] {
            let seq = Seq::new(number).unwrap();
            let manifest = ManifestRef {
                sha256: Sha256Digest::from_bytes([u8::try_from(number).unwrap(); 32]),
                size: 1,
            };
            let attempt = format!("step-{number}").parse().unwrap();
            let checkpoint = Checkpoint {
                run: "main".parse().unwrap(),
                epoch: 0,
                parent: ancestor,
                ancestor,
                step,
                attempt,
                manifest,
                directories: BTreeSet::new(),
                metrics: Default::default(),
                pinned: false,
                verified: None,
            };
            state.checkpoints.insert(seq, checkpoint);
            ancestor = Some(seq);
        }
        state.tags.insert("best".parse().unwrap(), Seq::new(3).unwrap());
        state
    }

    #[test]
    fn each_form_means_the_checkpoint_it_says() {
        let state = state();
        let seq = |text: &str| text.parse::<Revision>().unwrap().resolve(&state).map(|(seq, _)| seq.get());
        for (text, expected) in [
            ("latest", 5),
            ("latest~1", 3),
            ("latest~2", 2),
            ("step:100", 5),
            ("step:200", 3),
            ("seq:2", 2),
            ("tag:best", 3),
            ("0303", 3),
        ] {
            assert_eq!(seq(text).unwrap(), expected, "{text}");
            assert_eq!(text.parse::<Revision>().unwrap().to_string(), text);
        }
        for text in ["latest~3", "step:300", "seq:4", "tag:worst", "abcd"] {
            let error = seq(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.hint_text().unwrap().contains("seq:5 (step 100), seq:3 (step 200)"), "{error:?}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_grammar() {
        for text in [
            "",
            "newest",
            "latest~",
            "latest~-1",
            "step:x",
            "seq:0",
            "tag:",
            "tag:a b",
            "abc",
            "9F3A61C2",
            "x:1",
        ] {
            let error = text.parse::<Revision>().unwrap_err();
            assert!(error.to_string().contains("latest~N, step:N"), "{error}");
        }
    }
}
