//! Stores: keys and values that ranks meet at.

use std::{ptr, time::Duration};

use super::{Owned, Result, call, make, millis, sys, text};

/// A key-value store that ranks meet at.
#[derive(Debug)]
pub struct Store(pub(super) Owned);

// SAFETY: `TCPStore` and `PrefixStore` over it guard each call by a lock of the client.
unsafe impl Sync for Store {}

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
        let owned = make(what, sys::ckpt_store_free, |store, error| {
            // SAFETY: the text and both places outlive the call.
            unsafe {
                sys::ckpt_store_tcp(host.as_ptr(), port, serve, millis(limit), store, &raw mut bound, error)
            }
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
        make(what, sys::ckpt_store_free, |store, error| unsafe {
            sys::ckpt_store_prefix(self.0.pointer, prefix.as_ptr(), store, error)
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
            sys::ckpt_store_set(self.0.pointer, key.as_ptr(), value.as_ptr(), value.len(), error)
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
            sys::ckpt_store_compare_set(self.0.pointer, key.as_ptr(), value.as_ptr(), value.len(), error)
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
            sys::ckpt_store_get(self.0.pointer, key.as_ptr(), &raw mut bytes, &raw mut length, error)
        })?;
        // SAFETY: the shim allocated `length` bytes there, and they are freed once, after the copy.
        let value = unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec();
        // SAFETY: as above.
        unsafe { sys::ckpt_bytes_free(bytes) };
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
            sys::ckpt_store_wait(self.0.pointer, pointers.as_ptr(), pointers.len(), millis(limit), error)
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
        call(what, |error| unsafe {
            sys::ckpt_store_has(self.0.pointer, key.as_ptr(), &raw mut has, error)
        })?;
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
            sys::ckpt_store_add(self.0.pointer, key.as_ptr(), delta, &raw mut sum, error)
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
        call(what, |error| unsafe {
            sys::ckpt_store_delete(self.0.pointer, key.as_ptr(), &raw mut was, error)
        })?;
        Ok(was)
    }
}
