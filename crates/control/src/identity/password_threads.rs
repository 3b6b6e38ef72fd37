//! The threads that compute password hashes: always the same two.
//!
//! Each computation takes 19 MiB, and the allocator keeps freed memory for the thread that freed it. On the runtime's pool of
//! blocking threads a flood of sign-ins would leave that much behind on every thread.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::turns::AT_A_TIME;
use crate::error::ControlError;

/// Maximum number of waiting computations: those of callers that were cancelled.
const MAX_WAITING: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// The queue of the threads.
pub(super) struct PasswordThreads {
    jobs: SyncSender<Job>,
}

impl PasswordThreads {
    /// Starts the threads. They end when this is dropped.
    pub(super) fn start() -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(MAX_WAITING);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..AT_A_TIME {
            let queue = Arc::clone(&queue);
            gpuaas_runtime::spawn_thread("passwords", move || {
                while let Some(job) = next(&queue) {
                    job();
                }
            })?;
        }
        Ok(Self { jobs })
    }

    /// Runs a computation on one of the threads.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ControlError> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move || {
            // The caller may be gone.
            let _ = tell.send(work());
        });
        let failed = || ControlError::Internal("the computation of a password ended without a result".to_owned());
        self.jobs.try_send(job).map_err(|_| failed())?;
        told.await.map_err(|_| failed())
    }
}

fn next(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hundred_computations_use_two_threads() {
        let threads = PasswordThreads::start().expect("starts");
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            let (one, two) =
                tokio::join!(threads.run(|| std::thread::current().id()), threads.run(|| std::thread::current().id()));
            seen.extend([one.expect("computed"), two.expect("computed")]);
        }
        assert!(seen.len() <= AT_A_TIME, "{seen:?}");
        assert!(!seen.contains(&std::thread::current().id()));
    }
}
