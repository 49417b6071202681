//! Why a file is no safetensors file, or not one that we read.

use crate::{Error, ErrorKind};

/// Why a header is refused. The file's name is added by whoever knows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not even the length fits.
    #[error("{0} bytes are too few for a safetensors file")]
    TooShort(u64),
    /// The length of the header exceeds the limit of the format.
    #[error("the header claims {0} bytes; the format allows {limit}", limit = super::MAX_HEADER_BYTES)]
    HeaderTooLong(u64),
    /// The header passes the end of the file.
    #[error(
        "the header claims {claimed} bytes, but the file has only {len}: cut short, or no safetensors file"
    )]
    HeaderCut {
        /// What the length field says.
        claimed: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// Not JSON of the expected form.
    #[error("the header is no valid JSON header: {0}")]
    Json(String),
    /// A name that names twice.
    #[error("the header names {0:?} twice")]
    Duplicate(String),
    /// A name that is refused.
    #[error(transparent)]
    Name(#[from] fqn::NameError),
    /// An element type this build does not know.
    #[error("{name}: unknown dtype {dtype:?}")]
    UnknownDtype {
        /// Tensor.
        name: String,
        /// The text in the header.
        dtype: String,
    },
    /// Dtype, shape and byte range disagree.
    #[error("{name}: {dtype} of shape {shape} takes {expected}, its range {begin}..{end} holds {} bytes", end.saturating_sub(*begin))]
    Length {
        /// Tensor.
        name: String,
        /// Element type.
        dtype: fqn::Dtype,
        /// Shape.
        shape: fqn::Shape,
        /// Bytes by dtype and shape, in words.
        expected: String,
        /// First byte of the range.
        begin: u64,
        /// End of the range.
        end: u64,
    },
    /// Too many dimensions.
    #[error("{name}: {rank} dimensions; at most {limit} are read", limit = super::header::MAX_RANK)]
    Rank {
        /// Tensor.
        name: String,
        /// Number of dimensions.
        rank: usize,
    },
    /// Bytes that two tensors claim.
    #[error("{name} begins at byte {begin} of the data, inside {before}, which ends at {end}")]
    Overlap {
        /// The later tensor.
        name: String,
        /// Where it begins.
        begin: u64,
        /// The earlier tensor.
        before: String,
        /// Where that ends.
        end: u64,
    },
    /// Bytes that no tensor claims.
    #[error("bytes {from}..{to} of the data belong to no tensor")]
    Hole {
        /// First byte.
        from: u64,
        /// End.
        to: u64,
    },
    /// Data that the header promises and the file lacks.
    #[error("the header promises {promised} bytes of data, the file holds {held}: cut short")]
    DataCut {
        /// By the header.
        promised: u64,
        /// In the file.
        held: u64,
    },
    /// The medium.
    #[error("{1}")]
    Io(std::io::ErrorKind, String),
}

impl From<std::io::Error> for HeaderError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.kind(), error.to_string())
    }
}

impl From<HeaderError> for Error {
    fn from(error: HeaderError) -> Self {
        if let HeaderError::Io(kind, text) = error {
            return std::io::Error::new(kind, text).into();
        }
        let kind = match &error {
            HeaderError::UnknownDtype { .. } | HeaderError::Rank { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}
