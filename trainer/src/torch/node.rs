//! Autograd nodes that call Rust: [`attach`] makes a closure the backward of tensors that were computed outside any
//! graph; [`backward`] and [`grad`] run the engine with explicit gradients at the roots.
//!
//! Invariants:
//! - a closure runs at most once, without gradient tracking, on the thread that attached it; it and what it saved are
//!   freed when it has run, or with the graph that never ran;
//! - nothing unwinds into C++: an error of a closure is put aside, the engine stops, and the caller gets that very error,
//!   its kind kept; a panic becomes an `Internal` error. The thread's gradient mode is as before, and it can go on;
//! - [`backward`] runs every node that the roots lead to, also those whose inputs need no gradient (an embedding);
//!   [`grad`] only those on the way to its inputs.

#![expect(unsafe_code, reason = "the shim's functions are C++")]

use std::{
    any::Any,
    cell::RefCell,
    ffi::{c_char, c_int, c_void},
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::ThreadId,
};

use tch::Tensor;
use torch_sys::C_tensor;

use super::shim;
use crate::{Error, Result};

/// From the gradients of the outputs (`None` where nothing used them) to those of the inputs.
pub type Backward = Box<dyn FnOnce(Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>>>;

/// Makes `backward` the way from the gradients of `outputs`, which were computed without tracking, to those of `inputs`.
/// The outputs require gradients from then on, whether an input does or not. Where gradients are not tracked, this frees
/// `backward` and does nothing else.
///
/// # Errors
/// `Internal` for an output that is part of a graph already.
pub fn attach(outputs: &[&Tensor], inputs: &[&Tensor], backward: Backward) -> Result<()> {
    let context = Box::new(Context { owner: std::thread::current().id(), backward });
    let (outs, ins) = (pointers(outputs), pointers(inputs));
    let (out_count, in_count) = (count(outs.len())?, count(ins.len())?);
    let context = Box::into_raw(context).cast();
    shim(|text, room| {
        // SAFETY: the pointers are of live tensors, as many as said; the context is a `Context`, used up by one of the
        // two callbacks, which are made for it.
        unsafe {
            ckpt_node_attach(
                outs.as_ptr(),
                out_count,
                ins.as_ptr(),
                in_count,
                run,
                drop_context,
                context,
                text,
                room,
            )
        }
    })
}

/// Runs every node that `roots` lead to, from these gradients; leaves that require gradients accumulate them.
///
/// # Errors
/// That of the node which failed, or what libtorch refuses.
pub fn backward(roots: &[&Tensor], grads: &[&Tensor]) -> Result<()> {
    let (from, with) = (pointers(roots), pointers(grads));
    let many = paired(roots, grads)?;
    run_engine(|text, room| {
        // SAFETY: the pointers are of live tensors, as many of each as said.
        unsafe { ckpt_node_backward(from.as_ptr(), with.as_ptr(), many, text, room) }
    })
}

/// Gradients of `inputs`, from these at `roots`; `None` where none comes. Nodes that do not lead there don't run.
///
/// # Errors
/// That of the node which failed, or what libtorch refuses.
pub fn grad(roots: &[&Tensor], grads: &[&Tensor], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let (from, with, to) = (pointers(roots), pointers(grads), pointers(inputs));
    let (many, ins) = (paired(roots, grads)?, count(to.len())?);
    let mut found = vec![std::ptr::null_mut(); to.len()];
    let out = found.as_mut_ptr();
    run_engine(|text, room| {
        // SAFETY: the pointers are of live tensors, as many of each as said; `out` has room for one for each input.
        unsafe { ckpt_node_grad(from.as_ptr(), with.as_ptr(), many, to.as_ptr(), ins, out, text, room) }
    })?;
    Ok(found.into_iter().map(owned).collect())
}

struct Context {
    owner: ThreadId,
    backward: Backward,
}

thread_local! {
    /// Why the engine was stopped on this thread.
    static FAILURE: RefCell<Option<Error>> = const { RefCell::new(None) };
}

fn run_engine(call: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<()> {
    FAILURE.take();
    shim(call).map_err(|thrown| FAILURE.take().unwrap_or(thrown))
}

extern "C" fn run(
    context: *mut c_void,
    ins: *const *mut C_tensor,
    in_count: c_int,
    outs: *mut *mut C_tensor,
    out_count: c_int,
) -> c_int {
    let counted = |count| usize::try_from(count).unwrap_or_default();
    // SAFETY: the shim gives as many tensors, each of them ours now or null, as it says.
    let grads: Vec<_> = (0..counted(in_count)).map(|at| owned(unsafe { *ins.add(at) })).collect();
    let done = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
        let _untracked = tch::no_grad_guard();
        let results = called(context, grads, counted(out_count))?;
        for (at, tensor) in results.into_iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            // SAFETY: there is room for `out_count` pointers, and there are as many results; the shim frees each.
            unsafe { *outs.add(at) = ManuallyDrop::new(tensor).as_mut_ptr() };
        }
        Ok(())
    }));
    let failure = match done {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(panic) => Error::internal(format!("the backward of a node panicked: {}", said(&*panic))),
    };
    FAILURE.set(Some(failure));
    1
}

