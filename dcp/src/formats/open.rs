//! [`open`]: what is at a path, detected and opened by its adapter.

use std::path::Path;

use super::{
    Detected, OpenOptions, detect,
    hf::HfSource,
    native::{NativeSource, open_in},
    safetensors::SafetensorsSource,
    torch_dcp::DcpSource,
    torch_pt::PtSource,
};
use crate::{Error, Format, Result, Source, store::Stores};

/// Detects what is at `path` and opens it.
///
/// # Errors
/// As [`detect`](super::detect()) and the adapter of the format.
pub fn open(path: &Path, options: OpenOptions) -> Result<Box<dyn Source>> {
    open_detected(&detect(path)?, options)
}

/// Opens what was detected.
///
/// # Errors
/// As the adapter of the format.
pub fn open_detected(found: &Detected, options: OpenOptions) -> Result<Box<dyn Source>> {
    let path = found.path.as_path();
    Ok(match found.format {
        Format::TorchDcp => Box::new(DcpSource::open(path, options)?),
        Format::Hf => Box::new(HfSource::open(path, options)?),
        Format::Safetensors => Box::new(SafetensorsSource::open(path, options)?),
        Format::Native => Box::new(native(path, options)?),
        Format::Pt => Box::new(PtSource::open(path, options)?),
    })
}

/// The newest checkpoint of a root, or a step's folder.
fn native(path: &Path, options: OpenOptions) -> Result<NativeSource> {
    let location = path.to_str();
    let location =
        location.ok_or_else(|| Error::unsupported(format!("{}: the path is not UTF-8", path.display())))?;
    open_in(&Stores::new(), location, None, options)
}
