//! Which instructions compute the sum: chosen once per process, or by name where implementations are compared.

use std::{fmt, sync::OnceLock};

use super::mix;
#[cfg(target_arch = "x86_64")]
use super::x86;

/// An implementation of the sum that this processor can run.
#[derive(Clone, Copy)]
pub struct Engine(Choice);

#[derive(Clone, Copy)]
enum Choice {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Aes(x86::Aes),
    #[cfg(target_arch = "x86_64")]
    Vaes256(x86::Vaes256),
    #[cfg(target_arch = "x86_64")]
    Vaes512(x86::Vaes512),
}

/// The name of an implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// Table lookups, one element at a time: any processor.
    Portable,
    /// AES-NI, one element per instruction.
    Aes,
    /// VAES on 256-bit registers, two elements per instruction.
    Vaes256,
    /// VAES on 512-bit registers with AVX-512 VBMI, four elements per instruction.
    Vaes512,
}

impl Engine {
    /// The fastest implementation of this processor.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Engine> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().copied().unwrap_or(Self(Choice::Portable)))
    }

    /// Every implementation that this processor can run, slowest first; all give the same sums.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self(Choice::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(x86::Aes::detect().map(|it| Self(Choice::Aes(it))));
            found.extend(x86::Vaes256::detect().map(|it| Self(Choice::Vaes256(it))));
            found.extend(x86::Vaes512::detect().map(|it| Self(Choice::Vaes512(it))));
        }
        found
    }

    /// Which implementation this is.
    #[must_use]
    pub fn kind(self) -> EngineKind {
        match self.0 {
            Choice::Portable => EngineKind::Portable,
            #[cfg(target_arch = "x86_64")]
            Choice::Aes(_) => EngineKind::Aes,
            #[cfg(target_arch = "x86_64")]
            Choice::Vaes256(_) => EngineKind::Vaes256,
            #[cfg(target_arch = "x86_64")]
            Choice::Vaes512(_) => EngineKind::Vaes512,
        }
    }

    /// The lanes of the `W`-byte elements in `bytes`, at indices `first, first + step, …`; `W` is 1, 2, 4 or 8, and a
    /// ragged end is not looked at.
    pub(super) fn lanes<const W: usize>(self, first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
        match self.0 {
            Choice::Portable => portable::<W>(first, step, bytes),
            #[cfg(target_arch = "x86_64")]
            Choice::Aes(it) => it.lanes::<W>(first, step, bytes),
            #[cfg(target_arch = "x86_64")]
            Choice::Vaes256(it) => it.lanes::<W>(first, step, bytes),
            #[cfg(target_arch = "x86_64")]
            Choice::Vaes512(it) => it.lanes::<W>(first, step, bytes),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?})", self.kind())
    }
}

fn portable<const W: usize>(first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
    let (elements, _) = bytes.as_chunks::<W>();
    let mut index = first;
    let mut lanes = [0_u64; 2];
    for element in elements {
        let [low, high] = mix::mix(index, zero_extended(element));
        lanes = [lanes[0].wrapping_add(low), lanes[1].wrapping_add(high)];
        index = index.wrapping_add(step);
    }
    lanes
}

/// The bits of an element of at most eight bytes.
pub(super) fn zero_extended<const W: usize>(element: &[u8; W]) -> u64 {
    const { assert!(W <= 8) };
    let mut bits = [0; 8];
    bits[..W].copy_from_slice(element);
    u64::from_le_bytes(bits)
}
