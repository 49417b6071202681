//! [`Header`]: what a safetensors file holds, checked in full against the file's length.
//!
//! Invariants of a value: names are checked and unique; each range lies in the file and has the length that dtype
//! and shape give; ranges in order of their bytes follow each other from 0 to the end of the data without a gap.

use fqn::{Dtype, Shape};

use super::{
    HeaderError,
    json::{Raw, RawTensor},
};
use crate::read_at::ReadAt;

/// Longest header of the format (its own reader's limit).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most dimensions of a tensor; torch itself stops at 64.
pub(super) const MAX_RANK: usize = 64;

/// Bytes of the length field.
const PREFIX: u64 = 8;

/// The checked header of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    /// `__metadata__`, in its order.
    pub metadata: Vec<(String, String)>,
    /// Offset of the first byte of data in the file.
    pub data_start: u64,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, by the rules of [`fqn::Fqn`].
    pub name: fqn::Fqn,
    /// Element type.
    pub dtype: Dtype,
    /// Extents.
    pub shape: Shape,
    /// Offset of its first byte, counted from the start of the file.
    pub offset: u64,
    /// Number of its bytes.
    pub len: u64,
}

impl Header {
    /// Reads and checks the header of `file`; no data is read.
    ///
    /// # Errors
    /// Anything that contradicts the invariants of this module.
    pub fn read(file: &dyn ReadAt) -> Result<Self, HeaderError> {
        let len = file.len();
        if len < PREFIX {
            return Err(HeaderError::TooShort(len));
        }
        let mut prefix = [0; 8];
        file.read_exact_at(0, &mut prefix)?;
        let claimed = u64::from_le_bytes(prefix);
        if claimed > MAX_HEADER_BYTES {
            return Err(HeaderError::HeaderTooLong(claimed));
        }
        let data_start = PREFIX.saturating_add(claimed);
        let size = usize::try_from(claimed).map_err(|_| HeaderError::HeaderTooLong(claimed))?;
        if data_start > len {
            return Err(HeaderError::HeaderCut { claimed, len });
        }
        let mut text = vec![0; size];
        file.read_exact_at(PREFIX, &mut text)?;
        Self::parse(&text, data_start, len.saturating_sub(data_start))
    }

    /// Checks the JSON `text` of a header whose file holds `data_len` bytes of data from `data_start` on.
    fn parse(text: &[u8], data_start: u64, data_len: u64) -> Result<Self, HeaderError> {
        let raw: Raw = serde_json::from_slice(text).map_err(|error| HeaderError::Json(error.to_string()))?;
        if let Some(name) = raw.duplicate {
            return Err(HeaderError::Duplicate(name));
        }
        let mut tensors =
            raw.tensors.into_iter().map(|(name, raw)| check(&name, raw)).collect::<Result<Vec<_>, _>>()?;
        // Empty tensors come before the one that begins where they lie; the sort is stable.
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
        let end = check_tiling(&tensors)?;
        if end > data_len {
            return Err(HeaderError::DataCut { promised: end, held: data_len });
        }
        if end < data_len {
            return Err(HeaderError::Hole { from: end, to: data_len });
        }
        for tensor in &mut tensors {
            tensor.offset = tensor.offset.saturating_add(data_start);
        }
        Ok(Self { tensors, metadata: raw.metadata, data_start })
    }

    /// The metadata value under `key`.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Checks one record; its offset still counts from the start of the data.
fn check(name: &str, raw: RawTensor) -> Result<TensorInfo, HeaderError> {
    let name = fqn::Fqn::new(name)?;
    let dtype = Dtype::from_safetensors_name(&raw.dtype).ok_or_else(|| HeaderError::UnknownDtype {
        name: name.to_string(),
        dtype: raw.dtype.chars().take(40).collect(),
    })?;
    if raw.shape.len() > MAX_RANK {
        return Err(HeaderError::Rank { name: name.to_string(), rank: raw.shape.len() });
    }
    let (shape, (begin, end)) = (Shape::from(raw.shape), raw.data_offsets);
    let bytes = shape.elements().and_then(|elements| dtype.bytes_for(elements));
    match (bytes, end.checked_sub(begin)) {
        (Some(bytes), Some(len)) if bytes == len => Ok(TensorInfo { name, dtype, shape, offset: begin, len }),
        (bytes, _) => {
            let expected =
                bytes.map_or_else(|| "no whole number of bytes".to_owned(), |bytes| format!("{bytes} bytes"));
            Err(HeaderError::Length { name: name.to_string(), dtype, shape, expected, begin, end })
        }
    }
}

/// Checks that ranges follow each other, and returns where the last one ends.
fn check_tiling(tensors: &[TensorInfo]) -> Result<u64, HeaderError> {
    let (mut at, mut before) = (0_u64, "");
    for tensor in tensors {
        if tensor.offset > at {
            return Err(HeaderError::Hole { from: at, to: tensor.offset });
        }
        if tensor.offset < at {
            return Err(HeaderError::Overlap {
                name: tensor.name.to_string(),
                begin: tensor.offset,
                before: before.to_owned(),
                end: at,
            });
        }
        // The range was checked: its end is a 64-bit number.
        at = tensor.offset.saturating_add(tensor.len);
        before = tensor.name.as_str();
    }
    Ok(at)
}
