//! The exit codes of the program.

use gpuaas_api::client::ErrorKind;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::TaskState;

/// Shown below `gpuaas --help`. The table in `docs/cli.md` says the same.
pub(crate) const HELP: &str = "\
Exit codes:
  0  success (a task that was waited for succeeded)
  1  a task failed, was cancelled, interrupted or lost; or a check did not pass
  2  the command line, an input file or a value is wrong, or --yes is missing
  3  it does not exist
  4  refused: the state or the host's policy does not allow it, or a port is in use
  5  not authorized: no token, a wrong token, or a role that does not allow it
  6  the server or its database cannot be reached, or its certificate is not trusted
  7  no answer in time, the task is still running, or no node accepted it in time
  8  internal error, or a server of another version

Examples:
  gpuaas node ls
  gpuaas task run rack-1 diag.ping --param message=hello --wait
  gpuaas task verify task_0198c0de… --save evidence.json
  gpuaas audit export -f audit.ndjson && gpuaas audit verify --file audit.ndjson

The server is found by --url, GPUAAS_URL or `url` in ~/.config/gpuaas/config.toml, the token likewise.";

/// The exit codes. Each has exactly one meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Done = 0,
    /// A task or a check failed.
    Failed = 1,
    /// The input is invalid.
    Usage = 2,
    /// Something that was named does not exist.
    NotFound = 3,
    /// The current state, or the host, does not allow it.
    Refused = 4,
    /// Not authenticated, or not permitted.
    Unauthorized = 5,
    /// The server cannot be reached.
    Unreachable = 6,
    /// It did not finish in time, or not yet.
    Timeout = 7,
    /// A bug, or an error of the operating system.
    Internal = 8,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Conflict => Self::Refused,
            ErrorKind::Unauthorized => Self::Unauthorized,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Internal => Self::Internal,
        }
    }
}

/// Returns the exit code for a task in this state.
pub(crate) fn of_task(state: &Open<TaskState>) -> Exit {
    match state.known() {
        Some(TaskState::Succeeded) => Exit::Done,
        Some(TaskState::Refused) => Exit::Refused,
        Some(TaskState::Queued | TaskState::Dispatched | TaskState::Accepted | TaskState::Started | TaskState::Expired) => {
            Exit::Timeout
        }
        // `None` is a state that only a newer server knows. It does not count as success.
        Some(TaskState::Failed | TaskState::Cancelled | TaskState::Interrupted | TaskState::Lost) | None => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_state_has_its_exit_code() {
        for state in TaskState::ALL {
            let expected = match state {
                TaskState::Succeeded => Exit::Done,
                TaskState::Failed | TaskState::Cancelled | TaskState::Interrupted | TaskState::Lost => Exit::Failed,
                TaskState::Refused => Exit::Refused,
                TaskState::Expired | TaskState::Queued | TaskState::Dispatched | TaskState::Accepted | TaskState::Started => {
                    Exit::Timeout
                }
            };
            assert_eq!(of_task(&state.into()), expected, "{state:?}");
        }
    }

    #[test]
    fn the_help_lists_every_code() {
        for code in 0..=8 {
            assert!(HELP.contains(&format!("\n  {code}  ")), "{code}");
        }
    }
}
