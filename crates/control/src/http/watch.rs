//! What the live views of an allocation and of a task wait for.

use std::time::Duration;

use axum::response::sse::{Event, KeepAlive};
use gpuaas_api::dto::TaskProgress;
use gpuaas_api::routes::EVENT_PROGRESS;
use gpuaas_contract::id::TaskId;
use gpuaas_domain::Wakeup;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::Control;
use crate::audience::Audience;

/// Wake-ups may be lost, so the subject is read again after this time.
const SLOW_POLL: Duration = Duration::from_secs(10);

/// Why a wait ended.
pub(super) enum Woken {
    /// The subject may have changed: read it again.
    Changed,
    /// Its task made progress.
    Progress(Event),
    /// The server stops.
    Shutdown,
}

/// The wake-ups of this process, as one viewer may see them.
pub(super) struct Watch {
    wakeups: Receiver<Wakeup>,
    audience: Audience,
}

impl Watch {
    /// Subscribes. Call it before the first read, so that no change falls between the two.
    pub(super) fn new(control: &Control, audience: Audience) -> Self {
        Self { wakeups: control.store.wakeups(), audience }
    }

    /// Waits until the subject may have changed, as `is_subject` decides, or `task` made progress.
    pub(super) async fn next(&mut self, control: &Control, task: Option<TaskId>, is_subject: impl Fn(&Wakeup) -> bool) -> Woken {
        loop {
            let wakeup = tokio::select! {
                biased;
                () = control.shutdown.cancelled() => return Woken::Shutdown,
                wakeup = tokio::time::timeout(SLOW_POLL, self.wakeups.recv()) => wakeup,
            };
            let wakeup = match wakeup {
                Ok(Ok(wakeup)) => wakeup,
                Ok(Err(RecvError::Lagged(_))) | Err(_) => return Woken::Changed,
                Ok(Err(RecvError::Closed)) => return Woken::Shutdown,
            };
            if is_subject(&wakeup) {
                return Woken::Changed;
            }
            if let Wakeup::Progress { task_id, phase, message, at } = wakeup
                && Some(task_id) == task
                && let Ok(event) =
                    Event::default().event(EVENT_PROGRESS).json_data(self.audience.progress(TaskProgress { phase, message, at }))
            {
                return Woken::Progress(event);
            }
        }
    }
}

/// Keeps an idle stream open through proxies.
pub(super) fn keep_alive() -> KeepAlive {
    KeepAlive::new().interval(Duration::from_secs(10))
}
