//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is assumed where there is no limit.
const PLENTY: u64 = 1 << 20;

/// Raises the limit of open files to what the system allows, but not above `most`. Returns the limit as it is then.
///
/// Programs started later inherit it, and some of them walk through every possible descriptor: hence `most`.
pub fn raise(most: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(most).min(most);
    if current.is_some_and(|current| current < wanted) {
        // What cannot be raised is lived with: the caller derives its limits from what there is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    current_limit()
}

/// The limit of open files.
pub fn current_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(PLENTY)
}
