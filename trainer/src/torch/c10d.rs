//! libtorch's c10d: `TCPStore`, `PrefixStore` and `ProcessGroupGloo`, over `cpp/c10d.cpp`.
//!
//! Invariants: every C++ object is owned by one value here and freed once; what throws comes back as a [`C10dError`],
//! freeing included; a [`Work`] holds the tensors that it reads or writes, so that none is freed under it. A value may
//! move to another thread; a store may also be used by several at once, as `TCPStore` locks within.
#![expect(unsafe_code, reason = "calls the C++ shim; see the module of that name in cpp/")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr,
    time::Duration,
};

use tch::Tensor;

/// What libtorch refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct C10dError {
    /// The call.
    pub what: &'static str,
    /// What kind of refusal.
    pub status: Status,
    /// Its first line.
    pub why: String,
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Anything else.
    Failed,
    /// A time limit passed.
    Late,
    /// A connection broke or could not be made.
    Network,
}

/// Result of the calls of this module.
pub type Result<T> = std::result::Result<T, C10dError>;

type ErrorOut = *mut *mut c_char;

unsafe extern "C" {
    fn ckpt_text_free(text: *mut c_char);
    fn ckpt_bytes_free(bytes: *mut u8);
    fn ckpt_store_tcp(
        host: *const c_char,
        port: u16,
        serve: bool,
        limit_ms: i64,
        store: *mut *mut c_void,
        bound: *mut u16,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_prefix(
        inner: *mut c_void,
        prefix: *const c_char,
        store: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_set(
        store: *mut c_void,
        key: *const c_char,
        bytes: *const u8,
        length: usize,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_get(
        store: *mut c_void,
        key: *const c_char,
        bytes: *mut *mut u8,
        length: *mut usize,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_compare_set(
        store: *mut c_void,
        key: *const c_char,
        value: *const u8,
        length: usize,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_wait(
        store: *mut c_void,
        keys: *const *const c_char,
        count: usize,
        limit_ms: i64,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_has(store: *mut c_void, key: *const c_char, has: *mut bool, error: ErrorOut) -> c_int;
    fn ckpt_store_add(
        store: *mut c_void,
        key: *const c_char,
        delta: i64,
        sum: *mut i64,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_store_delete(store: *mut c_void, key: *const c_char, was: *mut bool, error: ErrorOut) -> c_int;
    fn ckpt_store_free(store: *mut c_void, error: ErrorOut) -> c_int;
    fn ckpt_device_new(
        name: *const c_char,
        is_interface: bool,
        device: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_device_free(device: *mut c_void, error: ErrorOut) -> c_int;
    fn ckpt_group_new(
        store: *mut c_void,
        device: *mut c_void,
        rank: c_int,
        size: c_int,
        limit_ms: i64,
        group: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_group_free(group: *mut c_void, error: ErrorOut) -> c_int;
    fn ckpt_group_send(
        group: *mut c_void,
        from: *const c_void,
        to: c_int,
        tag: c_int,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_group_recv(
        group: *mut c_void,
        into: *const c_void,
        from: c_int,
        tag: c_int,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_group_all_gather(
        group: *mut c_void,
        into: *const c_void,
        from: *const c_void,
        limit_ms: i64,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_group_all_to_all(
        group: *mut c_void,
        into: *const c_void,
        from: *const c_void,
        into_counts: *const i64,
        from_counts: *const i64,
        members: usize,
        limit_ms: i64,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_group_all_reduce(
        group: *mut c_void,
        sum: *const c_void,
        limit_ms: i64,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    fn ckpt_work_wait(work: *mut c_void, limit_ms: i64, error: ErrorOut) -> c_int;
    fn ckpt_work_free(work: *mut c_void, error: ErrorOut) -> c_int;
}

/// A C++ box and the function that frees it.
#[derive(Debug)]
struct Owned {
    pointer: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, ErrorOut) -> c_int,
}

// SAFETY: the boxes hold reference-counted C++ objects with atomic counts that belong to no thread.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim's constructor, and this is the only value that frees it. A failure of
        // freeing has no one to go to, and leaves nothing to be done.
        let _ = call("free", |error| unsafe { (self.free)(self.pointer, error) });
    }
}

/// A key-value store that ranks meet at.
#[derive(Debug)]
pub struct Store(Owned);

// SAFETY: `TCPStore` and `PrefixStore` over it guard each call by a lock of the client.
unsafe impl Sync for Store {}

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

impl Store {
    /// Serves a store on `port` of this host (0: a free one) and is a client of it; returns the port. The server may be
    /// a rank or a launcher that is none.
    ///
    /// # Errors
    /// A taken port.
    pub fn serve(host: &str, port: u16, limit: Duration) -> Result<(Self, u16)> {
        Self::tcp("serving a store", host, port, true, limit)
    }

    /// A client of the store at `host:port`, which may come up within the limit.
    ///
    /// # Errors
    /// Nobody serves there.
    pub fn connect(host: &str, port: u16, limit: Duration) -> Result<Self> {
        Self::tcp("connecting to a store", host, port, false, limit).map(|(store, _)| store)
    }

    fn tcp(what: &'static str, host: &str, port: u16, serve: bool, limit: Duration) -> Result<(Self, u16)> {
        let host = text(what, host)?;
        let mut bound = 0;
        let owned = make(what, ckpt_store_free, |store, error| {
            // SAFETY: the text and both places outlive the call.
            unsafe { ckpt_store_tcp(host.as_ptr(), port, serve, millis(limit), store, &raw mut bound, error) }
        })?;
        Ok((Self(owned), bound))
    }

    /// The same store with `prefix/` before every key.
    ///
    /// # Errors
    /// A prefix with a zero byte.
    pub fn prefixed(&self, prefix: &str) -> Result<Self> {
        let what = "prefixing a store";
        let prefix = text(what, prefix)?;
        // SAFETY: the inner store is alive, and the new one holds a count of it.
        make(what, ckpt_store_free, |store, error| unsafe {
            ckpt_store_prefix(self.0.pointer, prefix.as_ptr(), store, error)
        })
        .map(Self)
    }

    /// Sets a key.
    ///
    /// # Errors
    /// The store is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let what = "setting a key of the store";
        let key = text(what, key)?;
        // SAFETY: key and value outlive the call, which copies them.
        call(what, |error| unsafe {
            ckpt_store_set(self.0.pointer, key.as_ptr(), value.as_ptr(), value.len(), error)
        })
    }

    /// Sets a key unless it is set.
    ///
    /// # Errors
    /// The store is gone.
    pub fn set_first(&self, key: &str, value: &[u8]) -> Result<()> {
        let what = "setting a key of the store first";
        let key = text(what, key)?;
        // SAFETY: as in `set`.
        call(what, |error| unsafe {
            ckpt_store_compare_set(self.0.pointer, key.as_ptr(), value.as_ptr(), value.len(), error)
        })
    }

    /// The value of a key, or none where it is not set.
    ///
    /// # Errors
    /// The store is gone.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        if !self.has(key)? {
            return Ok(None);
        }
        let what = "reading a key of the store";
        let key = text(what, key)?;
        let (mut bytes, mut length) = (ptr::null_mut(), 0);
        // SAFETY: both places outlive the call.
        call(what, |error| unsafe {
            ckpt_store_get(self.0.pointer, key.as_ptr(), &raw mut bytes, &raw mut length, error)
        })?;
        // SAFETY: the shim allocated `length` bytes there, and they are freed once, after the copy.
        let value = unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec();
        // SAFETY: as above.
        unsafe { ckpt_bytes_free(bytes) };
        Ok(Some(value))
    }

    /// Waits until all keys are set.
    ///
    /// # Errors
    /// `Late`, or the store is gone.
    pub fn wait(&self, keys: &[String], limit: Duration) -> Result<()> {
        let what = "waiting for keys of the store";
        let keys = keys.iter().map(|key| text(what, key)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<_> = keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: the pointers and what they point to outlive the call.
        call(what, |error| unsafe {
            ckpt_store_wait(self.0.pointer, pointers.as_ptr(), pointers.len(), millis(limit), error)
        })
    }

    /// Whether a key is set.
    ///
    /// # Errors
    /// The store is gone.
    pub fn has(&self, key: &str) -> Result<bool> {
        let what = "looking for a key of the store";
        let key = text(what, key)?;
        let mut has = false;
        // SAFETY: the place outlives the call.
        call(what, |error| unsafe { ckpt_store_has(self.0.pointer, key.as_ptr(), &raw mut has, error) })?;
        Ok(has)
    }

    /// Adds to a counter, which begins at 0, and returns the sum.
    ///
    /// # Errors
    /// The store is gone.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let what = "adding to a counter of the store";
        let key = text(what, key)?;
        let mut sum = 0;
        // SAFETY: the place outlives the call.
        call(what, |error| unsafe {
            ckpt_store_add(self.0.pointer, key.as_ptr(), delta, &raw mut sum, error)
        })?;
        Ok(sum)
    }

    /// Deletes a key; whether it was there.
    ///
    /// # Errors
    /// The store is gone.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let what = "deleting a key of the store";
        let key = text(what, key)?;
        let mut was = false;
        // SAFETY: the place outlives the call.
        call(what, |error| unsafe { ckpt_store_delete(self.0.pointer, key.as_ptr(), &raw mut was, error) })?;
        Ok(was)
    }
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
        make(what, ckpt_device_free, |device, error| unsafe {
            ckpt_device_new(name.as_ptr(), is_interface, device, error)
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
        let group = make(what, ckpt_group_free, |group, error| unsafe {
            ckpt_group_new(store.0.pointer, device.0.pointer, rank, whole, millis(limit), group, error)
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
            unsafe { ckpt_group_send(group, tensors[0], to, tag, work, error) }
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
            unsafe { ckpt_group_recv(group, tensors[0], from, tag, work, error) }
        })
    }

    /// Gathers equal parts of all members into `into`.
    ///
    /// # Errors
    /// libtorch refuses the tensors.
    pub fn all_gather(&self, into: Tensor, from: Tensor, limit: Duration) -> Result<Work> {
        self.begin("gathering", vec![into, from], |group, tensors, work, error| {
            // SAFETY: as in `send`.
            unsafe { ckpt_group_all_gather(group, tensors[0], tensors[1], millis(limit), work, error) }
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
                ckpt_group_all_to_all(
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
            unsafe { ckpt_group_all_reduce(group, tensors[0], millis(limit), work, error) }
        })
    }

    fn begin(
        &self,
        what: &'static str,
        tensors: Vec<Tensor>,
        start: impl FnOnce(*mut c_void, &[*const c_void], *mut *mut c_void, ErrorOut) -> c_int,
    ) -> Result<Work> {
        let pointers: Vec<_> = tensors.iter().map(|tensor| tensor.as_ptr().cast::<c_void>()).collect();
        let work =
            make(what, ckpt_work_free, |work, error| start(self.group.pointer, &pointers, work, error))?;
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
        call("waiting", |error| unsafe { ckpt_work_wait(self.work.pointer, millis(limit), error) })
    }
}

/// Calls the shim and takes the text of a refusal.
fn call(what: &'static str, act: impl FnOnce(ErrorOut) -> c_int) -> Result<()> {
    let mut error = ptr::null_mut();
    let status = match act(&raw mut error) {
        0 => return Ok(()),
        2 => Status::Late,
        3 => Status::Network,
        _ => Status::Failed,
    };
    if error.is_null() {
        return Err(C10dError { what, status, why: "out of memory".to_owned() });
    }
    // SAFETY: the shim puts a text that ends with zero there, which is freed once, after the copy.
    let whole = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { ckpt_text_free(error) };
    let why = whole.lines().next().unwrap_or_default().to_owned();
    Err(C10dError { what, status, why })
}

/// Calls a constructor of the shim.
fn make(
    what: &'static str,
    free: unsafe extern "C" fn(*mut c_void, ErrorOut) -> c_int,
    act: impl FnOnce(*mut *mut c_void, ErrorOut) -> c_int,
) -> Result<Owned> {
    let mut pointer = ptr::null_mut();
    call(what, |error| act(&raw mut pointer, error))?;
    Ok(Owned { pointer, free })
}

fn text(what: &'static str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| C10dError { what, status: Status::Failed, why: error.to_string() })
}

fn int(what: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|error| C10dError { what, status: Status::Failed, why: error.to_string() })
}

/// At least one: c10d takes 0 for "no limit".
fn millis(limit: Duration) -> i64 {
    i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1)
}
