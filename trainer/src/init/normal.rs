//! [`Normals`]: the endless sequence of normal values of one name.

use sha2::{Digest, Sha256};

use super::{philox, to_f32};

/// Separates these values from any other use of a seed; changed only when the function changes.
const DOMAIN: &[u8] = b"initial values 1";
const LANES: u64 = 4;

/// The normal values of one name, by index.
#[derive(Debug, Clone, Copy)]
pub struct Normals {
    key: [u32; 2],
    stream: [u32; 2],
    std: f64,
}

impl Normals {
    /// Values with standard deviation `std` for `name`.
    #[must_use]
    pub fn new(seed: u64, name: &str, std: f64) -> Self {
        let digest =
            Sha256::new().chain_update(DOMAIN).chain_update(seed.to_le_bytes()).chain_update(name).finalize();
        let word = |at: usize| {
            digest.iter().skip(4 * at).take(4).rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        Self { key: [word(0), word(1)], stream: [word(2), word(3)], std }
    }

    /// Appends elements `start..start + count`.
    pub fn extend(&self, values: &mut Vec<f32>, start: u64, count: u64) {
        let end = start.saturating_add(count);
        let mut at = start;
        while at < end {
            let block = self.block(at / LANES);
            let skip = at % LANES;
            let take = (LANES - skip).min(end - at);
            values.extend((skip..skip + take).zip(block.iter().skip(skip as usize)).map(|(_, value)| value));
            at += take;
        }
    }

    fn block(&self, index: u64) -> [f32; 4] {
        let [low, high] = halves(index);
        let [a, b, c, d] = philox::block([low, high, self.stream[0], self.stream[1]], self.key);
        let ([x, y], [z, w]) = (pair(a, b), pair(c, d));
        [x, y, z, w].map(|normal| to_f32(normal * self.std))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "halves of a 64-bit index")]
const fn halves(index: u64) -> [u32; 2] {
    [index as u32, (index >> 32) as u32]
}

/// Box–Muller: two uniform words make two independent normals. 0 is no radius, so that the logarithm is finite.
#[inline]
fn pair(radius: u32, angle: u32) -> [f64; 2] {
    const UNIT: f64 = 1.0 / 4_294_967_296.0;
    let radius = (-2.0 * libm::log((f64::from(radius) + 1.0) * UNIT)).sqrt();
    let (sin, cos) = libm::sincos(f64::from(angle) * UNIT * std::f64::consts::TAU);
    [radius * cos, radius * sin]
}
