//! Real programs under test: starting, observing and killing them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::{Failpoints, NetNs, eventually};

/// Maximum number of bytes of a log that are printed when a test fails.
const TAIL_BYTES: usize = 16 * 1024;

/// How to start a program. The program inherits only `PATH` from the environment of the test.
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    name: String,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    namespace: Option<String>,
}

impl Launch {
    /// Launches a program of this workspace, by name. It must already be built; `cargo xtask test` does that.
    pub fn new(name: &str) -> Self {
        let program = target_folder().join(name);
        assert!(
            program.is_file(),
            "{} is not built: run `cargo xtask test`, or `cargo build --workspace --bins` with the failpoints features first",
            program.display()
        );
        Self::at(program)
    }

    /// Launches any program, by path.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let name = program.file_name().map_or_else(|| "program".to_owned(), |name| name.to_string_lossy().into_owned());
        let environment = vec![("RUST_BACKTRACE".into(), "1".into())];
        Self { program, name, arguments: vec![], environment, namespace: None }
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Self {
        arguments.into_iter().fold(self, Launch::arg)
    }

    /// Sets a variable of the program's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Makes the program stop at armed failpoints.
    #[must_use]
    pub fn failpoints(self, failpoints: &Failpoints) -> Self {
        self.env(gpuaas_failpoint::DIRECTORY_VARIABLE, failpoints.folder())
    }

    /// Runs the program in this network namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &NetNs) -> Self {
        self.namespace = Some(namespace.name().to_owned());
        self
    }

    /// Returns the same program with a fault in its system calls. `rule` is an argument of `strace --inject`, such as
    /// `fdatasync:error=EIO:when=2`, and applies only to calls on the file `on`. Injected faults are logged to `log`. Returns `None` and
    /// prints a line if strace is not installed.
    #[must_use]
    pub fn with_fault(&self, rule: &str, on: &Path, log: &Path) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let Some(strace) = std::env::split_paths(&path).map(|folder| folder.join("strace")).find(|file| file.is_file()) else {
            crate::skip("a test with failing system calls", "strace is not installed; run `cargo xtask test`, which installs it");
            return None;
        };
        assert!(self.namespace.is_none(), "a fault in another network namespace is not supported");
        let call = rule.split(':').next().unwrap_or_default();
        // `-D` makes strace the grandchild, so that the process id and the exit code are the program's own.
        let mut wrapped = Self { program: strace, ..self.clone() };
        wrapped.arguments = ["-D", "-f", "-qq", "-e", &format!("trace={call}"), "-e", &format!("inject={rule}")]
            .map(OsString::from)
            .into_iter()
            .chain(["-P".into(), on.into(), "-o".into(), log.into(), self.program.clone().into()])
            .chain(self.arguments.iter().cloned())
            .collect();
        Some(wrapped)
    }

    /// Returns the same program with other system limits, as arguments of `prlimit` such as `--nofile=1024`.
    #[must_use]
    pub fn with_limits(&self, limits: &[&str]) -> Self {
        assert!(self.namespace.is_none(), "limits in another network namespace are not supported");
        // `prlimit` replaces itself with the program, so that the process id is the program's own.
        let mut wrapped = Self { program: "/usr/bin/prlimit".into(), ..self.clone() };
        wrapped.arguments = limits
            .iter()
            .map(OsString::from)
            .chain(["--".into(), self.program.clone().into()])
            .chain(self.arguments.iter().cloned())
            .collect();
        wrapped
    }

    /// Starts the program. Its output goes to files in `folder`, which is also its home and working directory.
    #[track_caller]
    pub fn start(&self, folder: &Path) -> Program {
        static STARTS: AtomicU32 = AtomicU32::new(1);
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let log = |stream: &str| folder.join(format!("{}-{number}.{stream}.log", self.name));
        let (stdout, stderr) = (log("stdout"), log("stderr"));
        let create = |path: &Path| File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));

        let mut command = self.command();
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).current_dir(folder);
        command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("{} cannot be started: {error}", self.program.display()));
        Program { name: format!("{} (start {number})", self.name), child, ended: None, stdout, stderr }
    }

    /// Runs the program to its end and returns its status, standard output and standard error.
    #[track_caller]
    pub fn run(&self, folder: &Path, timeout: Duration) -> (ExitStatus, String, String) {
        let mut program = self.start(folder);
        let status = program.wait(timeout);
        (status, program.stdout(), program.stderr())
    }

    /// Builds the command. `ip netns exec` replaces itself with the program, so the process id is always the program's own.
    fn command(&self) -> Command {
        let mut command = match &self.namespace {
            None => Command::new(&self.program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program);
                command
            }
        };
        command.args(&self.arguments);
        command
    }
}

