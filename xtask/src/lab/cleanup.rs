//! Undoes the lab's changes to the machine in reverse order, however this program ends.
//!
//! Like the guard of the tests, a small process reads from a pipe whose other end only this program holds. When the pipe closes,
//! because the lab is done, has failed or was killed, the process runs the commands that it has read, in reverse order.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Each line of input is a command. It is placed in front of the earlier ones, and at the end they all run as one script.
///
/// `end <pid> <start>` ends a process only if it started at that time: otherwise the id has been reused by a process that is not ours.
const SCRIPT: &str = r#"
runs() {
    { read -r stat < "/proc/$1/stat"; } 2>/dev/null || return 1
    start=$2
    set -- ${stat##*) }
    [ "$1" != Z ] && [ "${20}" = "$start" ]
}
end() {
    runs "$1" "$2" && kill -s TERM "$1" 2>/dev/null
    tries=100
    while [ "$tries" -gt 0 ] && runs "$1" "$2"; do tries=$((tries - 1)); sleep 0.1; done
    runs "$1" "$2" && kill -s KILL "$1" 2>/dev/null
}
orders=
while IFS= read -r order; do
    orders="$order
$orders"
done
eval "$orders"
exit 0
"#;

/// A handle to the cleanup. Dropping it undoes all registered changes, and waits for that.
pub(crate) struct Cleanup {
    process: Child,
    orders: Option<ChildStdin>,
}

impl Cleanup {
    /// Starts the cleanup process with nothing to undo.
    pub(crate) fn start() -> Result<Self, String> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "cleanup"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A process group of its own, so that Ctrl-C reaches this program but not the cleanup.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("/bin/sh cannot be started: {error}"))?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    /// Registers a child process to be ended.
    pub(crate) fn end(&mut self, process: &Child) -> Result<(), String> {
        let pid = process.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| format!("process {pid}: {error}"))?;
        // The process name may contain spaces and parentheses, so fields are counted from the last parenthesis.
        let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
        let start = start.ok_or_else(|| format!("process {pid} does not say when it started"))?;
        self.order(&format!("end {pid} {start}"))
    }

    /// Registers a program to be run. If it fails, that is printed.
    pub(crate) fn call<A: AsRef<OsStr>>(&mut self, program: &str, arguments: impl IntoIterator<Item = A>) -> Result<(), String> {
        let mut words = vec![quoted(OsStr::new(program))?];
        for argument in arguments {
            words.push(quoted(argument.as_ref())?);
        }
        self.order(&words.join(" "))
    }

    /// Registers a file, or a folder and its content, to be removed. Whatever is mounted below it is kept.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), String> {
        self.call("rm", [OsStr::new("-rf"), OsStr::new("--one-file-system"), OsStr::new("--"), path.as_os_str()])
    }

    /// Creates a folder and its parents, and registers those that did not exist before for removal.
    pub(crate) fn make_folder(&mut self, path: &Path) -> Result<(), String> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.make_folder(above)?;
        }
        self.remove(path)?;
        std::fs::create_dir(path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Registers a line of shell. It must not contain input from outside this program.
    pub(crate) fn shell(&mut self, line: &str) -> Result<(), String> {
        self.order(line)
    }

    fn order(&mut self, order: &str) -> Result<(), String> {
        if order.contains('\n') {
            return Err(format!("an order is one line, and this is not: {order}"));
        }
        let orders = self.orders.as_mut().ok_or("the cleanup is over")?;
        writeln!(orders, "{order}").map_err(|error| format!("the cleanup does not listen: {error}"))
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // Closing the pipe starts the cleanup. Waiting for the process makes sure that the cleanup has finished.
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// Quotes a word for the shell.
fn quoted(word: &OsStr) -> Result<String, String> {
    let word = word.to_str().ok_or_else(|| format!("{} is not text", word.display()))?;
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_undone_last_thing_first() {
        let folder = std::env::temp_dir().join(format!("gpuaas-cleanup-{}", std::process::id()));
        let account = std::env::temp_dir().join(format!("gpuaas-cleanup-{}.txt", std::process::id()));
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("start sleep");

        let mut cleanup = Cleanup::start().expect("start");
        cleanup.make_folder(&folder.join("a/b")).expect("make the folder");
        let note = format!("ls {} > {}", folder.display(), account.display());
        cleanup.shell(&note).expect("a line of shell");
        cleanup.call("touch", [folder.join("it's there")]).expect("a program");
        cleanup.end(&sleeper).expect("a process");
        drop(cleanup);

        assert!(!sleeper.wait().expect("wait for sleep").success(), "sleep ended by itself");
        assert_eq!(std::fs::read_to_string(&account).expect("the account"), "a\nit's there\n");
        assert!(!folder.exists(), "the folder is still there");
        std::fs::remove_file(&account).expect("remove the account");
    }

    #[test]
    fn a_process_that_took_over_the_number_is_left_alone() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("start sleep");
        let mut cleanup = Cleanup::start().expect("start");
        cleanup.order(&format!("end {} 12", sleeper.id())).expect("an order");
        drop(cleanup);
        assert_eq!(sleeper.try_wait().expect("look at sleep"), None, "it was ended");
        sleeper.kill().expect("end it");
        sleeper.wait().expect("wait for it");
    }
}
