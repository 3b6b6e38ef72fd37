//! Waits for a started guest until it is ready, stops by itself, or runs out of time.

use std::time::Duration;

use gpuaas_contract::task::slice_vm_provision::Readiness;
use gpuaas_host::guests::{ConsoleFrom, DomainState, GuestAccess};

use super::{Context, TaskFailure};

/// The phase in which tasks wait for a guest.
pub(super) const PHASE: &str = "readiness";
/// First and longest pause between two attempts: a guest that is ready soon is noticed soon, and a slow one is not polled too often.
const ASK_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// How many bytes from the end of the console go into the task's log when a guest does not become ready.
const LAST_WORDS: u64 = 4096;

/// When a guest counts as ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// It accepts our SSH login and presents the host key that it was given.
    Answers,
    /// In addition, it reports that its first boot is complete.
    Provisioned,
}

/// Polls the guest until it is ready or the time is up; the returned flag is true if it is ready. A guest that stops by itself is an error.
pub(super) async fn wait(
    context: &Context,
    guest: &GuestAccess,
    until: Until,
    within: Duration,
) -> Result<(Readiness, bool), TaskFailure> {
    let end = tokio::time::Instant::now() + within;
    let mut found = Readiness { ssh: false, marker: false, attempts: 0 };
    let mut pause = ASK_EVERY.0;
    loop {
        let answer = tokio::select! {
            biased;
            () = context.stop.cancelled() => return Err(TaskFailure::stopped()),
            answer = context.host.guest_ask(guest) => answer?,
        };
        found = Readiness { ssh: answer.ssh, marker: answer.marker, attempts: found.attempts.saturating_add(1) };
        let is_ready = match until {
            Until::Answers => answer.ssh,
            Until::Provisioned => answer.ssh && answer.marker,
        };
        if is_ready {
            return Ok((found, true));
        }
        if context.host.domain_state(guest.allocation_id).await? != DomainState::Running {
            last_words(context, guest).await;
            return Err(TaskFailure::failed(
                "guest_died",
                "the guest stopped before it was ready; its last words are in the log".to_owned(),
            ));
        }
        if tokio::time::Instant::now() >= end {
            last_words(context, guest).await;
            return Ok((found, false));
        }
        let message = if answer.ssh { "the guest is up; waiting for cloud-init" } else { "waiting for the guest to answer" };
        context.phases.tell(PHASE, message.to_owned());
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return Err(TaskFailure::stopped()),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(ASK_EVERY.1);
    }
}

async fn last_words(context: &Context, guest: &GuestAccess) {
    let part = context.host.console_read(guest.allocation_id, ConsoleFrom::Tail(LAST_WORDS), 4096).await;
    let Ok(part) = part else { return };
    for line in String::from_utf8_lossy(&part.bytes).lines() {
        context.log.line(format!("console: {}", line.trim_end())).await;
    }
}
