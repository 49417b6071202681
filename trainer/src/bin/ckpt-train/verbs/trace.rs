//! `ckpt-train trace`: one trace of all ranks' traces.

use std::path::Path;

use trainer::{Result, metrics::merge};

pub(super) fn run(folder: &Path) -> Result<u8> {
    let (path, merged) = merge(folder)?;
    super::print(&format!(
        "wrote  {}: {} ranks, {} slices, {} arrows, each with both ends; open it at ui.perfetto.dev\n",
        path.display(),
        merged.ranks,
        merged.slices,
        merged.arrows
    ))
}
