//! [`Rows`]: an operand of weight gradients, with one row for each token: all of them, or those that this rank owns, of which all
//! are gathered when the first gradient needs them.
//!
//! Between an input gradient and its weight gradients nothing has to hold all rows: what a split backward puts off waits as a rank's
//! own rows ([`Rows::slim`]), so that sequence parallelism divides that memory too. Of an input all rows are gathered once for its
//! weight gradients, whenever those are computed. Of a gradient of outputs all rows are there already when the weight gradients
//! follow at once; put off, they are gathered once more.
//!
//! Invariants: gradients of one operand share it, so that it is gathered once for all, and freed with the last; every rank gathers in
//! the same order, as all compute their weight gradients in the same order.

use std::{cell::RefCell, rc::Rc};

use tch::Tensor;

use super::ranks::Ranks;
use crate::{Error, Result};

/// One row for each token, shared.
#[derive(Clone)]
pub(super) struct Rows(Rc<RefCell<Held>>);

/// One of the two at least.
struct Held {
    own: Option<Tensor>,
    all: Option<Tensor>,
}

impl Rows {
    /// Rows that need nobody else's.
    pub(super) fn all(rows: Tensor) -> Self {
        Self::held(None, Some(rows))
    }

    /// A rank's own rows, of which all are gathered later; all of them, where tokens are not cut.
    pub(super) fn own(ranks: &Ranks, rows: Tensor) -> Self {
        if ranks.cuts_tokens() { Self::held(Some(rows), None) } else { Self::all(rows) }
    }

    fn held(own: Option<Tensor>, all: Option<Tensor>) -> Self {
        Self(Rc::new(RefCell::new(Held { own, all })))
    }

    /// All rows, gathered if they are not here. They stay until [`Rows::slim`], or until nobody holds these rows any more.
    pub(super) fn get(&self, ranks: &Ranks) -> Result<Tensor> {
        let mut held = self.0.borrow_mut();
        if let Some(all) = &held.all {
            return Ok(all.shallow_clone());
        }
        let own = held.own.as_ref().ok_or_else(|| Error::internal("an operand without rows"))?;
        let all = ranks.all_tokens(own)?;
        held.all = Some(all.shallow_clone());
        Ok(all)
    }

    /// Keeps the own rows alone, if all can be gathered from them.
    pub(super) fn slim(&self) {
        let mut held = self.0.borrow_mut();
        if held.own.is_some() {
            held.all = None;
        }
    }
}
