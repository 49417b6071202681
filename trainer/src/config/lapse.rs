//! Lengths of time as people write them: `500ms`, `30s`, `5m`, `2h`, or a number of seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Longest time that is accepted, in seconds: about thirty years.
const LONGEST: f64 = 1e9;

/// Reads a length of time, such as `500ms`, `30s`, `5m`, `2h` or a number of seconds.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    seconds(number.trim().parse::<f64>().ok()? * scale)
}

/// A number of seconds.
pub(super) fn seconds(value: f64) -> Option<Duration> {
    // To the millisecond, so that the text that is printed means the same again.
    (0.0..=LONGEST).contains(&value).then(|| Duration::from_secs_f64((value * 1e3).round() / 1e3))
}

/// The canonical text: whole seconds where possible, else milliseconds.
pub(super) fn text(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}

pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(*time))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is no length of time")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_the_canonical_text_means_the_same() {
        for (given, canonical) in [("500ms", "500ms"), ("1.5", "1500ms"), ("90 s", "90s"), ("2m", "120s")] {
            let time = parse(given).unwrap();
            assert_eq!(text(time), canonical);
            assert_eq!(parse(canonical), Some(time));
        }
        for bad in ["", "s", "-1s", "5 parsecs", "nan", "1e99h", "inf"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
