//! `--verify`: what was written is opened again, checked as `ckpt verify` does, read, and compared with what was copied.

use std::collections::HashMap;

use dcp::engine::Report;
use dcp::fingerprint::Fingerprint;
use dcp::formats::OpenOptions;
use dcp::ops::content;
use dcp::{Error, Result};
use fqn::TensorId;
use serde::Serialize;

use super::{Context, open, verify};
use crate::target::Target;

/// What was proven.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Proven {
    /// Tensors whose bytes, read back, have the fingerprint of the copy.
    pub(super) tensors: usize,
    /// Bytes read against checksums.
    pub(super) checksum_bytes: u64,
}

/// Formats that hold no roles tell a buffer from a parameter by nothing: they compare by name and slot.
type Key = (String, Option<String>);

fn key(id: &TensorId) -> Key {
    (id.fqn.to_string(), id.role.slot_name().map(str::to_owned))
}

/// Opens `target` again and proves it.
///
/// # Errors
/// `Corrupt`, naming the first tensor that differs; as `verify`.
pub(super) fn prove(context: &Context<'_>, target: &str, report: &Report) -> Result<Proven> {
    let target = target.parse::<Target>().map_err(Error::internal)?;
    let opened = open::open(&target, OpenOptions::new())?;
    let checked = verify::prove(context, &opened)?;
    let found = content::fingerprints(
        &*opened.source,
        verify::threads(context, &[&*opened.source]),
        context.global.max_memory,
        &*context.progress,
        &context.cancel,
    )?;
    let found: HashMap<Key, Fingerprint> = found.iter().map(|(id, print)| (key(id), *print)).collect();
    for (id, copied) in &report.fingerprints {
        match found.get(&key(id)) {
            Some(read) if read == copied => {}
            Some(read) => {
                return Err(Error::corrupt(format!(
                    "{id}: fingerprint {read} when read back, {copied} when copied"
                )));
            }
            None => return Err(Error::corrupt(format!("{id}: not there when read back"))),
        }
    }
    Ok(Proven { tensors: report.fingerprints.len(), checksum_bytes: checked.bytes })
}
