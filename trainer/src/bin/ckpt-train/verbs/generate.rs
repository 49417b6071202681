//! `ckpt-train generate`: the model of a checkpoint continues a text.

use std::path::Path;

use dcp::store::{Root, Stores};
use tch::Tensor;
use trainer::{
    Error, ErrorKind, Result,
    generate::{Continuation, Trained},
};

use crate::{cli::Generate, exit};

pub(super) fn run(options: &Generate) -> Result<u8> {
    let root = Root::open(&options.root, &Stores::new()).map_err(dcp::Error::from)?;
    let trained = Trained::open(&root, &options.revision)?;
    eprintln!("model  {}, {}, step {}", exit::harmless(&options.root), options.revision, trained.step());
    let prompt: Vec<i64> = options.prompt.bytes().map(i64::from).collect();
    let made = trained.greedy(&prompt, options.tokens)?;
    if let Some(path) = &options.logits {
        write(path, &prompt, &made)?;
        eprintln!("wrote  {} logits to {}", made.logits.numel(), path.display());
    }
    super::print(&format!("{}\n", exit::harmless(&text(&made.ids))))
}

/// As text: bytes that are no UTF-8, and tokens that are no bytes, are shown as such.
fn text(ids: &[i64]) -> String {
    // 255 is in no UTF-8 text.
    let bytes: Vec<u8> = ids.iter().map(|id| u8::try_from(*id).unwrap_or(u8::MAX)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn write(path: &Path, prompt: &[i64], made: &Continuation) -> Result<()> {
    let ids = |ids: &[i64]| Tensor::f_from_slice(ids);
    let tensors = [
        ("prompt", ids(prompt)?),
        ("logits", made.logits.f_contiguous()?),
        ("continuation", ids(&made.ids)?),
    ];
    Tensor::write_safetensors(&tensors, path).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
    })
}
