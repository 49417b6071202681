//! Messages on their way to this rank: receives that have begun, and what is made of them when they are needed.
//!
//! ```text
//! expect(from, header)                    recv(from, header)
//!   buffer of the label    ── posted        wait for the label, compare it
//!   buffers of the tensors ── posted if     post what was not, wait for it
//!                             `Post::ahead`
//! ```
//! A transfer begins when both sides are ready for it. So one that is foreseen passes while this rank computes, and one that is not
//! costs a round trip when it is needed.
//!
//! Invariants: messages of a peer are taken in the order in which they were foreseen; nothing is given to the caller before its
//! label has been compared; no buffer is posted that a message of another size could go into (see [`Post::ahead`]), as no carrier
//! survives that.
//!
//! [`Post::ahead`]: super::Post::ahead

use std::time::Instant;

use tch::{Device, Kind as Dtype, Tensor};

use super::{Carried, HEADER_TAG, Pending, ProcessTransport, SHAPES_TAG, elements, left, wire};
use crate::{
    torch::c10d::{ProcessGroup, Work},
    transport::{
        Header, check,
        failure::{Failure, Order, Outcome},
    },
};

/// A message whose receive has begun.
pub(super) struct Coming {
    header: Header,
    fixed: Tensor,
    label: Work,
    /// Where its tensors go, and what to wait for; nothing where they are posted after the label.
    payload: Option<Payload>,
}

struct Payload {
    tensors: Vec<Tensor>,
    works: Vec<Box<dyn Pending>>,
}

impl ProcessTransport {
    /// Begins to receive a message that comes after all that were foreseen.
    pub(super) fn foresee(&self, from: usize, header: &Header) -> Outcome<()> {
        let coming = self.begin(from, header)?;
        self.core.coming.borrow_mut().entry(from).or_default().push_back(coming);
        Ok(())
    }

    /// The next message of a peer.
    pub(super) fn take(&self, from: usize, expect: &Header) -> Outcome<Vec<Tensor>> {
        let foreseen =
            self.core.coming.borrow_mut().get_mut(&from).and_then(std::collections::VecDeque::pop_front);
        match foreseen {
            Some(coming) if coming.header == *expect => self.finish(from, coming),
            Some(coming) => Err(Failure::Misuse(format!(
                "rank {} takes {expect} from rank {from}, and has foreseen {} before it",
                self.core.rank, coming.header
            ))),
            None => self.finish(from, self.begin(from, expect)?),
        }
    }

    fn begin(&self, from: usize, header: &Header) -> Outcome<Coming> {
        check::peer(self.core.rank, self.core.world, from)?;
        let (fixed, label) = self.words(from, header, wire::WORDS, HEADER_TAG)?;
        let ahead = self.all_ahead(header)?;
        let payload = ahead.then(|| self.payload(from, header)).transpose()?;
        Ok(Coming { header: header.clone(), fixed, label, payload })
    }

    fn finish(&self, from: usize, coming: Coming) -> Outcome<Vec<Tensor>> {
        let Coming { header, fixed, label, payload } = coming;
        let what = what(&header, from);
        let _waiting = self.core.scene.wait(&what);
        let deadline = Instant::now() + self.core.limit();
        let came = |work: &dyn Pending| {
            work.wait(left(deadline)).map_err(|error| self.explained(&what, from, error))
        };
        came(&label)?;
        let label = self.label(from, &header, &fixed, &came)?;
        self.due(from, &header, &label)?;
        let Payload { tensors, works } = payload.map_or_else(|| self.payload(from, &header), Ok)?;
        works.iter().try_for_each(|work| came(&**work))?;
        self.core.ledger.received(&tensors);
        Ok(tensors)
    }

    /// Errs unless a label is that of the message that is due, all of it.
    fn due(&self, from: usize, header: &Header, label: &wire::Label) -> Outcome<()> {
        let order = Order { due: self.core.received.next(from), found: label.number };
        check::header(from, self.core.rank, header, &label.header, order)?;
        let sizes = header.shapes.iter().map(|shape| check::elements(shape)).collect::<Outcome<Vec<_>>>()?;
        let mut parts = sizes.iter().zip(&label.counts).enumerate();
        let Some((at, (due, sent))) = parts.find(|(_, (due, sent))| due != sent) else { return Ok(()) };
        let found = format!("tensor {at} of them has {sent} elements instead of {due}");
        Err(Failure::Cut { from, to: self.core.rank, header: Box::new(header.clone()), found })
    }

    /// Posts buffers for the tensors of a message.
    fn payload(&self, from: usize, header: &Header) -> Outcome<Payload> {
        let device = self.core.carrier.device();
        let buffers = header.shapes.iter().map(|shape| Tensor::f_empty(shape, (header.dtype, device)));
        let tensors = buffers.collect::<Result<Vec<_>, _>>()?;
        let post = || -> Carried<Vec<_>> {
            let post = &self.peers()?.post;
            let full = tensors.iter().filter(|tensor| elements(tensor) > 0);
            full.map(|tensor| post.recv(tensor.shallow_clone(), from)).collect()
        };
        let works = post().map_err(|error| self.explained(&what(header, from), from, error))?;
        Ok(Payload { tensors, works })
    }

    fn all_ahead(&self, header: &Header) -> Outcome<bool> {
        let Some(peers) = &self.peers else { return Ok(false) };
        let size = header.dtype.elt_size_in_bytes();
        let ahead = |shape: &Vec<i64>| {
            let bytes =
                usize::try_from(check::elements(shape)?).ok().and_then(|count| count.checked_mul(size));
            Ok(bytes.is_some_and(|bytes| peers.post.ahead(bytes)))
        };
        header.shapes.iter().map(ahead).try_fold(true, |all, ahead| ahead.map(|ahead| all && ahead))
    }

    /// Reads a label, whose second part, if there is one, comes now.
    fn label(
        &self,
        from: usize,
        header: &Header,
        fixed: &Tensor,
        came: &dyn Fn(&dyn Pending) -> Outcome<()>,
    ) -> Outcome<wire::Label> {
        let garbled = |why| Failure::Garbled { from, to: self.core.rank, why };
        let mut first = [0; wire::WORDS];
        fixed.f_copy_data(&mut first, wire::WORDS)?;
        let count = wire::rest(&first).map_err(garbled)?;
        let mut rest = vec![0; count];
        if count > 0 {
            let (words, work) = self.words(from, header, count, SHAPES_TAG)?;
            came(&work)?;
            words.f_copy_data(&mut rest, count)?;
        }
        wire::unpack(&first, &rest).map_err(garbled)
    }

    /// Posts a buffer for so many words.
    fn words(&self, from: usize, header: &Header, count: usize, tag: i32) -> Outcome<(Tensor, Work)> {
        let length = i64::try_from(count).unwrap_or(i64::MAX);
        let into = Tensor::f_zeros([length], (Dtype::Int64, Device::Cpu))?;
        let post = |group: &ProcessGroup| group.recv(into.shallow_clone(), from, tag);
        let work = self.on_peers(post)?.map_err(|error| self.explained(&what(header, from), from, error))?;
        Ok((into, work))
    }
}

fn what(header: &Header, from: usize) -> String {
    format!("{header} from rank {from}")
}
