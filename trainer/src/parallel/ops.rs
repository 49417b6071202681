//! [`TpOps`]: the operations of one rank, for the microbatch that [`Runtime::ops`] named last.

use std::{cell::Cell, fmt, ops::Range, rc::Rc};

use tch::Tensor;

use super::{
    Cut, Params, Runtime, Tokens, embed, linear, loss, norm,
    queue::{Queue, Sink},
    ranks::Ranks,
    tape::{Deck, Tape},
};
use crate::{
    Error, Result,
    exact::{Sums, VirtualTp},
    model::{Linear, Lookup, Model, Norm, Ops, Param, Value},
    transport::Group,
};

/// The operations of one rank.
pub struct TpOps {
    pub(super) ranks: Rc<Ranks>,
    queue: Rc<Queue>,
    microbatch: Cell<usize>,
    pub(super) deck: Deck,
}

impl TpOps {
    /// Operations on the weights `params` of `model`. `tp` is the tensor-parallel group; none, for a group of one. Sums over
    /// virtual ranks are made, and tokens lie between linears, as `how` says.
    ///
    /// # Errors
    /// `Internal` when the virtual ranks are not those of this place in the group; `Config` as [`VirtualTp::of`].
    pub fn new(
        model: &dyn Model,
        params: Rc<dyn Params>,
        tp: Option<Rc<dyn Group>>,
        virtual_tp: VirtualTp,
        how: (Sums, Tokens),
    ) -> Result<Self> {
        let ranks = Rc::new(Ranks::new(model, params, tp, virtual_tp, how)?);
        Ok(Self { ranks, queue: Rc::default(), microbatch: Cell::new(0), deck: Deck::default() })
    }

    /// How many weight gradients backward has queued that were not computed yet.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Where the nodes made now put their weight gradients.
    pub(super) fn sink(&self) -> Sink {
        Sink::new(&self.queue, self.microbatch.get())
    }

    /// How many pieces `cut` gives here.
    pub(super) fn pieces(&self, cut: Cut) -> usize {
        match cut {
            Cut::Whole => 1,
            Cut::Dim(_) => self.ranks.virtual_tp().count,
        }
    }

    /// How `param` is cut; refuses what its operation cannot follow.
    pub(super) fn cut(&self, param: Param, allowed: &[Cut]) -> Result<Cut> {
        let cut = self.ranks.params().cut(param);
        if allowed.contains(&cut) {
            return Ok(cut);
        }
        let name = self.ranks.name(param);
        Err(Error::config(format!(
            "tensor parallelism cuts {name} as {cut:?}, which its operation cannot follow"
        ))
        .hint("change its placement rule"))
    }
}

impl Ops for TpOps {
    fn linear(&self, x: &Value, layers: &[Linear]) -> Result<Vec<Value>> {
        linear::linear(self, x, layers)
    }

    fn embed(&self, lookups: &[Lookup<'_>]) -> Result<Value> {
        embed::embed(self, lookups)
    }

    fn norm(&self, x: &Value, norm: Norm, weight: Param, bias: Option<Param>) -> Result<Value> {
        norm::norm(self, x, norm, weight, bias)
    }

    fn loss(&self, logits: &Value, targets: &Tensor) -> Result<Tensor> {
        loss::loss(self, logits, targets)
    }

    fn assemble(&self, value: &Value) -> Result<Tensor> {
        loss::assemble(self, value)
    }
}

impl Runtime for TpOps {
    fn ops(&self, microbatch: usize) -> &dyn Ops {
        self.microbatch.set(microbatch);
        self
    }

    fn kept(&self, tokens: i64) -> i64 {
        if self.ranks.cuts_tokens() { Tokens::Cut.kept(tokens, self.ranks.virtual_tp()) } else { tokens }
    }

    fn weight_gradients(&self, parts: Range<usize>, microbatch: usize) -> Result<()> {
        self.queue.drain(&self.ranks, parts, microbatch)
    }

    fn postpone(&self, parts: Range<usize>, microbatch: usize) {
        self.queue.slim(parts, microbatch);
    }

    fn record(&self) {
        self.deck.record();
    }

    fn recorded(&self) -> Tape {
        self.deck.recorded()
    }

    fn replay(&self, tape: Tape) {
        self.deck.replay(tape);
    }

    fn replayed(&self) -> Result<()> {
        self.deck.replayed()
    }
}

impl fmt::Debug for TpOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (microbatch, queued) = (self.microbatch.get(), self.queued());
        f.debug_struct("TpOps")
            .field("microbatch", &microbatch)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}
