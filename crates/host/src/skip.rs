//! For tests that need a part of the machine: prints which test is not run here, and why.

use std::io::Write as _;
use std::net::ToSocketAddrs as _;

/// Prints that the test of this thread is skipped. Not with `eprintln!`: the test harness captures that for passing tests.
pub(crate) fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {test}: {why} ***\n");
}

/// Whether `/` is a mount, which it is not in a plain chroot. There are no mount namespaces then, and the list of mounts lacks the
/// file system of the root.
pub(crate) fn root_is_a_mount() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// Whether the name `localhost` has an address, which needs a line in `/etc/hosts`.
pub(crate) fn has_localhost() -> bool {
    ("localhost", 80).to_socket_addrs().is_ok()
}
