//! When a message was sent, told in the message: the system's clock, which the processes of a machine share, in microseconds, as four
//! floats of 16 bits each, since a message has one dtype.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tch::Tensor;

use crate::Result;

/// Shape of a stamp in a message.
pub(super) const SHAPE: [i64; 1] = [4];
const BITS: u32 = 16;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) const fn micros(self) -> u64 {
        self.0
    }

    /// How long ago it was; nothing for one to come, of another machine's clock.
    pub(super) fn age(self) -> Duration {
        Duration::from_micros(Self::now().0.saturating_sub(self.0))
    }

    pub(super) fn tensor(self) -> Result<Tensor> {
        let limb = |at: u32| u16::try_from(self.0 >> (BITS * at) & 0xffff).map_or(0.0, f32::from);
        Ok(Tensor::f_from_slice(&[limb(0), limb(1), limb(2), limb(3)])?)
    }

    pub(super) fn read(from: &Tensor) -> Result<Self> {
        let mut limbs = [0_f32; 4];
        from.f_copy_data(&mut limbs, 4)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "limbs are whole, below 2^16"
        )]
        let whole = limbs.iter().rev().fold(0_u64, |sum, limb| (sum << BITS) | u64::from(*limb as u16));
        Ok(Self(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_goes_through_floats_to_the_microsecond() {
        for micros in [0, 1, 65_535, 65_536, 1_764_515_000_123_456, u64::MAX] {
            assert_eq!(Stamp::read(&Stamp(micros).tensor().unwrap()).unwrap(), Stamp(micros));
        }
        assert!(Stamp(u64::MAX).age().is_zero() && Stamp::now().age() < Duration::from_secs(5));
    }
}
