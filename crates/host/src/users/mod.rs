//! Users of tenants that lease the whole machine: one method per operation, the same on this machine and on the simulated one.
//!
//! Every operation is idempotent, and every one that removes something succeeds if it is already gone. None of them touches a
//! user whose number is below [`FIRST_PERSON`].
//!
//! Files are accessed through the root of the first process, not our own: a service manager may hide homes and temporary folders
//! from its services, and what is hidden cannot be proven to be gone.

mod account;
mod files;
mod jobs;
mod keys;
mod mounts;
mod processes;
#[cfg(test)]
mod real_tests;
mod sudo;
mod traces;
mod tree;
mod types;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpuaas_contract::slice::{Holder, SshPublicKey, UserName};
use tokio_util::sync::CancellationToken;

pub use types::*;

use crate::guests::{Progress, blocking};
use crate::lease::machine;
use crate::sim::Operation;
use crate::{Host, HostError};

/// The root of the host, whatever the service manager shows to this process.
const HOST_ROOT: &str = "/proc/1/root";
/// How often the progress of a search is reported.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Host {
    /// Takes the lease of the whole machine: exclusive, durable, never with a lower epoch than it has seen, and never while a
    /// slot of it is leased. Taking it again for the same user of the same holder changes nothing. With `again`, it also accepts,
    /// for cleaning up, an epoch that its holder has given back.
    pub async fn machine_lease_take(&self, lease: &MachineLease, again: bool) -> Result<(), HostError> {
        let (folder, lease) = (self.layout().leases.clone(), lease.clone());
        let subject = lease.allocation_id.to_string();
        self.files(Operation::MachineLeaseTake, subject, move || machine::take(&folder, &lease, again)).await
    }

    /// Takes the machine from a holder with a lower epoch, to clean up after it. Returns the lease, with that holder's user.
    pub async fn machine_lease_take_over(&self, lease: &MachineLease) -> Result<MachineLease, HostError> {
        let (folder, lease) = (self.layout().leases.clone(), lease.clone());
        let subject = lease.allocation_id.to_string();
        self.files(Operation::MachineLeaseTakeOver, subject, move || machine::take_over(&folder, &lease)).await
    }

    /// Records a change of the machine's lease.
    pub async fn machine_lease_note(&self, lease: &MachineLease) -> Result<(), HostError> {
        let (folder, lease) = (self.layout().leases.clone(), lease.clone());
        let subject = lease.allocation_id.to_string();
        self.files(Operation::MachineLeaseNote, subject, move || machine::note(&folder, &lease)).await
    }

    /// Drops the lease of the machine. A lease of another holder is never touched.
    pub async fn machine_lease_drop(&self, holder: Holder) -> Result<(), HostError> {
        let folder = self.layout().leases.clone();
        let subject = holder.allocation_id.to_string();
        self.files(Operation::MachineLeaseDrop, subject, move || machine::drop_lease(&folder, holder)).await
    }

    /// Returns the lease of the machine, if there is one. A lease that cannot be read is an error, because its holder is unknown.
    pub async fn machine_lease(&self) -> Result<Option<MachineLease>, HostError> {
        let folder = self.layout().leases.clone();
        self.files(Operation::MachineLease, String::new(), move || machine::find(&folder)).await
    }

    /// Returns the fence of the machine's last lease.
    pub async fn machine_fence(&self) -> Result<Option<MachineFence>, HostError> {
        let folder = self.layout().leases.clone();
        self.files(Operation::MachineFence, String::new(), move || machine::fence(&folder)).await
    }

    /// Returns the user with this name, from any user database of the system.
    pub async fn user_find(&self, name: &UserName) -> Result<Option<SystemUser>, HostError> {
        match self {
            Self::Real(_) => account::find(name).await,
            Self::Sim(sim) => sim.user_find(name).await,
        }
    }

    /// Returns the name of the user with a number, if there is one.
    pub async fn user_of_number(&self, uid: u32) -> Result<Option<String>, HostError> {
        match self {
            Self::Real(_) => account::name_of(uid).await,
            Self::Sim(sim) => sim.user_of_number(uid).await,
        }
    }

    /// Returns a number for a new tenant: no user has it, no file on the host's own file systems has it, and it is not `after`.
    pub async fn user_number(
        &self,
        after: Option<u32>,
        progress: Progress<'_>,
        stop: &CancellationToken,
    ) -> Result<u32, HostError> {
        match self {
            Self::Real(_) => {
                let candidates = account::free_numbers(after).await?;
                searching(progress, stop, move |looking| files::unused(Path::new(HOST_ROOT), &candidates, looking)).await
            }
            Self::Sim(sim) => sim.user_number(after).await,
        }
    }

    /// Creates a user with a home, its own group, no password and no subordinate ids. Another user with this name is an error.
    pub async fn user_create(&self, user: &NewUser) -> Result<SystemUser, HostError> {
        match self {
            Self::Real(_) => account::create(Path::new(HOST_ROOT), user).await,
            Self::Sim(sim) => sim.user_create(user).await,
        }
    }

    /// Allows exactly these keys, each once. Returns their number.
    pub async fn user_keys(&self, user: &SystemUser, keys: &[SshPublicKey]) -> Result<u32, HostError> {
        let mut lines: Vec<String> = Vec::new();
        for key in keys {
            if !lines.iter().any(|line| line == key.as_str()) {
                lines.push(key.as_str().to_owned());
            }
        }
        let count = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        match self {
            Self::Real(_) => {
                let user = user.clone();
                blocking(move || keys::write(Path::new(HOST_ROOT), &user, &lines)).await?;
            }
            Self::Sim(sim) => sim.user_keys(user, lines).await?,
        }
        Ok(count)
    }

    /// Grants or revokes sudo for a user.
    pub async fn user_sudo(&self, name: &UserName, allowed: bool) -> Result<(), HostError> {
        match self {
            Self::Real(_) => sudo::set(Path::new(HOST_ROOT), name, allowed).await,
            Self::Sim(sim) => sim.user_sudo(name, allowed).await,
        }
    }

    /// Locks the user out, for any key.
    pub async fn user_close(&self, name: &UserName) -> Result<(), HostError> {
        match self {
            Self::Real(_) => account::close(name).await,
            Self::Sim(sim) => sim.user_close(name).await,
        }
    }

    /// Ends what would start for the user, and kernel objects of the user: jobs of cron and at, lingering services, shared
    /// memory, file systems that it mounted.
    pub async fn user_jobs_end(&self, traces: &Traces) -> Result<(), HostError> {
        match self {
            Self::Real(_) => jobs::end(Path::new(HOST_ROOT), traces).await,
            Self::Sim(sim) => sim.user_jobs_end(traces).await,
        }
    }

    /// Ends every session and process of a user number: first SIGTERM, then SIGKILL. Survivors are found by the next check.
    pub async fn user_processes_end(&self, uid: u32) -> Result<Ended, HostError> {
        check_number(uid)?;
        match self {
            Self::Real(_) => processes::end(uid).await,
            Self::Sim(sim) => sim.user_processes_end(uid).await,
        }
    }

    /// Removes the home with its content, and everything that the user number owns on the host's own file systems. A folder with
    /// files of others, and a device, is given to root. What cannot be removed is found by the next check.
    pub async fn user_files_remove(
        &self,
        traces: &Traces,
        progress: Progress<'_>,
        stop: &CancellationToken,
    ) -> Result<Removed, HostError> {
        traces.uid.map_or(Ok(()), check_number)?;
        match self {
            Self::Real(_) => {
                let traces = traces.clone();
                searching(progress, stop, move |looking| files::remove(Path::new(HOST_ROOT), &traces, looking)).await
            }
            Self::Sim(sim) => sim.user_files_remove(traces).await,
        }
    }

    /// Removes a user and its group. A user of that name with another number is an error.
    pub async fn user_remove(&self, traces: &Traces) -> Result<(), HostError> {
        match self {
            Self::Real(_) => account::remove(traces).await,
            Self::Sim(sim) => sim.user_remove(traces).await,
        }
    }

    /// Describes everything that is left of a user; empty if there is nothing. Without a number, only what depends on the name is
    /// checked.
    pub async fn user_leftovers(
        &self,
        traces: &Traces,
        progress: Progress<'_>,
        stop: &CancellationToken,
    ) -> Result<Vec<String>, HostError> {
        match self {
            Self::Real(_) => {
                let mut left = traces::left(Path::new(HOST_ROOT), traces).await?;
                if let Some(uid) = traces.uid {
                    let search = move |looking: Looking| files::owned(Path::new(HOST_ROOT), uid, looking);
                    left.extend(searching(progress, stop, search).await?);
                }
                Ok(left)
            }
            Self::Sim(sim) => sim.user_leftovers(traces).await,
        }
    }
}

