//! Messages that go wrong on purpose, between a rank's `send` and its transport: what a faulty network, or a faulty program on
//! the other side, would do. So that what a receiver says about it can be seen, and tested, on every transport.
//!
//! Invariant: one message of one rank in one step is touched; without a [`Tamper`] every parcel passes as it is.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use tch::{Kind as Dtype, Tensor};

use super::{Header, failure::Outcome};

/// What is done to the first message that `rank` sends in `step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tamper {
    /// The sender.
    pub rank: usize,
    /// The training step.
    pub step: u64,
    /// What is done.
    pub fault: Fault,
}

/// What can happen to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives.
    Drop,
    /// The next message to the same rank overtakes it.
    Swap,
    /// Its last tensor ends before what its header says.
    Cut,
    /// Its first tensor has another shape than the receiver expects.
    Shape,
    /// Its tensors are of another dtype than the receiver expects.
    Dtype,
}

/// A message with its number among those of its sender to its receiver.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) number: u64,
    pub(crate) header: Header,
    pub(crate) tensors: Vec<Tensor>,
}

/// Where all that a rank sends goes through: numbers it, and does what a [`Tamper`] wants.
#[derive(Debug)]
pub(crate) struct Outbox {
    wanted: Option<Tamper>,
    touched: Cell<bool>,
    held: RefCell<Option<(usize, Parcel)>>,
    sent: Numbers,
}

/// Counts messages by peer.
#[derive(Debug, Default)]
pub(crate) struct Numbers(RefCell<BTreeMap<usize, u64>>);

impl Numbers {
    /// The number of the next message to or from `peer`, from 0.
    pub(crate) fn next(&self, peer: usize) -> u64 {
        let mut all = self.0.borrow_mut();
        let next = all.entry(peer).or_default();
        *next += 1;
        *next - 1
    }
}

impl Outbox {
    pub(crate) fn new(rank: usize, wanted: Option<Tamper>) -> Self {
        let (touched, held, sent) = Default::default();
        Self { wanted: wanted.filter(|it| it.rank == rank), touched, held, sent }
    }

    /// What goes to `to` now, in order.
    pub(crate) fn pass(&self, to: usize, header: &Header, tensors: Vec<Tensor>) -> Outcome<Vec<Parcel>> {
        let parcel = Parcel { number: self.sent.next(to), header: header.clone(), tensors };
        let mut out = match self.wanted.filter(|it| it.step == header.step && !self.touched.get()) {
            Some(wanted) => {
                self.touched.set(true);
                return self.touch(wanted.fault, to, parcel);
            }
            None => vec![parcel],
        };
        out.extend(self.late(|held| held == to));
        Ok(out)
    }

    /// What was held back, when nothing more comes to overtake it.
    pub(crate) fn rest(&self) -> Option<(usize, Parcel)> {
        self.held.borrow_mut().take()
    }

    fn late(&self, is_due: impl Fn(usize) -> bool) -> Option<Parcel> {
        let mut held = self.held.borrow_mut();
        held.take_if(|(to, _)| is_due(*to)).map(|(_, parcel)| parcel)
    }

    fn touch(&self, fault: Fault, to: usize, mut parcel: Parcel) -> Outcome<Vec<Parcel>> {
        match fault {
            Fault::Drop => return Ok(Vec::new()),
            Fault::Swap => {
                *self.held.borrow_mut() = Some((to, parcel));
                return Ok(Vec::new());
            }
            Fault::Cut => {
                if let Some(last) = parcel.tensors.last_mut() {
                    let flat = last.f_contiguous()?.f_view([-1_i64].as_slice())?;
                    *last = flat.f_narrow(0, 0, flat.size1()?.saturating_sub(1))?;
                }
            }
            Fault::Shape => {
                if let (Some(first), Some(shape)) =
                    (parcel.tensors.first_mut(), parcel.header.shapes.first_mut())
                {
                    *first = first.f_contiguous()?.f_view([1_i64, -1].as_slice())?;
                    *shape = first.size();
                }
            }
            Fault::Dtype => {
                let other = if parcel.header.dtype == Dtype::Float { Dtype::BFloat16 } else { Dtype::Float };
                parcel.header.dtype = other;
                parcel.tensors =
                    parcel.tensors.iter().map(|it| it.f_to_kind(other)).collect::<Result<_, _>>()?;
            }
        }
        Ok(vec![parcel])
    }
}
