//! SHA-256 as a checked value, and hashing over the fastest instructions that the processor has (SHA extensions where
//! present, found at run time by `sha2`).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// A SHA-256 digest. Text: 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Digest([u8; 32]);

/// Text that is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a SHA-256 digest: 64 lowercase hex digits are")]
pub struct DigestParseError(String);

/// SHA-256 over bytes that come piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Sha256Hasher(Sha256);

impl Sha256Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digests of two messages. Where there are two blocks to hash, this is faster than one after the other.
    #[must_use]
    pub fn of_two(one: &[u8], other: &[u8]) -> [Self; 2] {
        #[cfg(target_arch = "x86_64")]
        if let Some(both) = super::sha_pair::pair(one, other) {
            return both.map(Self);
        }
        [Self::of(one), Self::of(other)]
    }

    /// The digests of messages, two at a time.
    #[must_use]
    pub fn of_each(messages: &[&[u8]]) -> Vec<Self> {
        let (pairs, alone) = messages.as_chunks::<2>();
        let pairs = pairs.iter().flat_map(|[one, other]| Self::of_two(one, other));
        pairs.chain(alone.iter().map(|message| Self::of(message))).collect()
    }

    /// The digest with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, in the order of the text form.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Sha256Hasher {
    /// A hasher that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes seen.
    #[must_use]
    pub fn finish(self) -> Sha256Digest {
        Sha256Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({self})")
    }
}

impl FromStr for Sha256Digest {
    type Err = DigestParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || DigestParseError(text.chars().take(80).collect());
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(bad()) };
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() {
            return Err(bad());
        }
        for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = nibble(high).ok_or_else(bad)? << 4 | nibble(low).ok_or_else(bad)?;
        }
        Ok(Self(bytes))
    }
}

/// Lowercase only, so that a digest has one spelling and names can be compared as text.
pub(super) const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_digest_of_abc_is_that_of_fips_180() {
        assert_eq!(Sha256Digest::of(b"abc").to_string(), ABC);
        let mut pieces = Sha256Hasher::new();
        pieces.update(b"a");
        pieces.update(b"bc");
        assert_eq!(pieces.finish(), Sha256Digest::of(b"abc"));
    }

    #[test]
    fn messages_hashed_two_at_a_time_have_their_own_digests() {
        let messages = [&b"abc"[..], &[7; 200], b"", &[1; 64], &[2; 1000]];
        for count in 0..=messages.len() {
            let wanted: Vec<_> = messages[..count].iter().map(|it| Sha256Digest::of(it)).collect();
            assert_eq!(Sha256Digest::of_each(&messages[..count]), wanted);
        }
    }

    #[test]
    fn text_and_json_read_back_and_other_spellings_are_refused() {
        let digest: Sha256Digest = ABC.parse().unwrap();
        assert_eq!(digest, Sha256Digest::of(b"abc"));
        assert_eq!(serde_json::from_str::<Sha256Digest>(&format!("\"{ABC}\"")).unwrap(), digest);
        for bad in [
            "",
            "ba",
            &ABC[..63],
            &ABC.to_uppercase(),
            &format!("{ABC}0"),
            &format!("{ABC}00"),
            &"é".repeat(32),
        ] {
            assert!(bad.parse::<Sha256Digest>().is_err(), "{bad}");
        }
    }
}
