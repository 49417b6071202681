//! Decides, for keys without a path, whether a leading word such as `model.` is a container or part of the names.

use std::collections::HashSet;

use super::{
    Note,
    section::{AMBIGUOUS, MODELS},
};
use crate::dialect::is_known_name;

/// The decision for a model that is at the root of flat keys.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Word to take off with its dot.
    pub container: Option<String>,
    pub note: Option<Note>,
}

/// `names` are the keys that may be the model's; `optimized` the parameters that optimizer state names.
pub(super) fn decide(names: &[&str], optimized: &HashSet<&str>) -> Decision {
    let Some(word) = common_word(names) else { return Decision::default() };
    if !AMBIGUOUS.contains(&word) {
        return decision(word, true, "no module is called so".to_owned());
    }
    let rest = || names.iter().filter_map(|name| Some(name.split_once('.')?.1));
    let paired = (
        rest().filter(|n| optimized.contains(n)).count(),
        names.iter().filter(|n| optimized.contains(*n)).count(),
    );
    if paired.0 != paired.1 {
        let taken_off = paired.0 > paired.1;
        let count = paired.0.max(paired.1);
        let how = if taken_off { "without" } else { "with" };
        return decision(word, taken_off, format!("optimizer state names {count} parameters {how} it"));
    }
    let known =
        (rest().filter(|n| is_known_name(n)).count(), names.iter().filter(|n| is_known_name(n)).count());
    let total = names.len();
    if known.0 > known.1 {
        return decision(word, true, format!("{} of {total} names are a known model's without it", known.0));
    }
    let why = match known.1 {
        0 => "there is neither a path, nor optimizer state, nor a known model to tell".to_owned(),
        count => format!("{count} of {total} names are a known model's with it"),
    };
    decision(word, false, why)
}

/// The model word that all names begin with.
fn common_word<'a>(names: &[&'a str]) -> Option<&'a str> {
    let (word, _) = names.first()?.split_once('.')?;
    let shared = names.iter().all(|name| name.split_once('.').is_some_and(|(first, _)| first == word));
    (shared && MODELS.contains(&word)).then_some(word)
}

fn decision(word: &str, taken_off: bool, why: String) -> Decision {
    let note = Note::Container { word: word.to_owned(), taken_off, why };
    Decision { container: taken_off.then(|| word.to_owned()), note: Some(note) }
}
