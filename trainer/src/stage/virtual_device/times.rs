//! Times of a virtual device as text: `F=10,I=10,W=8,transfer=0.5`; a number for each stage where there are several:
//! `F=10/12/10/9,I=20,W=0,B=18`. All are milliseconds of one microbatch on one stage. Pure.

use schedule::{StageTimes, Timing};

use crate::{Error, Result};

/// What can be said, in the order of the arrays below.
const NAMES: [&str; 5] = ["F", "I", "W", "B", "transfer"];

/// Far more than a mesh has.
const MOST_STAGES: usize = 1 << 16;

/// Reads the times of `stages` stages. F, I and W must be there; B is I + W if it is not, a transfer takes none.
///
/// # Errors
/// `Config` for what is not said, said twice, or no time.
pub fn times(text: &str, stages: usize) -> Result<Timing> {
    if stages > MOST_STAGES {
        return Err(refused(
            text,
            &format!("there are {stages} stages, and {MOST_STAGES} at most can be imagined"),
        ));
    }
    let mut found: [Option<Vec<f64>>; 5] = Default::default();
    for part in text.split(',') {
        let (name, value) =
            part.split_once('=').ok_or_else(|| refused(text, "each part is NAME=MILLISECONDS"))?;
        let at = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name.trim()));
        let at =
            at.ok_or_else(|| refused(text, &format!("{:?} is none of {}", name.trim(), NAMES.join(", "))))?;
        let numbers = numbers(text, name, value)?;
        let entry = found.get_mut(at).filter(|entry| entry.is_none());
        *entry.ok_or_else(|| refused(text, &format!("{} is there twice", name.trim())))? = Some(numbers);
    }
    let [forward, input, weight, both, transfer] = found;
    let of = |name: &str, values: Option<Vec<f64>>, count: usize| spread(text, name, values, count);
    let need = |name: &str, values: Option<Vec<f64>>| {
        of(name, Some(values.ok_or_else(|| refused(text, &format!("{name} is missing")))?), stages)
    };
    let (forward, input, weight) = (need("F", forward)?, need("I", input)?, need("W", weight)?);
    let both = both.map(|both| of("B", Some(both), stages)).transpose()?;
    let stage = |at: usize| {
        let get = |values: &Vec<f64>| values.get(at).copied().unwrap_or(0.0);
        let times = StageTimes::new(get(&forward), get(&input), get(&weight));
        StageTimes { both: both.as_ref().map(get), ..times }
    };
    let edges = stages.saturating_sub(1);
    let transfers = of("transfer", transfer.or(Some(vec![0.0])), edges)?;
    let mut timing = Timing::of_stages((0..stages).map(stage).collect(), 0.0);
    (timing.forward, timing.backward) = (transfers.clone(), transfers);
    timing.check(stages).map_err(|error| refused(text, &error.to_string()))?;
    Ok(timing)
}

fn numbers(text: &str, name: &str, value: &str) -> Result<Vec<f64>> {
    let read = |part: &str| part.trim().parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0);
    let all: Option<Vec<f64>> = value.split('/').map(read).collect();
    all.ok_or_else(|| refused(text, &format!("{}={value} is no time in milliseconds", name.trim())))
}

/// One number for all, or one for each.
fn spread(text: &str, name: &str, values: Option<Vec<f64>>, count: usize) -> Result<Vec<f64>> {
    match values.unwrap_or_default() {
        one if one.len() == 1 => Ok(one.repeat(count)),
        each if each.len() == count => Ok(each),
        other => Err(refused(text, &format!("{name} has {} numbers: give one, or {count}", other.len()))),
    }
}

fn refused(text: &str, why: &str) -> Error {
    Error::config(format!("debug.virtual_device={text:?}: {why}"))
        .hint("such as F=10,I=10,W=10,transfer=0.5: milliseconds, for each stage F=10/12/10/10; or off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_for_all_stages_and_lists_are_for_each() {
        let found = times("F=10/12,I=9,W=0, b=8,transfer=0.5", 2).unwrap();
        assert_eq!(found.stages[1].forward.to_bits(), 12.0_f64.to_bits());
        assert_eq!((found.stages[0].input, found.stages[0].both, found.forward), (9.0, Some(8.0), vec![0.5]));
        assert!((times("F=1,I=2,W=3", 4).unwrap().stages[3].backward() - 5.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_time_is_refused_by_name() {
        for (text, words) in [
            ("F=1,I=1", "W is missing"),
            ("F=1,I=1,W=1,X=2", "\"X\" is none of F, I, W, B, transfer"),
            ("F=1,F=1,I=1,W=1", "F is there twice"),
            ("F=-1,I=1,W=1", "F=-1 is no time"),
            ("F=1/2/3,I=1,W=1", "F has 3 numbers: give one, or 2"),
            ("ten", "each part is NAME=MILLISECONDS"),
        ] {
            let error = times(text, 2).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }
}
