//! Waiting for a store on the calling thread.
//!
//! A thread that drives async tasks must not wait: the task that it waits for may be the one behind it in its own queue. Such a call is an error
//! that says so, not a dead lock and not a panic.

use std::future::Future;

use futures::executor;

use super::error::StoreError;

/// How calls of one store are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// The store is in this process: a call never waits for anything but itself.
    Inside,
    /// The store waits for the network, for as long as it takes.
    #[cfg(feature = "remote")]
    Network,
}

impl Waiter {
    /// The outcome of a call.
    pub(super) fn wait<T>(
        self,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        if self.would_stop_an_executor() {
            return Err(within_a_task().into_object_store());
        }
        executor::block_on(call)
    }

    fn would_stop_an_executor(self) -> bool {
        let polled = executor::enter().is_err();
        match self {
            Self::Inside => polled,
            #[cfg(feature = "remote")]
            Self::Network => polled || tokio::runtime::Handle::try_current().is_ok(),
        }
    }
}

fn within_a_task() -> StoreError {
    StoreError::Unsupported {
        what: "waiting for a store from within an async task".to_owned(),
        reason: "it would stop the executor's thread; call it from a thread of its own (`std::thread::spawn`), or use the async \
                 interface, `Root::object_store`"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_from_within_a_task_is_an_error_that_says_so() {
        let inner = executor::block_on(async { Waiter::Inside.wait(async { Ok(1) }) });
        assert!(inner.unwrap_err().to_string().contains("async task"));
        assert_eq!(Waiter::Inside.wait(async { Ok(1) }).unwrap(), 1);
    }

    #[cfg(feature = "remote")]
    #[test]
    fn a_call_from_within_a_tokio_task_is_an_error_where_the_network_is_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (remote, memory) = runtime.block_on(async {
            (Waiter::Network.wait(async { Ok(1) }), Waiter::Inside.wait(async { Ok(1) }))
        });
        assert!(remote.unwrap_err().to_string().contains("async task"));
        assert_eq!(memory.unwrap(), 1);
    }
}
