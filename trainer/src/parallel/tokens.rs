//! [`Tokens`]: how the tokens of a microbatch lie between the regions of tensor parallelism: all of them on every rank, or cut
//! over the ranks (sequence parallelism).
//!
//! ```text
//!            own tokens         all tokens, of own heads or neurons            own tokens
//!  norm ─► [t, width] ─ gather ─► linear by rows ─► … ─► by columns ─ sum to owners ─► [t, width] ─► residual, norm
//!                     ◄ sum to owners ─           backward          ◄ gather ─
//! ```
//!
//! What is cut: the rows of an activation are a microbatch's tokens, sequence after sequence, and virtual rank `g` of `G` owns the rows
//! from `g·T/G` to `(g+1)·T/G` of `T`, wherever sequences begin. All that a model does between its linears treats each token by
//! itself; attention, which does not, stands between a linear cut by rows and one cut by columns, where all tokens are. So
//! `T`, the micro-batch times the length of a sequence, is a multiple of `G`, and nothing else has to be. A rank keeps the rows of the
//! virtual ranks that it plays as one tensor.
//!
//! What is kept for backward is a rank's own rows. All rows are gathered again where a product needs them: those of a gradient of
//! outputs for the gradient of inputs, those of an input for the gradient of its weight (see [`super::rows`]).
//!
//! Invariants: an operation on single tokens gives a row the same bits however many rows there are, which a test holds norms to; a
//! sum over tokens is made over the rows of each virtual rank, and then as all sums over virtual ranks are; products have all
//! tokens, and so the shapes that they have where tokens are not cut.

use tch::{Kind, Tensor};

use super::ranks::Ranks;
use crate::{
    Error, Result,
    exact::{self, VirtualTp},
};

/// How the tokens of a microbatch lie between the regions of tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tokens {
    /// All of them on every rank.
    #[default]
    Whole,
    /// Cut over the virtual ranks: sequence parallelism.
    Cut,
}

impl Tokens {
    /// As a configuration says it, `parallelism.sequence_parallel`.
    #[must_use]
    pub const fn of(sequence_parallel: bool) -> Self {
        if sequence_parallel { Self::Cut } else { Self::Whole }
    }

    /// Of `tokens` of a microbatch, how many a rank that plays these virtual ranks keeps. Rounded down where they can't be cut.
    #[must_use]
    pub fn kept(self, tokens: i64, virtual_tp: VirtualTp) -> i64 {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        match self {
            Self::Whole => tokens,
            Self::Cut => tokens / number(virtual_tp.total).max(1) * number(virtual_tp.count),
        }
    }
}

/// The lengths of a sequence next to `length`, or itself, with which the tokens of a microbatch of `micro` sequences divide over
/// `ranks`.
#[must_use]
pub fn lengths_that_fit(micro: u64, length: u64, ranks: u64) -> Vec<u64> {
    let unit = ranks.max(1) / common(ranks.max(1), micro);
    let below = length / unit * unit;
    if below == length {
        return vec![length];
    }
    [below, below.saturating_add(unit)].into_iter().filter(|fit| *fit > 0).collect()
}