fn called(context: *mut c_void, grads: Vec<Option<Tensor>>, wanted: usize) -> Result<Vec<Option<Tensor>>> {
    let Some(context) = reclaimed(context) else {
        return Err(Error::internal("a backward ran on another thread than the forward"));
    };
    let results = (context.backward)(grads)?;
    if results.len() != wanted {
        let got = results.len();
        return Err(Error::internal(format!(
            "the backward of a node gave {got} gradients for {wanted} inputs"
        )));
    }
    Ok(results)
}

extern "C" fn drop_context(context: *mut c_void) {
    // What a panicking destructor leaves behind is lost; unwinding into C++ would end the process.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(reclaimed(context))));
}

/// The closure, on its own thread. On another, it can be neither run nor dropped (it is not `Send`): it is leaked.
fn reclaimed(context: *mut c_void) -> Option<Box<Context>> {
    let context = context.cast::<Context>();
    // SAFETY: made by `attach` from a box, and still alive: the shim uses each context once.
    let owner = unsafe { (*context).owner };
    // SAFETY: as above; nobody else has it.
    (owner == std::thread::current().id()).then(|| unsafe { Box::from_raw(context) })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

fn owned(tensor: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: the shim gives away the tensors that it makes; they are null where there is none.
    (!tensor.is_null()).then(|| unsafe { Tensor::from_ptr(tensor) })
}

fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

fn paired(roots: &[&Tensor], grads: &[&Tensor]) -> Result<c_int> {
    if roots.len() != grads.len() {
        let (roots, grads) = (roots.len(), grads.len());
        return Err(Error::internal(format!("a backward from {roots} roots with {grads} gradients")));
    }
    count(roots.len())
}

fn count(many: usize) -> Result<c_int> {
    c_int::try_from(many).map_err(|_| Error::internal(format!("{many} tensors at one autograd node")))
}

type Run = extern "C" fn(*mut c_void, *const *mut C_tensor, c_int, *mut *mut C_tensor, c_int) -> c_int;

unsafe extern "C" {
    fn ckpt_node_attach(
        outs: *const *const C_tensor,
        out_count: c_int,
        ins: *const *const C_tensor,
        in_count: c_int,
        run: Run,
        drop: extern "C" fn(*mut c_void),
        context: *mut c_void,
        text: *mut c_char,
        room: c_int,
    ) -> c_int;

    fn ckpt_node_backward(
        roots: *const *const C_tensor,
        grads: *const *const C_tensor,
        count: c_int,
        text: *mut c_char,
        room: c_int,
    ) -> c_int;

    fn ckpt_node_grad(
        roots: *const *const C_tensor,
        grads: *const *const C_tensor,
        count: c_int,
        ins: *const *const C_tensor,
        in_count: c_int,
        out: *mut *mut C_tensor,
        text: *mut c_char,
        room: c_int,
    ) -> c_int;
}

#[cfg(test)]
mod tests;
