//! Where this checkout lies.

use std::env;
use std::path::{Path, PathBuf};

/// The workspace root. Asked of cargo at run time, since a shared target folder may hold a build from another clone.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().and_then(Path::parent).map_or_else(|| manifest.clone(), Path::to_path_buf)
}
