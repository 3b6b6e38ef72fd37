//! The limit of open files and sockets of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The assumed limit where there is none.
const PLENTY: u64 = 1 << 20;

/// Raises the limit of open files to what the system allows, but not above `most`. Returns the resulting limit.
///
/// Child processes inherit the limit, and some of them iterate over every possible descriptor. `most` bounds that.
pub fn raise(most: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(most).min(most);
    if current.is_some_and(|current| current < wanted) {
        // A failure is accepted: the caller derives its own limits from the actual one.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    current_limit()
}

/// Returns the limit of open files.
pub fn current_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(PLENTY)
}
