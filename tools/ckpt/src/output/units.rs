//! Numbers for people: binary units for bytes, decimal ones for counts. JSON carries exact integers instead.

/// `14.96 GiB`; below 1 KiB in bytes.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count, 1024, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

/// `8.03 B`, `16.1 M`; below a thousand exact.
pub(crate) fn count(count: u64) -> String {
    scaled(count, 1000, &["", " K", " M", " B", " T", " Q"])
}

/// `1 file`, `2 files`.
pub(crate) fn many(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Units a second.
pub(crate) fn rate(count: u64, seconds: f64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people; counts and seconds are never negative"
    )]
    let rate = (count as f64 / seconds.max(1e-9)) as u64;
    rate
}

fn scaled(count: u64, base: u64, units: &[&str]) -> String {
    let mut divisor = 1_u64;
    let mut unit = 0;
    while unit + 1 < units.len() && count / divisor >= base {
        divisor = divisor.saturating_mul(base);
        unit += 1;
    }
    let suffix = units.get(unit).copied().unwrap_or_default();
    if unit == 0 {
        return format!("{count}{suffix}");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits for people")]
    let value = count as f64 / divisor as f64;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{suffix}")
}

/// `3 d`, `5 h`, `12 min`, `40 s`: the largest unit that there is one of, rounded down.
pub(crate) fn age(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let large = units.iter().find(|(unit, _)| seconds >= *unit);
    large.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

/// Reads `14d`, `36h`, `90m`, `30s`, `2w`.
pub(crate) fn parse_period(text: &str) -> Result<std::time::Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(format!("{text:?} is not a period like 14d, 36h, 90m, 30s or 2w")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a period like 14d"))?;
    let seconds =
        number.checked_mul(unit).ok_or_else(|| format!("{text} is more seconds than 64 bits hold"))?;
    Ok(std::time::Duration::from_secs(seconds))
}

/// Reads `512MiB`, `8GiB`, `2g`, `1048576`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => return Err(format!("unknown unit {other:?}; use KiB, MiB, GiB, TiB or KB, MB, GB, TB")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("{text} is more than 64 bits hold"));
    }
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is not a size like 512MiB"))?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size with a fraction is an approximation; digits and a dot are never negative"
    )]
    Ok((number * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_three_digits() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(16_063_000_000), "15.0 GiB");
        assert_eq!(count(8_030_000_000), "8.03 B");
        assert_eq!(count(291), "291");
    }

    #[test]
    fn periods_are_read_and_told() {
        let seconds = |text| parse_period(text).map(|it| it.as_secs());
        assert_eq!(
            [seconds("14d"), seconds("2w"), seconds("36h"), seconds("90m"), seconds("0s")],
            [14 * 86_400, 14 * 86_400, 129_600, 5_400, 0].map(Ok)
        );
        for bad in ["", "d", "14", "1.5d", "-1d", "14 d", "14x", "99999999999999999999d", "9999999999999999w"]
        {
            assert!(parse_period(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [age(0), age(59), age(61), age(7_200), age(200_000)],
            ["0 s", "59 s", "1 min", "2 h", "2 d"]
        );
    }

    #[test]
    fn sizes_are_read_in_both_kinds_of_units() {
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("1.5g"), Ok(3 << 29));
        assert_eq!(parse_bytes("5GB"), Ok(5_000_000_000));
        assert!(parse_bytes("fast").is_err());
    }
}
