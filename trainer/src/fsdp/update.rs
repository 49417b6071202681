//! From gradients to the next weights: finiteness and norm over the whole mesh, clipping, one optimizer step.
//!
//! Invariants: all ranks decide the same from the same bytes, before anyone updates; every parameter counts once in the
//! norm, however many ranks hold it.

use std::time::Duration;

use tch::Tensor;

use super::{Gradients, gradients::NONE, plan::elements, state::State};
use crate::{
    Error, ErrorKind, Result,
    exact::norm::{BYTES, Norm, SquareSum},
    optim::{AdamW, Slices},
    transport::Purpose,
};

/// Elements that are copied out of a tensor at once.
const CHUNK: usize = 1 << 15;
const STRIDE: i64 = CHUNK as i64;

/// What one rank says of its loss and gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Verdict {
    squares: SquareSum,
    loss_is_finite: bool,
    /// The first parameter of whose reduced gradient this rank's shard is not finite.
    first: u64,
    /// The first parameter of which this rank itself gave a gradient that is not finite.
    suspect: u64,
}

/// The factor that keeps a gradient of norm `norm` within `most`: as torch computes it, in f32.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "norms are f32, as torch's are")]
pub fn clip_coefficient(most: f64, norm: f64) -> f64 {
    f64::from((most as f32 / (norm as f32 + 1e-6_f32)).min(1.0))
}

impl State {
    /// The norm of all gradients of the mesh: the same bits on every rank and every mesh. `loss` is this rank's, where it
    /// has one. Collective over all ranks.
    ///
    /// # Errors
    /// `NotFinite` on every rank when a loss or a gradient of any is not: names the ranks and the first parameter.
    pub fn norm(&self, gradients: &Gradients, loss: Option<f64>) -> Result<f64> {
        let mine = self.verdict(gradients, loss)?;
        let purpose = Purpose("norm of the gradients".to_owned());
        let all = self.groups.world.all_gather_bytes(&purpose, &mine.to_bytes())?;
        let damaged = |rank| Error::new(ErrorKind::Corrupt, format!("rank {rank} sent no norm of gradients"));
        let all = all
            .iter()
            .enumerate()
            .map(|(rank, bytes)| Verdict::from_bytes(bytes).ok_or_else(|| damaged(rank)));
        let all = all.collect::<Result<Vec<_>>>()?;
        let mut sum = SquareSum::default();
        all.iter().for_each(|verdict| sum.merge(&verdict.squares));
        match sum.norm() {
            Norm::Finite(norm) if all.iter().all(Verdict::is_finite) => Ok(norm),
            _ => Err(self.not_finite(&all, &sum)),
        }
    }

    /// One step of the optimizer over the shards, gradients multiplied by `coefficient` first; returns how long it waited
    /// for a lease.
    ///
    /// # Errors
    /// `Internal` while a part is in use; what libtorch refuses.
    pub fn update(
        &self,
        gradients: Gradients,
        optimizer: &AdamW,
        rate: f64,
        coefficient: f64,
    ) -> Result<Duration> {
        let _guard = tch::no_grad_guard();
        self.unused()?;
        let waited = self.gate.wait();
        let step = self.step.get() + 1;
        for ((unit, shards), mut grad) in self.plan.units.iter().zip(&self.shards).zip(gradients.units) {
            #[expect(clippy::float_cmp, reason = "exactly 1 is what clamping gives")]
            if coefficient != 1.0 {
                let _ = grad.f_mul_scalar_(coefficient)?;
            }
            for (start, end, decayed) in [(0, unit.decayed, true), (unit.decayed, unit.kept, false)] {
                let range = |tensor: &Tensor| tensor.f_narrow(0, start, end - start);
                let slices = Slices {
                    param: &range(&shards.param)?,
                    exp_avg: &range(&shards.exp_avg)?,
                    exp_avg_sq: &range(&shards.exp_avg_sq)?,
                    grad: &range(&grad)?,
                };
                optimizer.update(&slices, step, rate, decayed)?;
            }
        }
        self.step.set(step);
        Ok(waited)
    }

    fn verdict(&self, gradients: &Gradients, loss: Option<f64>) -> Result<Verdict> {
        let loss_is_finite = loss.is_none_or(f64::is_finite);
        let suspect = gradients.suspect;
        let mut mine = Verdict { squares: SquareSum::default(), loss_is_finite, first: NONE, suspect };
        let mut values = Vec::new();
        for held in &self.plan.params {
            let kept = self.kept(held)?;
            let grad = gradients.units.get(held.home.0);
            let grad = grad.ok_or_else(|| Error::internal("gradients of another state"))?;
            let mut squares = SquareSum::default();
            let length = elements(kept.region);
            for start in (0..length).step_by(CHUNK) {
                let part = grad.f_narrow(0, kept.offset + start, STRIDE.min(length - start))?;
                values.resize(part.numel(), 0_f32);
                part.f_copy_data(&mut values, part.numel())?;
                squares.add(&values);
            }
            if !squares.is_finite() {
                mine.first = mine.first.min(held.index as u64);
            }
            // A copy that another rank counts matters only if it is damaged.
            if held.primary || !squares.is_finite() {
                mine.squares.merge(&squares);
            }
        }
        Ok(mine)
    }

    /// Names the ranks that gave what is not finite; where only sums are not, those that hold them.
    fn not_finite(&self, all: &[Verdict], sum: &SquareSum) -> Error {
        let place =
            |rank: usize| self.mesh.coordinates(rank).map_or_else(|_| "?".to_owned(), |at| at.to_string());
        let named = |index: u64| usize::try_from(index).ok().and_then(|index| self.names.get(index));
        let given = all.iter().any(|verdict| verdict.suspect != NONE);
        let mut found = Vec::new();
        for (rank, verdict) in all.iter().enumerate() {
            if !verdict.loss_is_finite {
                found.push(format!("the loss of rank {rank} ({})", place(rank)));
            }
            if let Some(name) = named(if given { verdict.suspect } else { verdict.first }) {
                found.push(format!("the gradient of {name} on rank {rank} ({})", place(rank)));
            }
        }
        let first = all.iter().map(|verdict| verdict.first.min(verdict.suspect)).min().and_then(named);
        let first = first.map_or_else(String::new, |name| format!("; first of the model: {name}"));
        let what = match sum.norm() {
            Norm::NotFinite(what) => format!(" ({what})"),
            Norm::Finite(_) => String::new(),
        };
        if found.is_empty() {
            found.push("the norm of all gradients".to_owned());
        }
        Error::new(ErrorKind::NotFinite, format!("not finite{what}: {}{first}", found.join(", ")))
            .hint("nothing was updated; resume from the last checkpoint, with a lower learning rate or without this data")
    }
}

impl Verdict {
    const fn is_finite(&self) -> bool {
        self.loss_is_finite && self.first == NONE && self.suspect == NONE && self.squares.is_finite()
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.squares.to_bytes().to_vec();
        bytes.push(u8::from(self.loss_is_finite));
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.suspect.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (squares, rest) = bytes.split_at_checked(BYTES)?;
        let (loss, rest) = rest.split_first()?;
        let (first, suspect) = rest.split_first_chunk::<8>()?;
        let (first, suspect) = (u64::from_le_bytes(*first), u64::from_le_bytes(suspect.try_into().ok()?));
        Some(Self { squares: SquareSum::from_bytes(squares)?, loss_is_finite: *loss == 1, first, suspect })
    }
}
