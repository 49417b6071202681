//! The real NCCL, by the declarations of `cudarc`: libraries are looked for at run time, and what is missing is said, with how
//! to get it.
//!
//! Communicators do not block (`blocking = 0`): joining and calling return while they are under way, and
//! `ncclCommGetAsyncError` says when they are over. Events on the stream say when a call has run.
//!
//! Invariants: no function is called before its library was found; a communicator is used by the thread that made it, with its
//! GPU's primary context current, which is the one that libtorch uses; after it was left it is not touched again; tensors of a call
//! are held until it has run or its communicator was left, whoever forgets the call.
#![expect(unsafe_code, reason = "NCCL is a C library; every call says why it is sound")]

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, c_int, c_void},
    path::Path,
    ptr,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ::cudarc::{
    driver::{self, CudaContext, CudaEvent, CudaStream, DriverError},
    nccl::{
        result::NcclError,
        sys::{self, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId},
    },
};
use tch::{Device, Kind as Dtype, Tensor};

use super::library::{Call, Communicator, Half, Library, Stream, Ticket, Unique};
use crate::{
    Error, Result,
    torch::c10d::{C10dError, Status},
    transport::processes::Carried,
};

/// The first version whose communicators need not block.
const OLDEST: c_int = 21_400;
/// How long a communicator may take to end what was called before it is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the library's `NCCL_CONFIG_INITIALIZER` writes.
const MAGIC: u32 = 0xcafe_beef;
const CONFIG_VERSION: u32 = 22_403;
const UNDEFINED: c_int = c_int::MIN;

/// NCCL and a GPU.
pub(super) struct Loaded {
    context: Arc<CudaContext>,
    gpu: usize,
}

impl Loaded {
    /// Looks for the libraries and the GPU.
    ///
    /// # Errors
    /// `Config`, with what is missing.
    pub(super) fn new(gpu: usize) -> Result<Self> {
        // SAFETY: both only try to open libraries by their names.
        let (cuda, nccl) = unsafe { (driver::sys::is_culib_present(), sys::is_culib_present()) };
        if !cuda {
            return Err(Error::config(
                "comm.transport=nccl: CUDA's driver was not found: no libcuda.so or libcuda.so.1",
            )
            .hint("install the driver of the GPU, or choose comm.transport=gloo and training.device=cpu"));
        }
        if !nccl {
            return Err(missing());
        }
        version()?;
        let context = context(gpu)?;
        Ok(Self { context, gpu })
    }

    fn stream(&self, wanted: Stream) -> Carried<Arc<CudaStream>> {
        match wanted {
            Stream::Compute => Ok(self.context.default_stream()),
            Stream::Own => self.context.new_stream().map_err(|error| of_cuda("a stream", error)),
        }
    }
}

/// Folders that a loader looks in beside those of `LD_LIBRARY_PATH`.
const FOLDERS: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64"];

/// Says that NCCL is not there, or only under the name that programs which were linked against it look for.
fn missing() -> Error {
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = named.split(':').filter(|it| !it.is_empty()).chain(FOLDERS.iter().copied());
    let linked = folders.map(|folder| Path::new(folder).join("libnccl.so.2")).find(|path| path.exists());
    let error = Error::config(
        "comm.transport=nccl: NCCL was not found: no libnccl.so where libraries are looked for (LD_LIBRARY_PATH, /etc/ld.so.conf)",
    );
    match linked {
        Some(path) => error.hint(format!(
            "there is {}: link it as libnccl.so into a folder of LD_LIBRARY_PATH (ln -s {} libnccl.so)",
            path.display(),
            path.display()
        )),
        None => error.hint(
            "install libnccl-dev (the package libnccl2 alone has no libnccl.so), or set LD_LIBRARY_PATH to the folder that has it",
        ),
    }
}

fn version() -> Result<()> {
    let mut found = 0;
    // SAFETY: the library is there, and the place outlives the call.
    let known = unsafe { sys::ncclGetVersion(&raw mut found) }.result().is_ok();
    if known && found >= OLDEST {
        return Ok(());
    }
    Err(Error::config(format!(
        "comm.transport=nccl: the library is version {found}, and {OLDEST} is the oldest that will do"
    ))
    .hint("install a newer NCCL: 2.14 or later"))
}

fn context(gpu: usize) -> Result<Arc<CudaContext>> {
    let refused = |error: DriverError| {
        let count = CudaContext::device_count().unwrap_or(0);
        Error::config(format!(
            "comm.transport=nccl: GPU {gpu} of this machine can't be used ({error:?}); it has {count}"
        ))
        .hint("start no more ranks on a machine than it has GPUs, and see CUDA_VISIBLE_DEVICES")
    };
    let context = CudaContext::new(gpu).map_err(refused)?;
    context.bind_to_thread().map_err(refused)?;
    Ok(context)
}

