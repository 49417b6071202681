//! The shim's functions, as `cpp/c10d.cpp` declares them. Each that can fail returns a status and puts a text, which the
//! caller frees, where `error` points; `call` and `make` of the parent module do so.

use std::ffi::{c_char, c_int, c_void};

pub(super) type ErrorOut = *mut *mut c_char;

unsafe extern "C" {
    pub(super) fn ckpt_text_free(text: *mut c_char);
    pub(super) fn ckpt_bytes_free(bytes: *mut u8);
    pub(super) fn ckpt_store_tcp(
        host: *const c_char,
        port: u16,
        serve: bool,
        limit_ms: i64,
        store: *mut *mut c_void,
        bound: *mut u16,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_prefix(
        inner: *mut c_void,
        prefix: *const c_char,
        store: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_set(
        store: *mut c_void,
        key: *const c_char,
        bytes: *const u8,
        length: usize,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_get(
        store: *mut c_void,
        key: *const c_char,
        bytes: *mut *mut u8,
        length: *mut usize,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_compare_set(
        store: *mut c_void,
        key: *const c_char,
        value: *const u8,
        length: usize,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_wait(
        store: *mut c_void,
        keys: *const *const c_char,
        count: usize,
        limit_ms: i64,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_has(
        store: *mut c_void,
        key: *const c_char,
        has: *mut bool,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_add(
        store: *mut c_void,
        key: *const c_char,
        delta: i64,
        sum: *mut i64,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_delete(
        store: *mut c_void,
        key: *const c_char,
        was: *mut bool,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_store_free(store: *mut c_void, error: ErrorOut) -> c_int;
    pub(super) fn ckpt_device_new(
        name: *const c_char,
        is_interface: bool,
        device: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_device_free(device: *mut c_void, error: ErrorOut) -> c_int;
    pub(super) fn ckpt_group_new(
        store: *mut c_void,
        device: *mut c_void,
        rank: c_int,
        size: c_int,
        limit_ms: i64,
        group: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_group_free(group: *mut c_void, error: ErrorOut) -> c_int;
    pub(super) fn ckpt_group_send(
        group: *mut c_void,
        from: *const c_void,
        to: c_int,
        tag: c_int,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_group_recv(
        group: *mut c_void,
        into: *const c_void,
        from: c_int,
        tag: c_int,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_group_all_gather(
        group: *mut c_void,
        into: *const c_void,
        from: *const c_void,
        limit_ms: i64,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_group_all_to_all(
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
    pub(super) fn ckpt_group_all_reduce(
        group: *mut c_void,
        sum: *const c_void,
        limit_ms: i64,
        work: *mut *mut c_void,
        error: ErrorOut,
    ) -> c_int;
    pub(super) fn ckpt_work_wait(work: *mut c_void, limit_ms: i64, error: ErrorOut) -> c_int;
    pub(super) fn ckpt_work_free(work: *mut c_void, error: ErrorOut) -> c_int;
}
