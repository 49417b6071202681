//! Processes as ranks, all over libtorch's own gloo: for tensors in the memory of processors.
//!
//! gloo's sends are rendezvous: they end when the receiver takes. So a message is begun, and its tensors and works are kept
//! until they are taken; two ranks that both send more to each other than may be under way before either receives wait until
//! their time limit. gloo ends the process on a message that is longer than its buffer, and takes one that is shorter without a
//! word; so the tag of a tensor says how many bytes it has, and one of another size never meets the buffer.

use std::{rc::Rc, time::Duration};

use tch::{Device, Tensor};

pub use super::processes::{ProcessTransport, Ranks};
use super::{
    Limits,
    failure::Outcome,
    processes::{self, Carried, Carrier, Core, Lane, Meeting, Pending, Post, Slot},
};
use crate::{
    Result,
    torch::c10d::{C10dError, ProcessGroup, Status, Work},
};

/// Under which tensors go that are too large for a tag of their own: they are posted after their label. Labels have tags below.
const LARGE: i32 = 3;
/// Below the number of bytes in a tag; no other tag has all of these bits.
const SHIFT: u32 = 2;

/// What tensors of so many bytes go under, and none of another size.
fn sized(bytes: usize) -> Option<i32> {
    let tag = i32::try_from(bytes).ok().filter(|bytes| *bytes > 0 && *bytes < 1 << (31 - SHIFT))?;
    Some(tag << SHIFT | LARGE)
}

fn tag(tensor: &Tensor) -> i32 {
    sized(tensor.numel() * tensor.kind().elt_size_in_bytes()).unwrap_or(LARGE)
}

/// Joins all ranks of a run, data over gloo.
///
/// # Errors
/// `Peer` naming the ranks that did not come within `limits.start`, `Io` for a taken port or an address that nothing
/// answers at.
pub fn rendezvous(ranks: &Ranks, limits: &Limits) -> Result<ProcessTransport> {
    processes::rendezvous(ranks, limits, Box::new(Gloo))
}

/// Carries data over the connections that carry control.
struct Gloo;

struct Connections(Slot);

impl Connections {
    fn begin(&self, act: impl FnOnce(&ProcessGroup) -> Carried<Work>) -> Carried<Box<dyn Pending>> {
        let group = self.0.borrow();
        let closed = || C10dError {
            what: "gloo",
            status: Status::Network,
            why: "its connections are closed".to_owned(),
        };
        act(group.as_ref().ok_or_else(closed)?).map(|work| Box::new(work) as Box<dyn Pending>)
    }
}

impl Carrier for Gloo {
    fn name(&self) -> &'static str {
        "gloo"
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn lane(&self, _: &Core, meeting: &Meeting<'_>) -> Outcome<Rc<dyn Lane>> {
        Ok(Rc::new(Connections(Rc::clone(meeting.control))))
    }

    fn post(&self, control: &Slot) -> Rc<dyn Post> {
        Rc::new(Connections(Rc::clone(control)))
    }
}

impl Lane for Connections {
    fn all_gather(&self, into: Tensor, from: Tensor, limit: Duration) -> Carried<Box<dyn Pending>> {
        self.begin(|group| group.all_gather(into, from, limit))
    }

    fn all_to_all(
        &self,
        into: (Tensor, &[i64]),
        from: (Tensor, &[i64]),
        limit: Duration,
    ) -> Carried<Box<dyn Pending>> {
        self.begin(|group| group.all_to_all(into, from, limit))
    }

    fn all_reduce(&self, tensor: Tensor, limit: Duration) -> Carried<Box<dyn Pending>> {
        self.begin(|group| group.all_reduce(tensor, limit))
    }
}

impl Post for Connections {
    fn send(&self, tensor: Tensor, to: usize) -> Carried<Box<dyn Pending>> {
        let tag = tag(&tensor);
        self.begin(|group| group.send(tensor, to, tag))
    }

    fn recv(&self, into: Tensor, from: usize) -> Carried<Box<dyn Pending>> {
        let tag = tag(&into);
        self.begin(|group| group.recv(into, from, tag))
    }

    fn ahead(&self, bytes: usize) -> bool {
        bytes == 0 || sized(bytes).is_some()
    }
}

impl Pending for Work {
    fn wait(&self, limit: Duration) -> Carried<()> {
        Self::wait(self, limit)
    }
}

#[cfg(test)]
mod tests;
