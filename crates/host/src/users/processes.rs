//! Processes of a user, from `/proc`, and its sessions, from `loginctl` on systemd.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

use super::Ended;
use crate::exec::{Exec, first_installed};
use crate::guests::blocking;
use crate::{HostError, systemd};

const LOGINCTL: &[&str] = &["/usr/bin/loginctl", "/bin/loginctl"];
const PROC: &str = "/proc";
/// How long processes may take to end after SIGTERM.
const ASKED: Duration = Duration::from_secs(5);
/// How long SIGKILL is repeated. A process ends at once unless a device blocks it, and a fork bomb is outrun.
const KILLED: Duration = Duration::from_secs(30);
const BETWEEN_ROUNDS: Duration = Duration::from_millis(50);
/// Size limit of a process's status.
const STATUS_CAP: u64 = 64 * 1024;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) name: String,
}

/// Ends every session and process of a user number.
pub(super) async fn end(uid: u32) -> Result<Ended, HostError> {
    let sessions = end_sessions(uid).await;
    let mut ended = BTreeSet::new();
    for (signal, patience) in [(Signal::TERM, ASKED), (Signal::KILL, KILLED)] {
        let until = tokio::time::Instant::now() + patience;
        let mut first = true;
        loop {
            // SIGTERM once is enough, and repeating it would interrupt handlers; SIGKILL is repeated.
            let strike = first || signal == Signal::KILL;
            let left = blocking(move || round(uid, strike.then_some(signal))).await?;
            let none = left.is_empty();
            ended.extend(left.into_iter().map(|process| process.pid));
            if none || tokio::time::Instant::now() >= until {
                break;
            }
            first = false;
            // The kernel reports the end of a process only to its parent, so this polls.
            tokio::time::sleep(BETWEEN_ROUNDS).await;
        }
    }
    let left = blocking(move || list(Path::new(PROC), uid)).await?;
    let processes = ended.iter().filter(|pid| left.iter().all(|process| process.pid != **pid)).count();
    Ok(Ended { sessions, processes: u32::try_from(processes).unwrap_or(u32::MAX) })
}

/// Sends the signal to each process of a user number, and returns them.
fn round(uid: u32, signal: Option<Signal>) -> Result<Vec<Process>, HostError> {
    super::check_number(uid)?;
    let processes = list(Path::new(PROC), uid)?;
    for process in &processes {
        let Some((pid, signal)) = Pid::from_raw(process.pid).zip(signal) else { continue };
        // The process id may have been reused: the pidfd stays with the process, so its owner is checked again.
        let Ok(descriptor) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if status(Path::new(PROC), process.pid).is_some_and(|status| status.is_of(uid)) {
            let _ = rustix::process::pidfd_send_signal(descriptor, signal);
        }
    }
    Ok(processes)
}

/// Returns the processes of a user number: as real, effective, saved or file system user id.
pub(super) fn list(proc_root: &Path, uid: u32) -> Result<Vec<Process>, HostError> {
    let failed = |error: std::io::Error| HostError::because("processes_unknown", "the list of processes", &error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc_root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some(status) = status(proc_root, pid).filter(|status| status.is_of(uid)) {
            found.push(Process { pid, name: status.name });
        }
    }
    Ok(found)
}

struct Status {
    name: String,
    uids: Vec<u32>,
    /// Whether it has ended and only waits to be reaped.
    ended: bool,
}

impl Status {
    fn is_of(&self, uid: u32) -> bool {
        !self.ended && self.uids.contains(&uid)
    }
}

/// Returns the status, or `None` if the process is gone.
fn status(proc_root: &Path, pid: i32) -> Option<Status> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(proc_root.join(pid.to_string()).join("status")).ok()?;
    file.take(STATUS_CAP).read_to_end(&mut bytes).ok()?;
    parse_status(&String::from_utf8_lossy(&bytes))
}

fn parse_status(text: &str) -> Option<Status> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let uids = field("Uid")?.split_ascii_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    let dead = field("State").is_some_and(|state| state.starts_with(['Z', 'X']));
    // A process whose first thread has ended looks dead while its other threads run.
    let threads = field("Threads").and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
    Some(Status { name: field("Name").unwrap_or_default().to_owned(), uids, ended: dead && threads <= 1 })
}

/// Ends the sessions of a user number on systemd, and returns their number. Remaining processes are ended like all others.
async fn end_sessions(uid: u32) -> u32 {
    let Some(loginctl) = first_installed(LOGINCTL).filter(|_| systemd::is_running()) else { return 0 };
    let listed = Exec::new(&loginctl).arg("--no-legend").arg("--no-pager").arg("list-sessions").run().await;
    let sessions = listed.map_or(0, |printed| count_sessions(&printed.stdout, uid));
    if let Err(error) = Exec::new(&loginctl).arg("terminate-user").arg(uid.to_string()).run().await {
        tracing::debug!(%error, uid, "no session of the user was ended");
    }
    sessions
}

/// Counts lines of `loginctl list-sessions`: the session, the number, the name, and more that differs between versions.
fn count_sessions(printed: &[u8], uid: u32) -> u32 {
    let text = String::from_utf8_lossy(printed);
    let of_user = |line: &&str| line.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()) == Some(uid);
    u32::try_from(text.lines().filter(of_user).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tbash\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t7\nUid:\t20000\t20001\t20002\t20003\nThreads:\t1\n";

    #[test]
    fn whoever_has_the_number_in_any_way_is_of_the_user() {
        let status = parse_status(STATUS).expect("a status");
        assert_eq!(status.name, "bash");
        assert!((20_000..=20_003).all(|uid| status.is_of(uid)));
        assert!(!status.is_of(20_004) && !status.is_of(0) && !status.is_of(2000));
        assert!(parse_status("Name:\tx\n").is_none());
    }

    #[test]
    fn a_process_that_only_waits_for_its_parent_is_over_unless_a_thread_of_it_runs() {
        let zombie = STATUS.replace("S (sleeping)", "Z (zombie)");
        assert!(!parse_status(&zombie).expect("a status").is_of(20_000));
        let headless = zombie.replace("Threads:\t1", "Threads:\t2");
        assert!(parse_status(&headless).expect("a status").is_of(20_000));
    }

    #[test]
    fn sessions_are_counted_by_number_and_not_by_name() {
        let printed = b"     3 20000 tenant-1 - pts/0 active no -\n    c1  1000 20000 seat0 tty2\n     5 20000 tenant-1\n\n";
        assert_eq!((count_sessions(printed, 20_000), count_sessions(printed, 1000), count_sessions(b"", 1)), (2, 1, 0));
    }
}
