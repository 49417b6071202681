//! What goes between ranks in bf16: cast, and carried as whole numbers of 64 bits, four values each, as transports do not know bf16.
//!
//! Invariant: what is carried is a flat buffer whose length is a multiple of [`ALIGNMENT`](crate::optim::ALIGNMENT), as all buffers of
//! shards are; what comes back has the values of the precision.

use tch::{Kind, Tensor};

use crate::{Result, parallel::Precision};

/// Values in a number of 64 bits.
const PACKED: i64 = 4;

/// A flat buffer as it is carried.
pub(super) fn packed(flat: &Tensor, precision: Precision) -> Result<Tensor> {
    Ok(match precision {
        Precision::Float32 => flat.shallow_clone(),
        Precision::Bfloat16 => flat.f_to_kind(Kind::BFloat16)?.f_view_dtype(Kind::Int64)?,
    })
}

/// What was carried, as values of the precision.
pub(super) fn unpacked(carried: &Tensor, precision: Precision) -> Result<Tensor> {
    Ok(match precision {
        Precision::Float32 => carried.shallow_clone(),
        Precision::Bfloat16 => carried.f_view_dtype(Kind::BFloat16)?,
    })
}

/// Shape of a buffer of `length` values while it is carried.
pub(super) fn shape(length: i64, precision: Precision) -> Vec<i64> {
    match precision {
        Precision::Float32 => vec![length],
        Precision::Bfloat16 => vec![length / PACKED],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_comes_back_rounded_and_half_as_large() {
        let values: Vec<f32> = (0..64_u16).map(|at| (f32::from(at) - 31.5) * 1.001).collect();
        let flat = Tensor::from_slice(&values);
        let carried = packed(&flat, Precision::Bfloat16).unwrap();
        assert_eq!((carried.size(), carried.kind()), (shape(64, Precision::Bfloat16), Kind::Int64));
        let back = unpacked(&carried, Precision::Bfloat16).unwrap();
        assert!(back.equal(&flat.to_kind(Kind::BFloat16)));
        let same = unpacked(&packed(&flat, Precision::Float32).unwrap(), Precision::Float32).unwrap();
        assert!(same.equal(&flat) && same.size() == shape(64, Precision::Float32));
    }
}
