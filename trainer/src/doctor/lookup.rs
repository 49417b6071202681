//! [`lookup`]: the symptom that is most like what a user says, in whatever words.

use super::{Knowledge, Symptom};

/// Words that say nothing.
const EMPTY: &[&str] = &[
    "a", "an", "the", "is", "are", "my", "it", "its", "of", "on", "in", "and", "but", "very", "run",
    "training", "to",
];
/// A word counts where it is this much like one of a symptom's.
const LIKE: f64 = 0.88;
/// A symptom is one that is meant where so much of what was said is about it.
const MEANT: f64 = 0.5;

/// A symptom and how much of what was said is about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found<'a> {
    /// The symptom.
    pub symptom: &'a Symptom,
    /// From 0 to 1.
    pub score: f64,
}

/// Symptoms that may be meant, likeliest first; none where nothing is like it.
#[must_use]
pub fn lookup<'a>(known: &'a Knowledge, said: &str) -> Vec<Found<'a>> {
    let wanted = words(said);
    if wanted.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<Found<'_>> = known
        .symptoms
        .iter()
        .map(|symptom| Found { symptom, score: score(symptom, &wanted, said) })
        .collect();
    found.retain(|it| it.score >= MEANT);
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found
}

/// The best phrase of the symptom: how many of the wanted words it has, and, of equals, the shorter phrase.
fn score(symptom: &Symptom, wanted: &[String], said: &str) -> f64 {
    if symptom.id == said.trim().to_lowercase() {
        return 2.0;
    }
    let phrases = symptom.words.iter().chain([&symptom.title, &symptom.id]);
    let of = |phrase: &String| {
        let own = words(phrase);
        let best = |word: &String| own.iter().map(|it| strsim::jaro_winkler(it, word)).fold(0.0, f64::max);
        let hits: f64 = wanted.iter().map(best).filter(|like| *like >= LIKE).sum();
        let covered = hits / own.len().max(1) as f64;
        hits / wanted.len() as f64 + 0.25 * covered.min(1.0)
    };
    phrases.map(of).fold(0.0, f64::max)
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let split = lower.split(|c: char| !c.is_alphanumeric());
    split.filter(|word| !word.is_empty() && !EMPTY.contains(word)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symptoms_are_found_in_the_words_that_people_use() {
        let known = Knowledge::read().unwrap();
        for (said, id) in [
            ("cards idle periodically", "periodic-idle"),
            ("periodic idle", "periodic-idle"),
            ("low utilisation", "periodic-idle"),
            ("gpu busy but slow", "slow-though-busy"),
            ("out of memory at the start", "oom-at-start"),
            ("OOM before the first step", "oom-at-start"),
            ("oom in the middle of a run", "oom-mid-run"),
            ("it hangs", "hang"),
            ("stuck, deadlock", "hang"),
            ("nccl timeout", "hang"),
            ("loss jitters", "loss-jitter"),
            ("slower with more cards", "slower-with-more-cards"),
            ("loss jumps after resuming", "loss-jump-after-resume"),
            ("step time varies", "step-time-varies"),
            ("loss is nan", "not-finite"),
            ("checkpoint does not load", "checkpoint-does-not-load"),
            ("zero bubble brings nothing", "zero-bubble-no-gain"),
        ] {
            let found = lookup(&known, said);
            let names: Vec<_> = found.iter().map(|it| (it.symptom.id.as_str(), it.score)).collect();
            assert_eq!(names.first().map(|(id, _)| *id), Some(id), "{said}: {names:?}");
        }
        assert!(lookup(&known, "xyzzy plugh").is_empty() && lookup(&known, "").is_empty());
    }
}
