//! The removal of a tenant's user: the same for a release, a failed provision and a crashed one.
//!
//! It does not depend on what was done before. It reads the lease of the machine, which records which user may have been created
//! with which number, removes everything that could exist, and checks that it is gone. The lease is dropped last, and only if
//! nothing is left.

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::UserName;
use gpuaas_host::guests::Point;
use gpuaas_host::users::{MachineLease, SystemUser};
use gpuaas_host::{Host, HostError};
use tokio_util::sync::CancellationToken;

use crate::handler::{Phases, TaskFailure};

/// The code if something is left.
pub(crate) const NOT_GONE: &str = "user_not_gone";
/// Attempts of the whole removal.
const PASSES: u32 = 2;
/// Maximum number of traces that a message lists, and of characters of each: it must fit into a receipt.
const MOST_TOLD: usize = 12;
const MOST_LETTERS: usize = 240;

/// The user to remove.
pub(crate) struct Departure<'a> {
    pub(crate) host: &'a Host,
    pub(crate) phases: &'a Phases,
    /// Fired to stop before the next effect; the lease then stays.
    pub(crate) stop: &'a CancellationToken,
    pub(crate) lease: MachineLease,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) sessions: u32,
    pub(crate) processes: u32,
    pub(crate) files: u64,
    pub(crate) home: bool,
}

/// A step of a task on a user: it does not start if the task is stopped, and a simulated host can be told to fail there.
pub(crate) struct Steps<'a> {
    pub(crate) host: &'a Host,
    pub(crate) phases: &'a Phases,
    pub(crate) stop: &'a CancellationToken,
}

impl Steps<'_> {
    pub(crate) async fn run<T>(
        &self,
        step: &'static str,
        says: &str,
        work: impl Future<Output = Result<T, HostError>>,
    ) -> Result<T, TaskFailure> {
        if self.stop.is_cancelled() {
            return Err(TaskFailure::stopped());
        }
        self.host.checkpoint(step, Point::Begin).await?;
        self.phases.enter(step, says).await;
        self.host.checkpoint(step, Point::Journaled).await?;
        let value = match work.await {
            Ok(value) => value,
            // A search through the host's files also stops in the middle.
            Err(_) if self.stop.is_cancelled() => return Err(TaskFailure::stopped()),
            Err(error) => return Err(error.into()),
        };
        self.host.checkpoint(step, Point::Done).await?;
        Ok(value)
    }

    /// Reports how many files were checked.
    pub(crate) fn tell(&self, step: &'static str, seen: u64) {
        self.phases.tell(step, format!("checked {seen} files"));
    }
}