impl Library for Loaded {
    fn device(&self) -> Device {
        Device::Cuda(self.gpu)
    }

    fn unique(&self) -> Carried<Unique> {
        let mut name = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the place outlives the call, which writes all of it.
        checked("a name for a communicator", unsafe { sys::ncclGetUniqueId(&raw mut name) })?;
        Ok(name.internal.map(i8::cast_unsigned))
    }

    fn join(&self, name: &Unique, rank: usize, size: usize, stream: Stream) -> Carried<Rc<dyn Communicator>> {
        let what = "joining a communicator";
        self.context.bind_to_thread().map_err(|error| of_cuda(what, error))?;
        let stream = self.stream(stream)?;
        let (rank, size) = (small(what, rank)?, small(what, size)?);
        let mut config = configuration();
        let mut raw: ncclComm_t = ptr::null_mut();
        let name = ncclUniqueId { internal: name.map(u8::cast_signed) };
        // SAFETY: all places outlive the call, which copies them; the communicator is left once, when `Joined` is.
        let begun = unsafe { sys::ncclCommInitRankConfig(&raw mut raw, size, name, rank, &raw mut config) };
        checked(what, begun)?;
        let compute = self.context.default_stream();
        Ok(Rc::new(Joined(Rc::new(Inner {
            raw: Cell::new(raw),
            stream,
            compute,
            called: RefCell::default(),
        }))))
    }
}

const fn configuration() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
    }
}

struct Joined(Rc<Inner>);

struct Inner {
    /// Null when it was left.
    raw: Cell<ncclComm_t>,
    stream: Arc<CudaStream>,
    /// What computes: torch's.
    compute: Arc<CudaStream>,
    /// Calls that may not have run yet: nobody has to wait for one.
    called: RefCell<Vec<Rc<Called>>>,
}

/// A call, and the event after it, which is recorded when the library has taken the call in.
struct Called {
    inner: Rc<Inner>,
    event: RefCell<Option<CudaEvent>>,
    _tensors: Vec<Tensor>,
}

impl Inner {
    fn raw(&self) -> Carried<ncclComm_t> {
        let raw = self.raw.get();
        if raw.is_null() {
            return Err(failed("NCCL", Status::Network, "its communicator was left".to_owned()));
        }
        Ok(raw)
    }

    fn settled(&self) -> Carried<bool> {
        let (raw, mut state) = (self.raw()?, ncclResult_t::ncclSuccess);
        // SAFETY: the communicator was not left, and the place outlives the call.
        checked("asking a communicator", unsafe { sys::ncclCommGetAsyncError(raw, &raw mut state) })?;
        checked("a call of NCCL", state)?;
        Ok(state != ncclResult_t::ncclInProgress)
    }

    fn make(&self, call: &Call) -> Carried<()> {
        let raw = self.raw()?;
        let context = self.stream.context();
        context.bind_to_thread().map_err(|error| of_cuda("a call of NCCL", error))?;
        if !Arc::ptr_eq(&self.stream, &self.compute) && !self.stream.cu_stream().is_null() {
            // What it reads was computed before, and what it writes to was used before.
            self.stream.join(&self.compute).map_err(|error| of_cuda("a stream", error))?;
        }
        let stream = self.stream.cu_stream().cast();
        match call {
            Call::AllGather { into, from } => {
                let (dtype, count) = (dtype(from)?, from.numel());
                // SAFETY: `into` has room for the parts of all members, as the group that calls made it so; both tensors
                // are held until the call has run or the communicator was aborted.
                checked("gathering", unsafe {
                    sys::ncclAllGather(from.data_ptr(), into.data_ptr(), count, dtype, raw, stream)
                })
            }
            Call::AllReduce(sum) => {
                let (dtype, pointer, count) = (dtype(sum)?, sum.data_ptr(), sum.numel());
                // SAFETY: in place, as the library allows; held as above.
                checked("summing", unsafe {
                    sys::ncclAllReduce(pointer, pointer, count, dtype, ncclRedOp_t::ncclSum, raw, stream)
                })
            }
            Call::Exchange(halves) => exchange(halves, raw, stream),
        }
    }
}

