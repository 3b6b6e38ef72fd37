//! What the process as a whole does for its secrets: it leaves no core dump, and nobody of the same user reads its memory.

use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// Makes sure that this process's memory is never written to a file or read by another process of the same user.
///
/// Both calls are needed: the limit stops the kernel from writing a core file, and a process that is not dumpable is neither handed to a
/// core handler (which ignores the limit) nor open to `ptrace` and `/proc/<pid>/mem` for anybody but root.
pub fn forbid_memory_dumps() -> std::io::Result<()> {
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