impl Departure<'_> {
    /// Removes the user, proves it, and drops the lease of the machine.
    pub(crate) async fn run(mut self) -> Result<Gone, TaskFailure> {
        let mut gone = Gone::default();
        let mut left = Vec::new();
        for pass in 1..=PASSES {
            left = match self.pass(&mut gone).await {
                Ok(left) => left,
                Err(failure) if self.stop.is_cancelled() => return Err(failure),
                Err(failure) => vec![format!("{} ({})", failure.message, failure.code)],
            };
            if left.is_empty() {
                return Ok(gone);
            }
            tracing::warn!(pass, user = %self.lease.username, left = told(&left), "not everything of a tenant is gone");
        }
        let message = format!("the user {} is not gone, so the machine stays leased; left: {}", self.lease.username, told(&left));
        Err(TaskFailure::failed(NOT_GONE, message))
    }

    /// Runs everything once, and returns what is left of the user.
    async fn pass(&mut self, gone: &mut Gone) -> Result<Vec<String>, TaskFailure> {
        let steps = Steps { host: self.host, phases: self.phases, stop: self.stop };
        let host = self.host;
        steps.run("identify", "looking at who the user is", identify_and_mark(host, &mut self.lease)).await?;
        let (lease, traces) = (&self.lease, self.lease.traces());
        if let Some(uid) = traces.uid {
            let close = async {
                host.user_sudo(&traces.name, false).await?;
                host.user_close(&traces.name).await
            };
            steps.run("close", "keeping the user out", close).await?;
            let end = async {
                host.user_jobs_end(&traces).await?;
                host.user_processes_end(uid).await
            };
            let ended = steps.run("processes", "ending sessions, processes and jobs of the user", end).await?;
            gone.sessions = gone.sessions.saturating_add(ended.sessions);
            gone.processes = gone.processes.saturating_add(ended.processes);
            let tell = |seen, _| steps.tell("files", seen);
            let remove = host.user_files_remove(&traces, &tell, self.stop);
            let removed = steps.run("files", "removing the home and every file of the user", remove).await?;
            gone.files = gone.files.saturating_add(removed.files);
            gone.home |= removed.home;
            steps.run("account", "removing the user", host.user_remove(&traces)).await?;
        }
        let tell = |seen, _| steps.tell("proof", seen);
        let look = host.user_leftovers(&traces, &tell, self.stop);
        let left = steps.run("proof", "looking for anything that is left of the user", look).await?;
        if left.is_empty() {
            // From here on the task has ended, whatever is requested: nothing is left to stop.
            host.machine_lease_drop(lease.holder()).await?;
        }
        Ok(left)
    }
}

/// Checks that an existing user is the one of the lease, and records that it is leaving.
async fn identify_and_mark(host: &Host, lease: &mut MachineLease) -> Result<(), HostError> {
    if let Some(user) = host.user_find(&lease.username).await? {
        check_identity(&user, lease.user_of)?;
        match lease.uid {
            Some(uid) if uid == user.uid => {}
            // The number is recorded before a user is created with it; this user was created without a lease.
            None => lease.uid = Some(user.uid),
            Some(uid) => return Err(differs(&format!("the user {} has number {}", user.name, user.uid), uid)),
        }
    } else if let Some(uid) = lease.uid
        && let Some(other) = host.user_of_number(uid).await?
    {
        // Another user has the number by now, with everything that belongs to it.
        return Err(differs(&format!("{other} has number {uid}"), uid));
    }
    lease.leaving = true;
    host.machine_lease_note(lease).await
}

fn differs(what: &str, uid: u32) -> HostError {
    let message = format!("{what}, and the tenant's user was created with {uid}; it was changed since, so check it first");
    HostError::new("user_differs", message)
}

/// Checks that a user was created for this allocation.
pub(crate) fn check_identity(user: &SystemUser, user_of: AllocationId) -> Result<(), HostError> {
    match user.allocation() {
        Some(allocation) if allocation == user_of => Ok(()),
        Some(allocation) => {
            let message = format!("the user {} belongs to {allocation} and not to {user_of}; nothing was done to it", user.name);
            Err(HostError::new("user_of_another_allocation", message))
        }
        None => {
            let message = format!(
                "the user {} with number {} was not created for an allocation; nothing was done to it",
                user.name, user.uid
            );
            Err(HostError::new("user_not_ours", message))
        }
    }
}

/// Returns a list that fits into a receipt.
pub(crate) fn told(left: &[String]) -> String {
    let short = |text: &String| text.chars().take(MOST_LETTERS).collect::<String>();
    let mut listed = left.iter().take(MOST_TOLD).map(short).collect::<Vec<_>>().join("; ");
    if left.len() > MOST_TOLD {
        listed.push_str(&format!("; and {} more", left.len() - MOST_TOLD));
    }
    listed
}

/// Checks that the lease is for this user.
pub(crate) fn check_name(lease: &MachineLease, name: &UserName) -> Result<(), HostError> {
    if lease.username == *name {
        return Ok(());
    }
    let message = format!("the machine is leased for the user {}, not for {name}; name that one", lease.username);
    Err(HostError::new("user_differs", message))
}
