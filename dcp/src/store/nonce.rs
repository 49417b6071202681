//! Nonces: the only randomness of the store and of the log, passed in as a value.
//!
//! A nonce names one attempt at something (a staging file, a record, an attempt at a save). Two that are equal by chance
//! would make one writer take another's record for its own, so they have 128 bits and come from the system, except in
//! tests and simulations, where a seed gives the same ones again.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{Result, StoreError};

/// 128 random bits, written as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(u128);

impl Nonce {
    /// A nonce of these bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

impl From<Nonce> for String {
    fn from(nonce: Nonce) -> Self {
        nonce.to_string()
    }
}

/// A text that is not a nonce.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a nonce: {0:?} is not 32 lower-case hexadecimal digits")]
pub struct NotANonce(String);

impl FromStr for Nonce {
    type Err = NotANonce;

    fn from_str(text: &str) -> Result<Self, NotANonce> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(hex) {
            return Err(NotANonce(text.chars().take(64).collect()));
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| NotANonce(text.to_owned()))
    }
}

impl TryFrom<String> for Nonce {
    type Error = NotANonce;

    fn try_from(text: String) -> Result<Self, NotANonce> {
        text.parse()
    }
}

/// Where nonces come from.
pub trait Nonces: fmt::Debug + Send + Sync + 'static {
    /// A nonce that was never given before.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    fn draw(&self) -> Result<Nonce>;
}

/// Nonces of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsNonces;

impl Nonces for OsNonces {
    fn draw(&self) -> Result<Nonce> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| StoreError::Unsupported {
            what: "drawing a nonce".to_owned(),
            reason: format!("the system gave no random bytes: {error}"),
        })?;
        Ok(Nonce(u128::from_le_bytes(bytes)))
    }
}

/// Nonces that a seed gives again, for tests and simulations.
#[derive(Debug, Default)]
pub struct SeededNonces {
    seed: u64,
    drawn: AtomicU64,
}

impl SeededNonces {
    /// The sequence of nonces that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: AtomicU64::new(0) }
    }
}

impl Nonces for SeededNonces {
    fn draw(&self) -> Result<Nonce> {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        let digest =
            Sha256::new().chain_update(self.seed.to_le_bytes()).chain_update(n.to_le_bytes()).finalize();
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        Ok(Nonce(u128::from_le_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_survives_being_written_and_read() {
        let nonce = OsNonces.draw().unwrap();
        assert_eq!(nonce.to_string().parse::<Nonce>().unwrap(), nonce);
        let json = serde_json::to_string(&Nonce(7)).unwrap();
        assert_eq!(json, r#""00000000000000000000000000000007""#);
        assert_eq!(serde_json::from_str::<Nonce>(&json).unwrap(), Nonce(7));
    }

    #[test]
    fn what_is_not_a_nonce_is_refused() {
        for bad in ["", "7", "+0000000000000000000000000000007", "0000000000000000000000000000000G"] {
            assert!(bad.parse::<Nonce>().is_err(), "{bad:?}");
        }
        assert!("0000000000000000000000000000000A".parse::<Nonce>().is_err());
    }

    #[test]
    fn a_seed_gives_its_sequence_again_and_repeats_none() {
        let draw = |seed| {
            let nonces = SeededNonces::new(seed);
            (0..1000).map(|_| nonces.draw().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        let all = draw(1).into_iter().chain(draw(2)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(all.len(), 2000);
    }
}
