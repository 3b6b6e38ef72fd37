//! Protection of the process's secrets: no core dumps, and no other process of the same user can read its memory.

use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// Prevents that this process's memory is written to a file or read by another process of the same user.
///
/// Both calls are needed. The limit stops the kernel from writing a core file. A process that is not dumpable is not passed to a
/// core handler (which ignores the limit), and only root can access it with `ptrace` and `/proc/<pid>/mem`.
pub fn forbid_memory_dumps() -> std::io::Result<()> {
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