/// A running program. Killed when dropped; if the test has failed, the end of its logs is printed.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Program {
    /// Returns the process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits for a line on either output that contains `pattern`, and returns it. Fails at once if the program ends without it.
    #[track_caller]
    pub fn wait_for_line(&mut self, pattern: &str, timeout: Duration) -> String {
        let what = format!("{} prints a line with `{pattern}`", self.name);
        let line = eventually(timeout, &what, || {
            // Checks whether the program runs before reading its output, so that its last lines are not missed.
            let running = self.is_running();
            let output = [self.stdout(), self.stderr()];
            // Only complete lines count, so that their values are complete.
            let complete =
                output.iter().flat_map(|text| text.split_inclusive('\n')).filter(|line| line.ends_with('\n') || !running);
            let found = complete.map(str::trim_end).find(|line| line.contains(pattern)).map(str::to_owned);
            if found.is_none() && !running { Some(None) } else { found.map(Some) }
        });
        line.unwrap_or_else(|| panic!("{} ended without printing a line with `{pattern}`", self.name))
    }

    /// Returns whether the program is still running.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended.is_none()
    }

    /// Kills the program with `SIGKILL` and waits until it is gone.
    pub fn sigkill(&mut self) {
        if self.is_running() {
            self.signal(Signal::KILL);
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// Aborts the program with `SIGABRT`, like a failed assertion, and waits until it is gone.
    #[track_caller]
    pub fn crash(&mut self, timeout: Duration) -> ExitStatus {
        if self.is_running() {
            self.signal(Signal::ABORT);
        }
        self.wait(timeout)
    }

    /// Kills the program together with its child processes, like a power cut.
    pub fn sigkill_family(&mut self) {
        if !self.is_running() {
            return;
        }
        // A frozen parent neither starts nor reaps children, so the ids stay valid.
        self.signal(Signal::STOP);
        for child in children_of(self.id()) {
            // The child may have ended in the meantime; it is then a zombie, and the signal has no effect.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        self.sigkill();
    }

    /// Requests a clean shutdown. Does not wait.
    pub fn sigterm(&mut self) {
        if self.is_running() {
            self.signal(Signal::TERM);
        }
    }

    /// Freezes the program, so that its connections stay open but get no answers.
    pub fn pause(&mut self) {
        if self.is_running() {
            self.signal(Signal::STOP);
        }
    }

    /// Resumes the program after [`Program::pause`].
    pub fn resume(&mut self) {
        if self.is_running() {
            self.signal(Signal::CONT);
        }
    }

    /// Waits until the program ends. Fails the test if it does not end in time.
    #[track_caller]
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(timeout, &what, || if self.is_running() { None } else { self.ended })
    }

    fn signal(&self, signal: Signal) {
        // The child is ours and not yet waited for, so the id cannot belong to another process.
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("a child can be signaled");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = if self.is_running() { "still running".to_owned() } else { format!("{:?}", self.ended) };
            eprintln!("---- {}: {state}", self.name);
            for (stream, text) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
                eprintln!("---- end of its {stream}:\n{}", tail(&text));
            }
        }
        self.sigkill();
    }
}

/// Returns the processes whose parent is `parent`.
fn children_of(parent: u32) -> Vec<Pid> {
    let parent_of = |stat: &str| {
        // The name in parentheses may contain anything, so the fields are counted from the last parenthesis.
        let after_name = &stat[stat.rfind(')')? + 1..];
        after_name.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let processes = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let children = numbers.filter(|number| {
        let stat = std::fs::read(format!("/proc/{number}/stat")).unwrap_or_default();
        parent_of(&String::from_utf8_lossy(&stat)) == Some(parent)
    });
    children.filter_map(Pid::from_raw).collect()
}

/// Returns the path of an external server: from the variable, from the folder where `cargo xtask test` unpacks the wheel, from
/// the search path, or from pip's folder for a user.
pub(crate) fn find(variable: &str, name: &str, wheel: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let installed = target_folder().parent().map(|target| target.join("tools").join(wheel).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_user = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin"));
    let mut folders = installed.into_iter().chain(std::env::split_paths(&path)).chain(of_user);
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
}

/// Returns the value of a variable that `cargo xtask test` sets. Returns `None` and prints a line if it is missing.
pub(crate) fn from_environment(variable: &str, what: &str, server: &str) -> Option<String> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        crate::skip(what, &format!("{variable} is not set; run `cargo xtask test`, which starts a private {server}"));
    }
    value
}

/// Returns the folder with the programs: the parent of the folder with the test programs.
fn target_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    test.parent().and_then(Path::parent).expect("a test program lives in target/<profile>/deps").to_owned()
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(TAIL_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