/// The greatest common divisor.
const fn common(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Ranks {
    /// Whether a rank keeps its own tokens alone. One virtual rank owns all.
    pub(super) fn cuts_tokens(&self) -> bool {
        self.tokens() == Tokens::Cut && self.virtual_tp().total > 1
    }

    /// How many of the microbatch's tokens are there in all, if a rank keeps `own`.
    fn all(&self, own: i64) -> i64 {
        let tp = self.virtual_tp();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        if self.cuts_tokens() { own / number(tp.count).max(1) * number(tp.total) } else { own }
    }

    /// Own rows of what has a row for each token; all, where tokens are not cut.
    pub(super) fn own_tokens(&self, all: &Tensor) -> Result<Tensor> {
        if !self.cuts_tokens() {
            return Ok(all.shallow_clone());
        }
        let (tp, own) = (self.virtual_tp(), self.share(rows(all)?)?);
        let first =
            i64::try_from(tp.first).unwrap_or(i64::MAX) * (own / i64::try_from(tp.count).unwrap_or(1));
        Ok(all.f_narrow(0, first, own)?)
    }

    /// How many of `all` tokens are kept here.
    fn share(&self, all: i64) -> Result<i64> {
        let total = self.virtual_tp().total;
        if i64::try_from(total).is_ok_and(|total| all % total == 0) {
            return Ok(self.tokens().kept(all, self.virtual_tp()));
        }
        Err(Error::config(format!(
            "sequence parallelism cuts the {all} tokens of a microbatch over {total} virtual tensor-parallel ranks: {all} is no \
             multiple of {total}"
        ))
        .hint("choose training.micro_batch x training.seq_len accordingly, or parallelism.sequence_parallel=false"))
    }

    /// All rows, from everyone's own; themselves, where tokens are not cut.
    pub(super) fn all_tokens(&self, own: &Tensor) -> Result<Tensor> {
        if !self.cuts_tokens() {
            return Ok(own.shallow_clone());
        }
        let mut parts = self.gather(&own.f_contiguous()?, "tokens")?;
        match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => Ok(only),
            (last, _) => {
                parts.extend(last);
                Ok(Tensor::f_cat(&parts, 0)?)
            }
        }
    }

    /// Sums what the virtual ranks gave for all tokens, and leaves to each rank the sums of its own; all of them, where tokens
    /// are not cut. A tree in fast mode too: it costs nothing more.
    pub(super) fn sum_to_owners(&self, partials: Vec<Tensor>, what: &str) -> Result<Tensor> {
        if !self.cuts_tokens() {
            return self.sum(partials, what);
        }
        let mine = exact::sum(partials)?;
        let own = self.share(rows(&mine)?)?;
        let Some(group) = self.group() else { return Ok(mine) };
        let shape: Vec<i64> = std::iter::once(own).chain(mine.size().into_iter().skip(1)).collect();
        let parts = mine.f_contiguous()?.f_split(own, 0)?;
        exact::sum(group.exchange(
            &self.purpose(&format!("shares of {what}")),
            parts,
            &vec![shape; group.size()],
        )?)
    }

    /// The rows of each virtual rank that is played here; all at once, where tokens are not cut.
    pub(super) fn by_virtual_rank(&self, own: &Tensor) -> Result<Vec<Tensor>> {
        let count = i64::try_from(self.virtual_tp().count).unwrap_or(i64::MAX);
        if !self.cuts_tokens() || count == 1 {
            return Ok(vec![own.shallow_clone()]);
        }
        Ok(own.f_split((rows(own)? / count).max(1), 0)?)
    }

    /// Zeros in f32 with a row for every token, as wide as `own`, which has this rank's.
    pub(super) fn zeros_of_all(&self, own: &Tensor) -> Result<Tensor> {
        let shape: Vec<i64> =
            std::iter::once(self.all(rows(own)?)).chain(own.size().into_iter().skip(1)).collect();
        Ok(own.f_new_zeros(shape, (Kind::Float, own.device()))?)
    }
}

fn rows(tensor: &Tensor) -> Result<i64> {
    tensor.size().first().copied().ok_or_else(|| Error::internal("a scalar has no row for each token"))
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn noise(rows: i64, width: i64) -> Tensor {
        let at = Tensor::arange(rows * width, (Kind::Float, Device::Cpu));
        ((&at * 12.9898).sin() * 43_758.547 + (&at * 0.37).cos() * 3.0).view([rows, width])
    }

    /// The norms of the models and their backward, of `x` and with `dy`.
    fn normalised(x: &Tensor, dy: &Tensor) -> [Tensor; 4] {
        let width = x.size()[1];
        let run = |f: &dyn Fn(&Tensor) -> Tensor| {
            let leaf = x.copy().set_requires_grad(true);
            let y = f(&leaf);
            crate::torch::node::backward(&[&y], &[dy]).unwrap();
            (y.detach(), leaf.grad())
        };
        let none = None::<&Tensor>;
        let (rms, rms_back) = run(&|x| x.rms_norm([width], none, 1e-5));
        let (layer, layer_back) = run(&|x| x.layer_norm([width], none, none, 1e-5, false));
        [rms, rms_back, layer, layer_back]
    }

    #[test]
    fn a_tokens_norm_and_its_gradient_have_the_same_bits_among_any_number_of_others() {
        tch::set_num_threads(1);
        for width in [8, 12, 33, 64, 100, 257, 1024] {
            let (x, dy) = (noise(24, width), noise(24, width).flip([0]) * 1e-3);
            let all = normalised(&x, &dy);
            for count in [1, 2, 3, 5, 12] {
                for first in [0, 24 - count, 7] {
                    let part = |it: &Tensor| it.narrow(0, first, count);
                    for (found, whole) in normalised(&part(&x), &part(&dy)).iter().zip(&all) {
                        assert!(found.equal(&part(whole)), "width {width}, rows {first} and {count} more");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_do_not_divide_are_told_those_beside_them_that_do() {
        assert_eq!(lengths_that_fit(1, 10, 4), [8, 12]);
        assert_eq!(lengths_that_fit(2, 10, 4), [10]);
        assert_eq!(lengths_that_fit(6, 5, 4), [4, 6]);
        assert_eq!(lengths_that_fit(1, 3, 8), [8]);
        assert_eq!(lengths_that_fit(3, 5, 1), [5]);
    }

    #[test]
    fn a_rank_keeps_the_tokens_of_its_virtual_ranks() {
        let of = |index, size, total| VirtualTp::of(index, size, total).unwrap();
        assert_eq!(Tokens::Cut.kept(24, of(1, 2, 8)), 12);
        assert_eq!(Tokens::Cut.kept(24, of(0, 1, 8)), 24);
        assert_eq!(Tokens::of(false).kept(24, of(1, 2, 8)), 24);
        assert_eq!(Tokens::of(true).kept(6, of(2, 3, 3)), 2);
    }
}