/// All halves in one group call, so that they pass together.
fn exchange(halves: &[Half], raw: ncclComm_t, stream: sys::cudaStream_t) -> Carried<()> {
    let what = "exchanging";
    // SAFETY: the group is ended below, whatever happens between.
    checked(what, unsafe { sys::ncclGroupStart() })?;
    let half = |half: &Half| match half {
        Half::Send(tensor, to) => {
            let (peer, dtype) = (small(what, *to)?, dtype(tensor)?);
            let from: *const c_void = tensor.data_ptr();
            // SAFETY: the tensor is held until the call has run or the communicator was aborted.
            checked(what, unsafe { sys::ncclSend(from, tensor.numel(), dtype, peer, raw, stream) })
        }
        Half::Receive(tensor, from) => {
            let (peer, dtype) = (small(what, *from)?, dtype(tensor)?);
            // SAFETY: as above; both sides have agreed on the size.
            checked(what, unsafe {
                sys::ncclRecv(tensor.data_ptr(), tensor.numel(), dtype, peer, raw, stream)
            })
        }
    };
    let begun = halves.iter().try_for_each(half);
    // SAFETY: ends the group from above.
    let ended = checked(what, unsafe { sys::ncclGroupEnd() });
    begun.and(ended)
}

impl Communicator for Joined {
    fn settled(&self) -> Carried<bool> {
        self.0.settled()
    }

    fn call(&self, call: Call) -> Carried<Rc<dyn Ticket>> {
        self.0.make(&call)?;
        let called =
            Called { inner: Rc::clone(&self.0), event: RefCell::default(), _tensors: call.tensors() };
        let called = Rc::new(called);
        let mut all = self.0.called.borrow_mut();
        all.retain(|it| !matches!(it.done(), Ok(true)));
        all.push(Rc::clone(&called));
        Ok(called)
    }

    fn leave(&self, broken: bool) {
        let raw = self.0.raw.get();
        if raw.is_null() {
            return;
        }
        let whole = !broken && self.ended(raw);
        self.0.raw.set(ptr::null_mut());
        // Nobody is left to be told of a failure to leave.
        // SAFETY: the communicator is not touched after this.
        let _ = unsafe { if whole { sys::ncclCommDestroy(raw) } else { sys::ncclCommAbort(raw) } };
        self.0.called.borrow_mut().clear();
    }
}

impl Joined {
    /// Whether all that was called has run, within a short time.
    fn ended(&self, raw: ncclComm_t) -> bool {
        // SAFETY: the communicator was not left; it is destroyed or aborted next.
        let begun = unsafe { sys::ncclCommFinalize(raw) };
        let deadline = Instant::now() + FAREWELL;
        let mut state = if begun.result().is_ok() { self.0.settled() } else { Ok(false) };
        while matches!(state, Ok(false)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
            state = self.0.settled();
        }
        matches!(state, Ok(true))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.leave(true);
    }
}

impl Ticket for Called {
    fn done(&self) -> Carried<bool> {
        if !self.inner.settled()? {
            return Ok(false);
        }
        let lost = |error| of_cuda("an event", error);
        let mut event = self.event.borrow_mut();
        let event = match &mut *event {
            Some(event) => event,
            none => none.insert(self.inner.stream.record_event(None).map_err(lost)?),
        };
        event.try_is_complete().map_err(lost)
    }
}

impl Call {
    /// What it reads and writes.
    fn tensors(self) -> Vec<Tensor> {
        match self {
            Self::AllGather { into, from } => vec![into, from],
            Self::AllReduce(sum) => vec![sum],
            Self::Exchange(halves) => {
                let tensor = |half| match half {
                    Half::Send(tensor, _) | Half::Receive(tensor, _) => tensor,
                };
                halves.into_iter().map(tensor).collect()
            }
        }
    }
}

fn dtype(tensor: &Tensor) -> Carried<ncclDataType_t> {
    match tensor.kind() {
        Dtype::Float => Ok(ncclDataType_t::ncclFloat32),
        Dtype::Int64 => Ok(ncclDataType_t::ncclInt64),
        Dtype::BFloat16 => Ok(ncclDataType_t::ncclBfloat16),
        Dtype::Half => Ok(ncclDataType_t::ncclFloat16),
        other => Err(failed("NCCL", Status::Failed, format!("{other:?} can't be carried"))),
    }
}

fn small(what: &'static str, value: usize) -> Carried<c_int> {
    c_int::try_from(value).map_err(|error| failed(what, Status::Failed, error.to_string()))
}

/// What a call says; that it goes on is no failure.
fn checked(what: &'static str, said: ncclResult_t) -> Carried<()> {
    let Err(NcclError(error)) = said.result() else { return Ok(()) };
    // SAFETY: gives a static text for every result.
    let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(error)) };
    let status = if error == ncclResult_t::ncclRemoteError { Status::Network } else { Status::Failed };
    Err(failed(what, status, format!("{} ({error:?})", text.to_string_lossy())))
}

fn of_cuda(what: &'static str, error: DriverError) -> C10dError {
    failed(what, Status::Failed, format!("CUDA: {error:?}"))
}

const fn failed(what: &'static str, status: Status, why: String) -> C10dError {
    C10dError { what, status, why }
}
