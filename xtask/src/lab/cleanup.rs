//! Undoes the lab's changes to the machine in reverse order, however this program ends.
//!
//! Like the guard of the tests, a small process waits on a pipe whose other end only this program holds. When the pipe closes,
//! because the lab is done, has failed or was killed, it executes its commands in reverse.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Every input line is a command. Each is placed before the earlier ones, and at the end all of them run as one script.
///
/// `end <pid> <start>` ends that process only: a process with the same id that started at another time is not ours.
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

/// Undoes all registered changes when it is dropped.
pub(crate) struct Cleanup {
    process: Child,
    orders: Option<ChildStdin>,
}

impl Cleanup {
    /// Starts with nothing to undo.
    pub(crate) fn start() -> Result<Self, String> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "cleanup"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Its own group, so that Ctrl-C reaches this program and not the cleanup.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("/bin/sh cannot be started: {error}"))?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    /// Ends this child process.
    pub(crate) fn end(&mut self, process: &Child) -> Result<(), String> {
        let pid = process.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| format!("process {pid}: {error}"))?;
        // The name may contain spaces and brackets, so the fields are counted after it.
        let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
        let start = start.ok_or_else(|| format!("process {pid} does not say when it started"))?;
        self.order(&format!("end {pid} {start}"))
    }

    /// Runs this program. A failure is printed.
    pub(crate) fn call<A: AsRef<OsStr>>(&mut self, program: &str, arguments: impl IntoIterator<Item = A>) -> Result<(), String> {
        let mut words = vec![quoted(OsStr::new(program))?];
        for argument in arguments {
            words.push(quoted(argument.as_ref())?);
        }
        self.order(&words.join(" "))
    }

    /// Removes this file, or this folder and its content, but nothing that is mounted there.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), String> {
        self.call("rm", [OsStr::new("-rf"), OsStr::new("--one-file-system"), OsStr::new("--"), path.as_os_str()])
    }

    /// Creates a folder with its parents, and removes those that did not exist before.
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

    /// Runs this line of shell. It must not contain any input from outside.
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
        // Closing the pipe starts the cleanup; the wait makes sure that it is finished.
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
