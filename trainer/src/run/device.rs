//! GPUs: whether this process can compute on the one that its rank is given.

use crate::{Error, Result, launch};

/// Refuses a rank for which libtorch has no GPU.
///
/// # Errors
/// `Config`, with what is missing.
pub(super) fn check(ranks: &launch::Ranks) -> Result<()> {
    let count = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    if !tch::Cuda::is_available() || count == 0 {
        return Err(Error::config("training.device=cuda: this libtorch finds no GPU")
            .hint("link the trainer with a libtorch that was built for CUDA (LIBTORCH), on a machine with a GPU; or choose training.device=cpu"));
    }
    if ranks.local_rank >= count {
        return Err(Error::config(format!(
            "training.device=cuda: rank {} is number {} on its machine, which has {count} GPUs",
            ranks.rank, ranks.local_rank
        ))
        .hint("start no more ranks on a machine than it has GPUs; CUDA_VISIBLE_DEVICES may hide some"));
    }
    Ok(())
}
