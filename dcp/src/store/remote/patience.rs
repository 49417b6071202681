//! How long to go on with a store that fails.
//!
//! `object_store` repeats a request after 5xx, 429 and 408 for every method, also for a create: so the last answer alone does not tell what a
//! create did, and [`answer`](super::answer) looks at all of them. Requests whose answer was cut are repeated only where that is harmless.

use std::time::Duration;

use object_store::{BackoffConfig, ClientOptions, RetryConfig};

/// How long to go on with a bucket that fails or cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Tries of a request after the first.
    pub tries: usize,
    /// No further try begins when this has passed.
    pub in_all: Duration,
    /// For a connection.
    pub connect: Duration,
    /// For an answer, and for each piece of one. A request's own body has to be through by then: the longest part of an upload is 8 MiB up to
    /// blobs of 70 GiB.
    pub answer: Duration,
}

impl Default for Patience {
    /// A host that isn't there fails within a minute; a store that asks to slow down is given as long.
    fn default() -> Self {
        Self {
            tries: 8,
            in_all: Duration::from_secs(50),
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(120),
        }
    }
}

impl Patience {
    pub(super) fn retries(&self) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(8),
            base: 2.0,
        };
        RetryConfig { backoff, max_retries: self.tries, retry_timeout: self.in_all }
    }

    pub(super) fn client_options(&self) -> ClientOptions {
        // A limit on the whole of a request would be one on the size of what is read.
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(self.connect)
            .with_read_timeout(self.answer)
            .with_user_agent(object_store::HeaderValue::from_static(concat!(
                "ckpt/",
                env!("CARGO_PKG_VERSION")
            )))
    }
}
