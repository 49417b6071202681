//! [`Share`]: a part of a checkpoint as `verify --subset` takes it: `10%`, `5GiB`, `3/7`.

use std::num::NonZeroU64;
use std::str::FromStr;

use dcp::ops::verify::{Parts, Subset};

use crate::output::units;

/// A part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// So many parts from one on, of so many.
    Parts { first: u64, count: u64, of: u64 },
    /// About so many bytes.
    Bytes(NonZeroU64),
}

const GRAMMAR: &str = "10%, 5GiB, or 3/7: the third of seven parts";

/// Of a percentage, two digits behind the point count.
const HUNDREDTHS: u64 = 100;

impl Share {
    /// The bytes that are meant.
    pub(crate) fn subset(self, seed: u64) -> Subset {
        match self {
            Self::Bytes(bytes) => Subset::Bytes { bytes, seed },
            // The text was checked when it was read.
            Self::Parts { first, count, of } => {
                Parts::new(first, count, of, seed).map_or(Subset::All, Subset::Parts)
            }
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = if let Some(percent) = text.strip_suffix('%') {
            percentage(percent)
        } else if let Some((first, of)) = text.split_once('/') {
            let (first, of) = (first.trim().parse().ok(), of.trim().parse().ok());
            first.zip(of).map(|(first, of)| Self::Parts { first, count: 1, of })
        } else {
            NonZeroU64::new(units::parse_bytes(text)?).map(Self::Bytes)
        };
        let fits = |share: &Self| match *share {
            Self::Bytes(_) => true,
            Self::Parts { first, count, of } => Parts::new(first, count, of, 0).is_some(),
        };
        share.filter(fits).ok_or_else(|| format!("{text:?} is no part of a checkpoint; give {GRAMMAR}"))
    }
}

/// A percentage as parts of as few as it takes: 30 % are three of ten.
fn percentage(text: &str) -> Option<Share> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if part.len() > 2 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u64 = format!("{part:0<2}").parse().ok()?;
    let count = whole.parse::<u64>().ok()?.checked_mul(HUNDREDTHS)?.checked_add(part)?;
    let of = 100 * HUNDREDTHS;
    if count == 0 || count > of {
        return None;
    }
    let divisor = gcd(count, of);
    Some(Share::Parts { first: 1, count: count / divisor, of: of / divisor })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_percentages_and_sizes_are_read() {
        let parts = |first, count, of| Ok(Share::Parts { first, count, of });
        assert_eq!("3/7".parse(), parts(3, 1, 7));
        assert_eq!("10%".parse(), parts(1, 1, 10));
        assert_eq!("30 %".parse(), parts(1, 3, 10));
        assert_eq!("0.25%".parse(), parts(1, 1, 400));
        assert_eq!("100%".parse(), parts(1, 1, 1));
        assert_eq!("5GiB".parse(), Ok(Share::Bytes(NonZeroU64::new(5 << 30).unwrap())));
    }

    #[test]
    fn what_is_no_part_is_refused_with_the_grammar() {
        for text in
            ["0/7", "8/7", "1/0", "-1/7", "0%", "101%", "1.234%", "x%", "0", "3/7/9", "%", "1/9999999"]
        {
            let error = text.parse::<Share>().unwrap_err();
            assert!(error.contains("3/7: the third of seven parts"), "{text}: {error}");
        }
        assert!("5 parsecs".parse::<Share>().unwrap_err().contains("unknown unit"));
    }
}
