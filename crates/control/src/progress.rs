//! The last phase each running task told of. Never stored: a restart forgets it, the next phase brings it back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpuaas_api::dto::TaskProgress;
use gpuaas_contract::id::TaskId;
use gpuaas_domain::Wakeup;
use tokio::sync::broadcast::error::RecvError;

use crate::Control;

/// Tasks remembered before the board starts over.
const MAX_TASKS: usize = 10_000;

/// What is shown for running tasks.
#[derive(Default)]
pub(crate) struct ProgressBoard(Mutex<HashMap<TaskId, TaskProgress>>);

impl ProgressBoard {
    /// The last phase of a task.
    pub(crate) fn get(&self, task: TaskId) -> Option<TaskProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&task).cloned()
    }

    fn put(&self, task: TaskId, progress: TaskProgress) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if board.len() >= MAX_TASKS {
            board.clear();
        }
        board.insert(task, progress);
    }

    /// Keeps the board up to date from the store's wakeups.
    pub(crate) fn spawn(control: &Arc<Control>) {
        let mut wakeups = control.store.wakeups();
        let control = Arc::clone(control);
        let tracker = control.background.clone();
        tracker.spawn(async move {
            loop {
                let wakeup =
                    tokio::select! { biased; () = control.shutdown.cancelled() => return, wakeup = wakeups.recv() => wakeup };
                match wakeup {
                    Ok(Wakeup::Progress { task_id, phase, message, at }) => {
                        control.progress.put(task_id, TaskProgress { phase, message, at })
                    }
                    Ok(
                        Wakeup::NodeWork(_)
                        | Wakeup::NodeAccess(_)
                        | Wakeup::Task(_)
                        | Wakeup::Allocation(_)
                        | Wakeup::AllocationAdvanced(_)
                        | Wakeup::Fleet(_)
                        | Wakeup::Outbox
                        | Wakeup::Link(_)
                        | Wakeup::Rights,
                    )
                    | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }
}
