//! Numbers of the command line: times, amounts of memory, shares.

/// Forward, input gradient, weight gradient, transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Durations(pub(crate) [f64; 4]);

/// Activations of a microbatch, what of them is left for W, and what is always there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Amounts(pub(crate) [f64; 3]);

/// `F,I,W` or `F,I,W,T`.
pub(crate) fn durations(text: &str) -> Result<Durations, String> {
    let numbers = list(text, positive)?;
    match numbers.as_slice() {
        [forward, input, weight] => Ok(Durations([*forward, *input, *weight, 0.0])),
        [forward, input, weight, transfer] => Ok(Durations([*forward, *input, *weight, *transfer])),
        _ => Err(format!(
            "{} numbers, not three or four: forward, input gradient, weight gradient, transfer",
            numbers.len()
        )),
    }
}

/// `A`, `A,K` or `A,K,WEIGHTS`; K is A if it is left out.
pub(crate) fn amounts(text: &str) -> Result<Amounts, String> {
    let numbers = list(text, amount)?;
    match numbers.as_slice() {
        [activation] => Ok(Amounts([*activation, *activation, 0.0])),
        [activation, kept] => Ok(Amounts([*activation, *kept, 0.0])),
        [activation, kept, weights] => Ok(Amounts([*activation, *kept, *weights])),
        _ => Err(format!(
            "{} amounts, not one to three: activations, what is left for W, weights",
            numbers.len()
        )),
    }
}

fn list(text: &str, one: fn(&str) -> Result<f64, String>) -> Result<Vec<f64>, String> {
    text.split(',').map(|part| one(part.trim())).collect()
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{text:?} is no number of at least 0"))
}

/// From 0 to 1, or a percentage.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => positive(percent.trim())? / 100.0,
        None => positive(text)?,
    };
    if share <= 1.0 { Ok(share) } else { Err(format!("{text:?} is more than all")) }
}

const UNITS: &[(&str, f64)] = &[
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

/// A number, or bytes as in 1.5GiB.
pub(crate) fn amount(text: &str) -> Result<f64, String> {
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, bytes) = found.unwrap_or((text, &1.0));
    positive(number.trim())
        .map(|number| number * bytes)
        .map_err(|_| format!("{text:?} is no amount such as 4 or 1.5GiB"))
}

/// For people: as few digits as tell it.
pub(crate) fn short(value: f64) -> String {
    let digits = if value.abs() >= 1000.0 {
        0
    } else if value.abs() >= 100.0 {
        1
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An amount of memory for people: bytes with a unit from 1 MiB on, else the number.
pub(crate) fn held(value: f64) -> String {
    let large = [("TiB", 1_099_511_627_776.0), ("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0)];
    match large.into_iter().find(|(_, bytes)| value >= *bytes) {
        Some((unit, bytes)) => format!("{:.2} {unit}", value / bytes),
        None => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_amounts_and_shares_are_read_as_they_are_written() {
        assert_eq!(durations("1,1.5, 2"), Ok(Durations([1.0, 1.5, 2.0, 0.0])));
        assert_eq!(durations("1,1,1,0.25"), Ok(Durations([1.0, 1.0, 1.0, 0.25])));
        assert_eq!(amounts("2GiB,512MiB"), Ok(Amounts([2_147_483_648.0, 536_870_912.0, 0.0])));
        assert_eq!(amounts("3"), Ok(Amounts([3.0, 3.0, 0.0])));
        assert_eq!((share("80%"), share("0.8")), (Ok(0.8), Ok(0.8)));
        assert_eq!(
            (amount("1.5kB"), held(3_221_225_472.0), held(7.5)),
            (Ok(1500.0), "3.00 GiB".to_owned(), "7.5".to_owned())
        );
    }

    #[test]
    fn what_is_no_number_is_refused_with_what_would_be_one() {
        assert!(durations("1,2").unwrap_err().contains("2 numbers, not three or four"));
        assert!(durations("1,-2,3").unwrap_err().contains("\"-2\" is no number"));
        assert!(durations("1,NaN,3").unwrap_err().contains("is no number"));
        assert!(amounts("1,2,3,4").unwrap_err().contains("4 amounts"));
        assert!(amount("lots").unwrap_err().contains("1.5GiB"));
        assert!(share("1.2").unwrap_err().contains("more than all"));
    }
}
