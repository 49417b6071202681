//! How the sequences of a step are shared out: microbatches, replicas. Pure numbers.

use super::{ConfigError, Training};
use crate::mesh::MeshShape;

/// How the sequences of a step are shared out. `global = microbatches × micro × dp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// Sequences of a step, over all replicas.
    pub global: u64,
    /// Sequences of a microbatch.
    pub micro: u64,
    /// Microbatches of a replica (M).
    pub microbatches: u64,
    /// Replicas.
    pub dp: u64,
}

impl Batches {
    /// From what the configuration says; the number of microbatches may be left out (0).
    ///
    /// # Errors
    /// Numbers that do not multiply out, each named.
    pub fn of(training: &Training, mesh: MeshShape) -> Result<Self, ConfigError> {
        let dp = u64::try_from(mesh.dp).unwrap_or(u64::MAX);
        let (global, micro) = (training.global_batch, training.micro_batch);
        let one = micro.checked_mul(dp).filter(|one| *one > 0);
        let fitting = one.filter(|one| global >= *one && global.is_multiple_of(*one)).map(|one| global / one);
        let refused = |said: String| {
            Err(ConfigError::Contradiction(said, "global_batch = microbatches x micro_batch x dp must hold"))
        };
        match (fitting, training.microbatches) {
            (Some(microbatches), 0) => Ok(Self { global, micro, microbatches, dp }),
            (Some(microbatches), given) if given == microbatches => {
                Ok(Self { global, micro, microbatches, dp })
            }
            (_, 0) => {
                let (one, near) = (one.unwrap_or(u64::MAX), nearest(global, one));
                refused(format!(
                    "training.global_batch={global} is no multiple of training.micro_batch={micro} x dp={dp} = {one} \
                     (parallelism.mesh={mesh}){near}"
                ))
            }
            (_, given) => {
                let product = one.and_then(|one| one.checked_mul(given));
                let product = product.map_or("more than can be counted".to_owned(), |n| n.to_string());
                refused(format!(
                    "training.microbatches={given} x training.micro_batch={micro} x dp={dp} = {product}, but \
                     training.global_batch={global} (parallelism.mesh={mesh})"
                ))
            }
        }
    }

    /// All microbatches of a step, over all replicas.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.microbatches * self.dp
    }
}

/// Multiples of `one` on either side of `global`.
fn nearest(global: u64, one: Option<u64>) -> String {
    let Some(one) = one else { return String::new() };
    let below = global / one * one;
    match (below, below.checked_add(one)) {
        (0, Some(above)) => format!("; {above} would do"),
        (below, Some(above)) => format!("; {below} or {above} would do"),
        (_, None) => String::new(),
    }
}
