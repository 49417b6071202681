//! Quantities as people read and write them: decimal bytes, bytes per second, seconds, counts.

/// Bytes, decimal: `17.5 GB`, `1.12 TB`.
#[must_use]
pub fn bytes(value: f64) -> String {
    scaled(value, &[(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// A number of things: `6.74 G`, `13.4 k`.
#[must_use]
pub fn count(value: f64) -> String {
    let text = scaled(value, &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")], "");
    text.trim_end().to_owned()
}

/// A length of time: `9.20 s`, `350 ms`.
#[must_use]
pub fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 || value == 0.0 => scaled(value, &[], "s"),
        value if value >= 1e-3 => scaled(value * 1e3, &[], "ms"),
        value => scaled(value * 1e6, &[], "us"),
    }
}

fn scaled(value: f64, units: &[(f64, &str)], plain: &str) -> String {
    let (divisor, unit) =
        units.iter().find(|(size, _)| value.abs() >= *size).copied().unwrap_or((1.0, plain));
    let value = value / divisor;
    let digits = match value.abs() {
        size if divisor == 1.0 && size.fract() == 0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// Reads `80GB`, `141 GB`, `24GiB`, `512e9`: bytes.
///
/// # Errors
/// What is no size, in words.
pub fn parse_bytes(text: &str) -> Result<f64, String> {
    const UNITS: &[(&str, f64)] = &[
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("b", 1.0),
        ("", 1.0),
    ];
    with_unit(text, UNITS).ok_or_else(|| format!("{text:?} is no size such as 80GB or 24GiB"))
}

/// Reads `300GB/s`, `25GbE`, `400Gbit/s`: bytes per second in one direction.
///
/// # Errors
/// What is no rate, in words.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    const UNITS: &[(&str, f64)] = &[
        ("gbe", 0.125e9),
        ("gbit/s", 0.125e9),
        ("gbps", 0.125e9),
        ("mb/s", 1e6),
        ("gb/s", 1e9),
        ("tb/s", 1e12),
        ("b/s", 1.0),
        ("", 1.0),
    ];
    let refused = || format!("{text:?} is no rate such as 300GB/s, 25GbE or 400Gbit/s");
    with_unit(text, UNITS).filter(|rate| *rate > 0.0).ok_or_else(refused)
}

/// Reads `70e9`, `70B`, `6.7G`, `124M`: a count of parameters.
///
/// # Errors
/// What is no count, in words.
pub fn parse_count(text: &str) -> Result<u64, String> {
    const UNITS: &[(&str, f64)] = &[("k", 1e3), ("m", 1e6), ("b", 1e9), ("g", 1e9), ("t", 1e12), ("", 1.0)];
    let found = with_unit(text, UNITS).filter(|count| (1.0..9e15).contains(count));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 9e15")]
    found
        .map(|count| count.round() as u64)
        .ok_or_else(|| format!("{text:?} is no count such as 70e9, 70B or 124M"))
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let lower = text.trim().to_ascii_lowercase();
    let read = |(unit, size): &(&str, f64)| {
        let number = lower.strip_suffix(unit)?.trim_end().parse::<f64>().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number * size)
    };
    units.iter().find_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_shown_as_the_articles_write_them() {
        assert_eq!(bytes(7e9 * 16.0), "112 GB");
        assert_eq!(bytes(70e9 * 16.0), "1.12 TB");
        assert_eq!((bytes(0.0), bytes(17.5e9)), ("0 B".to_owned(), "17.5 GB".to_owned()));
        assert_eq!(
            (seconds(9.2), seconds(0.0123), seconds(0.0)),
            ("9.20 s".into(), "12.3 ms".into(), "0 s".into())
        );
        assert_eq!(count(68_976_648_192.0), "69.0 G");
    }

    #[test]
    fn sizes_rates_and_counts_are_read_with_their_units_and_others_are_refused() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
        assert!(
            close(parse_bytes("80GB").unwrap(), 80e9)
                && close(parse_bytes("24 GiB").unwrap(), 24.0 * 1_073_741_824.0)
        );
        assert!(close(parse_rate("25GbE").unwrap(), 3.125e9) && close(parse_rate("300GB/s").unwrap(), 300e9));
        assert_eq!(
            (parse_count("70e9").unwrap(), parse_count("70B").unwrap()),
            (70_000_000_000, 70_000_000_000)
        );
        for text in ["", "GB", "-3GB", "80 GBs", "nan", "inf"] {
            assert!(
                parse_bytes(text).is_err() && parse_rate(text).is_err() && parse_count(text).is_err(),
                "{text}"
            );
        }
        assert!(parse_rate("0GB/s").unwrap_err().contains("25GbE"));
    }
}
