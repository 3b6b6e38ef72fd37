//! The guard: a small process that ends everything that this program started, however this program itself ends.
//!
//! It reads from a pipe whose other end only this program holds. When this program finishes, fails, or is killed by Ctrl-C,
//! SIGTERM or even SIGKILL, the pipe closes. The guard then ends the running process groups, stops the private servers and removes
//! the temporary folder. A normal exit uses the same mechanism.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The guard's script. `$1` is the temporary folder. Each line of standard input registers something: `group <id>`, `nats <pid>`,
/// `redis <pid>`, `temporal <pid>` and `gpuaas <pid>` (0 withdraws it), and `postgres <pid>`. `end <id>` ends a group and
/// withdraws it.
///
/// A group is ended even if its first process has finished, because that may have left a stray child behind.
const SCRIPT: &str = r#"
folder=$1
groups=
postgres=
nats=0
redis=0
temporal=0
gpuaas=0
end_group() {
    if [ "$1" -gt 1 ]; then
        kill -s TERM -- "-$1" 2>/dev/null
        tries=50
        while [ "$tries" -gt 0 ] && kill -s 0 -- "-$1" 2>/dev/null; do tries=$((tries - 1)); sleep 0.1; done
        kill -s KILL -- "-$1" 2>/dev/null
    fi
}
forget_group() {
    rest=
    for other in $groups; do
        if [ "$other" != "$1" ]; then rest="$rest $other"; fi
    done
    groups=$rest
}
while read -r what id; do
    case $what in
        group) groups="$groups $id" ;;
        end) end_group "$id"; forget_group "$id" ;;
        postgres) postgres=$id ;;
        nats) nats=$id ;;
        redis) redis=$id ;;
        temporal) temporal=$id ;;
        gpuaas) gpuaas=$id ;;
    esac
done
for group in $groups; do end_group "$group"; done
# Their data goes with the folder, so there is nothing to end in good order.
for server in "$gpuaas" "$temporal" "$nats" "$redis"; do
    if [ "$server" -gt 1 ]; then kill -s KILL "$server" 2>/dev/null; fi
done
if [ -n "$postgres" ]; then
    kill -s INT "$postgres" 2>/dev/null
    tries=100
    # It removes this file as its last act; the process itself stays visible until its parent looks.
    while [ "$tries" -gt 0 ] && [ -e "$folder/database/postgres/postmaster.pid" ] && kill -s 0 "$postgres" 2>/dev/null; do
        tries=$((tries - 1))
        sleep 0.1
    done
    kill -s KILL "$postgres" 2>/dev/null
fi
# Whoever was killed a moment ago may still have been making a file.
rm -rf -- "$folder" || { sleep 0.5; rm -rf -- "$folder"; }
exit 0
"#;

/// A handle to the guard. Dropping it ends everything that is registered, and waits for that.
pub(crate) struct Guard {
    process: Child,
    orders: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard for `folder`, which it removes at the end.
    pub(crate) fn over(folder: &Path) -> Result<Self, String> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A process group of its own, so that Ctrl-C reaches this program but not the guard.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("/bin/sh cannot be started: {error}"))?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    /// Registers a process group.
    pub(crate) fn running(&mut self, group: u32) -> Result<(), String> {
        self.order("group", group)
    }

    /// Ends a process group, with whatever is left of it.
    pub(crate) fn end(&mut self, group: u32) -> Result<(), String> {
        self.order("end", group)
    }

    /// Registers the process id of PostgreSQL.
    pub(crate) fn postgres(&mut self, pid: u32) -> Result<(), String> {
        self.order("postgres", pid)
    }

    /// Registers the process id of the NATS server; 0 for none.
    pub(crate) fn nats(&mut self, pid: u32) -> Result<(), String> {
        self.order("nats", pid)
    }

    /// Registers the process id of the Redis server; 0 for none.
    pub(crate) fn redis(&mut self, pid: u32) -> Result<(), String> {
        self.order("redis", pid)
    }

    /// Registers the process id of the Temporal server; 0 for none.
    pub(crate) fn temporal(&mut self, pid: u32) -> Result<(), String> {
        self.order("temporal", pid)
    }

    /// Registers the process id of `gpuaas dev`; 0 for none.
    pub(crate) fn gpuaas(&mut self, pid: u32) -> Result<(), String> {
        self.order("gpuaas", pid)
    }

    fn order(&mut self, what: &str, id: u32) -> Result<(), String> {
        let orders = self.orders.as_mut().ok_or("the guard has ended")?;
        writeln!(orders, "{what} {id}").map_err(|error| format!("the guard does not listen: {error}"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Closing the pipe starts the cleanup. Waiting for the process makes sure that the cleanup has finished.
        self.orders = None;
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_ends_only_the_group_it_is_told_to() {
        let folder = std::env::temp_dir().join(format!("gpuaas-guard-groups-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder");
        let sleeper = || Command::new("sleep").arg("60").process_group(0).spawn().expect("start sleep");
        let (mut first, mut second) = (sleeper(), sleeper());

        let mut guard = Guard::over(&folder).expect("start the guard");
        guard.running(first.id()).expect("tell the guard");
        guard.running(second.id()).expect("tell the guard");
        guard.end(first.id()).expect("tell the guard");
        assert!(!first.wait().expect("wait for sleep").success(), "it ended by itself");
        assert!(second.try_wait().expect("look at sleep").is_none(), "the other group was ended, too");
        let reaper = std::thread::spawn(move || second.wait().expect("wait for sleep"));
        drop(guard);
        assert!(!reaper.join().expect("the reaper").success(), "it ended by itself");
    }

    #[test]
    fn a_guard_ends_the_group_and_removes_the_folder() {
        let folder = std::env::temp_dir().join(format!("gpuaas-guard-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder");
        let mut sleeper = Command::new("sleep").arg("60").process_group(0).spawn().expect("start sleep");

        let mut guard = Guard::over(&folder).expect("start the guard");
        guard.running(sleeper.id()).expect("tell the guard");
        // The sleeper must be reaped while the guard waits for its group to end.
        let reaper = std::thread::spawn(move || sleeper.wait().expect("wait for sleep"));
        drop(guard);

        assert!(!reaper.join().expect("the reaper").success(), "sleep ended by itself");
        assert!(!folder.exists(), "the folder is still there");
    }

    #[test]
    fn a_guard_stops_the_servers_it_was_told_about_last() {
        let folder = std::env::temp_dir().join(format!("gpuaas-guard-servers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder");
        let sleeper = || Command::new("sleep").arg("60").process_group(0).spawn().expect("start sleep");
        let (mut nats, mut redis, mut gpuaas, mut forgotten) = (sleeper(), sleeper(), sleeper(), sleeper());

        let mut guard = Guard::over(&folder).expect("start the guard");
        guard.nats(forgotten.id()).expect("tell the guard");
        guard.nats(nats.id()).expect("tell the guard");
        guard.redis(redis.id()).expect("tell the guard");
        guard.gpuaas(gpuaas.id()).expect("tell the guard");
        drop(guard);

        assert!(!nats.wait().expect("wait for sleep").success(), "it ended by itself");
        assert!(!redis.wait().expect("wait for sleep").success(), "it ended by itself");
        assert!(!gpuaas.wait().expect("wait for sleep").success(), "it ended by itself");
        assert!(forgotten.try_wait().expect("look at sleep").is_none(), "it was none of the guard's business any more");
        forgotten.kill().and_then(|()| forgotten.wait()).expect("end sleep");
    }
}
