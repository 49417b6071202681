//! Process groups of gloo: devices, operations, and operations in progress.

use std::{
    ffi::{c_int, c_void},
    time::Duration,
};

use tch::Tensor;

use super::{C10dError, Owned, Result, Status, Store, call, int, make, millis, sys, text};

/// A network interface or address that gloo uses.
#[derive(Debug)]
pub struct Device(Owned);

/// A gloo process group. Not shared between threads: c10d wants calls in one order.
#[derive(Debug)]
pub struct ProcessGroup {
    group: Owned,
    size: usize,
}

/// An operation in progress.
#[derive(Debug)]
pub struct Work {
    // Declared first, so that it is freed before the tensors.
    work: Owned,
    _tensors: Vec<Tensor>,
}

impl Device {
    /// The device that has the address of `name`.
    ///
    /// # Errors
    /// No such host, or an address that is not of this machine.
    pub fn for_host(name: &str) -> Result<Self> {
        Self::new("a device for a host", name, false)
    }

    /// The device of a network interface, such as `eth0`.
    ///
    /// # Errors
    /// No such interface.
    pub fn for_interface(name: &str) -> Result<Self> {
        Self::new("a device for an interface", name, true)
    }

    fn new(what: &'static str, name: &str, is_interface: bool) -> Result<Self> {
        let name = text(what, name)?;
        // SAFETY: the text and the place outlive the call.
        make(what, sys::ckpt_device_free, |device, error| unsafe {
            sys::ckpt_device_new(name.as_ptr(), is_interface, device, error)
        })
        .map(Self)
    }
}

impl ProcessGroup {
    /// Connects with the `size - 1` others, which meet at `store`.
    ///
    /// # Errors
    /// A member does not come within the limit.
    pub fn gloo(store: &Store, device: &Device, rank: usize, size: usize, limit: Duration) -> Result<Self> {
        let what = "connecting a group";
        let (rank, whole) = (int(what, rank)?, int(what, size)?);
        // SAFETY: store and device are alive, and the group holds counts of both.
        let group = make(what, sys::ckpt_group_free, |group, error| unsafe {
            sys::ckpt_group_new(store.0.pointer, device.0.pointer, rank, whole, millis(limit), group, error)
        })?;
        Ok(Self { group, size })
    }

    /// Begins to send; taken when the receiver has posted a buffer under the same tag.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&self, tensor: Tensor, to: usize, tag: i32) -> Result<Work> {
        let what = "sending";
        let to = int(what, to)?;
        self.begin(what, vec![tensor], |group, tensors, work, error| {
            // SAFETY: the tensor is alive, and `Work` holds it on.
            unsafe { sys::ckpt_group_send(group, tensors[0], to, tag, work, error) }
        })
    }

    /// Begins to receive into `tensor`, whose size must be exactly what is sent: gloo ends the process on more.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn recv(&self, tensor: Tensor, from: usize, tag: i32) -> Result<Work> {
        let what = "receiving";
        let from = int(what, from)?;
        self.begin(what, vec![tensor], |group, tensors, work, error| {
            // SAFETY: as in `send`.
            unsafe { sys::ckpt_group_recv(group, tensors[0], from, tag, work, error) }
        })
    }

    /// Gathers equal parts of all members into `into`.
    ///
    /// # Errors
    /// libtorch refuses the tensors.
    pub fn all_gather(&self, into: Tensor, from: Tensor, limit: Duration) -> Result<Work> {
        self.begin("gathering", vec![into, from], |group, tensors, work, error| {
            // SAFETY: as in `send`.
            unsafe { sys::ckpt_group_all_gather(group, tensors[0], tensors[1], millis(limit), work, error) }
        })
    }

    /// Gives `from`, cut into pieces of `from_counts` along its only axis, one piece to each member, and takes theirs.
    ///
    /// # Errors
    /// libtorch refuses the tensors, or counts that are not one per member.
    pub fn all_to_all(
        &self,
        (into, into_counts): (Tensor, &[i64]),
        (from, from_counts): (Tensor, &[i64]),
        limit: Duration,
    ) -> Result<Work> {
        let what = "exchanging";
        if into_counts.len() != self.size || from_counts.len() != self.size {
            let why = format!("{} and {} counts", into_counts.len(), from_counts.len());
            return Err(C10dError { what, status: Status::Failed, why });
        }
        self.begin(what, vec![into, from], |group, tensors, work, error| {
            let counts = (into_counts.as_ptr(), from_counts.as_ptr());
            // SAFETY: as in `send`; both lists of counts have `size` entries and are copied by the call.
            unsafe {
                sys::ckpt_group_all_to_all(
                    group,
                    tensors[0],
                    tensors[1],
                    counts.0,
                    counts.1,
                    self.size,
                    millis(limit),
                    work,
                    error,
                )
            }
        })
    }

    /// Sums `tensor` over all members, in place.
    ///
    /// # Errors
    /// libtorch refuses the tensor.
    pub fn all_reduce(&self, tensor: Tensor, limit: Duration) -> Result<Work> {
        self.begin("summing", vec![tensor], |group, tensors, work, error| {
            // SAFETY: as in `send`.
            unsafe { sys::ckpt_group_all_reduce(group, tensors[0], millis(limit), work, error) }
        })
    }

    fn begin(
        &self,
        what: &'static str,
        tensors: Vec<Tensor>,
        start: impl FnOnce(*mut c_void, &[*const c_void], *mut *mut c_void, sys::ErrorOut) -> c_int,
    ) -> Result<Work> {
        let pointers: Vec<_> = tensors.iter().map(|tensor| tensor.as_ptr().cast::<c_void>()).collect();
        let work =
            make(what, sys::ckpt_work_free, |work, error| start(self.group.pointer, &pointers, work, error))?;
        Ok(Work { work, _tensors: tensors })
    }
}

impl Work {
    /// Waits until it is done.
    ///
    /// # Errors
    /// `Late`, or the connection broke.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        // SAFETY: the work is alive.
        call("waiting", |error| unsafe { sys::ckpt_work_wait(self.work.pointer, millis(limit), error) })
    }
}