/// Refuses to act on user numbers of the system, wherever they come from.
pub(crate) fn check_number(uid: u32) -> Result<(), HostError> {
    if uid >= FIRST_PERSON {
        return Ok(());
    }
    Err(HostError::new("user_not_ours", format!("{uid} is a number of the system; nothing is done to whom it belongs")))
}

/// What a search on its own thread shares with its caller.
#[derive(Clone, Debug)]
pub(crate) struct Looking {
    /// The number of files seen.
    pub(crate) seen: Arc<AtomicU64>,
    /// The caller has stopped waiting.
    pub(crate) stop: CancellationToken,
}

impl Looking {
    /// Returns an error if the caller has stopped waiting.
    pub(crate) fn check(&self) -> Result<(), HostError> {
        if self.stop.is_cancelled() {
            return Err(HostError::new("cancelled", "the search through the host's files was stopped"));
        }
        Ok(())
    }
}

/// Runs a search on its own thread, reports its progress, and stops it when the caller stops waiting.
async fn searching<T: Send + 'static>(
    progress: Progress<'_>,
    stop: &CancellationToken,
    search: impl FnOnce(Looking) -> Result<T, HostError> + Send + 'static,
) -> Result<T, HostError> {
    let looking = Looking { seen: Arc::default(), stop: stop.child_token() };
    let _stopped_with_us = looking.stop.clone().drop_guard();
    let theirs = looking.clone();
    let mut search = std::pin::pin!(blocking(move || search(theirs)));
    loop {
        tokio::select! {
            biased;
            result = &mut search => return result,
            () = tokio::time::sleep(TELL_EVERY) => progress(looking.seen.load(Ordering::Relaxed), 0),
        }
    }
}
