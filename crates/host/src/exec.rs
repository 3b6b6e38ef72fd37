//! The only process runner.
//!
//! A program is named by its absolute path and gets an argument vector, a cleared environment, no standard input, a deadline and
//! limits on its output. It runs in its own process group, and the whole group is killed when the call is dropped, times out or
//! prints too much. No shell is involved.
//!
//! Programs that work for hours run [watched](Exec::run_watched): they may continue as long as they produce output.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::sync::CancellationToken;

/// The search path for children; our own calls never search.
const CHILD_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of standard error is kept.
const STDERR_CAP: usize = 16 * 1024;
/// How much of standard error goes into an error message.
const STDERR_IN_MESSAGE: usize = 400;
/// How long to wait for children of a killed program. They end at once, unless a drive blocks them.
const GROUP_PATIENCE: Duration = Duration::from_secs(10);

/// One call of one program.
#[derive(Debug)]
pub struct Exec {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(&'static str, &'static str)>,
    held: Option<File>,
    deadline: Duration,
    stdout_cap: usize,
}

/// The output of a successful program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Standard output, complete.
    pub stdout: Vec<u8>,
    /// The first part of standard error.
    pub stderr: Vec<u8>,
}

/// Why a program failed. Every variant names the program.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The path is relative, so it could mean another program tomorrow.
    #[error("{program} is not an absolute path; programs are only run by absolute path", program = .program.display())]
    NotAbsolute {
        /// The program.
        program: PathBuf,
    },
    /// The program could not be started.
    #[error("cannot start {program}; check that it is installed and executable", program = .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Reading from the program or waiting for it failed.
    #[error("cannot read the output of {program}", program = .program.display())]
    Io {
        /// The program.
        program: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// It exceeded its deadline. It and its children were killed.
    #[error("{program} did not finish within {seconds} s and was killed", program = .program.display())]
    Deadline {
        /// The program.
        program: PathBuf,
        /// The deadline.
        seconds: u64,
    },
    /// It produced no output for too long. It and its children were killed.
    #[error("{program} printed nothing for {seconds} s and was killed", program = .program.display())]
    Stalled {
        /// The program.
        program: PathBuf,
        /// The longest allowed silence.
        seconds: u64,
    },
    /// It was stopped: it and its children were killed and have ended.
    #[error("{program} was stopped", program = .program.display())]
    Stopped {
        /// The program.
        program: PathBuf,
    },
    /// It printed too much. It and its children were killed.
    #[error("{program} printed more than {cap} bytes and was killed", program = .program.display())]
    TooMuchOutput {
        /// The program.
        program: PathBuf,
        /// The limit.
        cap: usize,
    },
    /// It ended with a failure status.
    #[error("{program} ended with {status}: {stderr}", program = .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// The start of its standard error, printable.
        stderr: String,
    },
}

impl Exec {
    /// Creates a call of `program`, by absolute path.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            held: None,
            deadline: Duration::from_secs(30),
            stdout_cap: 1024 * 1024,
        }
    }

    /// Adds one argument. It reaches the program unchanged: there is no shell and no quoting.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds one variable to the environment, which otherwise has only a search path and the language.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    /// Gives the program this open file as its standard input. A lock on it lasts as long as the program, even if this process
    /// dies first.
    #[must_use]
    pub fn holding(mut self, file: File) -> Self {
        self.held = Some(file);
        self
    }

    /// Sets the longest run, or the longest silence of a watched program; 30 s by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the limit of standard output; 1 MiB by default.
    #[must_use]
    pub fn stdout_cap(mut self, cap: usize) -> Self {
        self.stdout_cap = cap;
        self
    }

    /// Runs it to its end. Dropping the future kills the program and its children.
    pub async fn run(self) -> Result<Finished, ExecError> {
        let (status, finished) = self.run_any_status().await?;
        if status.success() {
            return Ok(finished.output);
        }
        Err(ExecError::Failed { program: finished.program, status, stderr: printable(&finished.output.stderr) })
    }

    /// Like [`run`](Self::run), for programs whose exit code is a result: returns the code with the output.
    pub async fn run_with_code(self) -> Result<(Option<i32>, Finished), ExecError> {
        let (status, finished) = self.run_any_status().await?;
        Ok((status.code(), finished.output))
    }

    /// Runs a program that takes long. Its output is passed on as it arrives and not kept. It may run as long as it is never
    /// silent for longer than the deadline. When `stop` fires, it and its children are killed, and this returns only when they
    /// have ended, so that nothing of it writes any more.
    pub async fn run_watched(
        self,
        on_text: &(dyn Fn(&[u8]) + Send + Sync),
        stop: &CancellationToken,
    ) -> Result<Finished, ExecError> {
        let silence = self.deadline;
        if stop.is_cancelled() {
            return Err(ExecError::Stopped { program: self.program });
        }
        let Running { program, mut child, group } = self.start()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let watch = async {
            let stderr = async { read_head(stderr).await.map_err(Cut::Io) };
            let ((), stderr) = tokio::try_join!(hand_on(stdout, silence, on_text), stderr)?;
            match tokio::time::timeout(silence, child.wait()).await {
                Ok(status) => Ok((status.map_err(Cut::Io)?, stderr)),
                Err(_) => Err(Cut::Stalled),
            }
        };
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => Err(Cut::Stopped),
            end = watch => end,
        };
        let cut = match end {
            Ok((status, stderr)) if status.success() => return Ok(Finished { stdout: Vec::new(), stderr }),
            Ok((status, stderr)) => return Err(ExecError::Failed { program, status, stderr: printable(&stderr) }),
            Err(cut) => cut,
        };
        group.end(&mut child).await;
        Err(match cut {
            Cut::Stopped => ExecError::Stopped { program },
            Cut::Stalled => ExecError::Stalled { program, seconds: silence.as_secs() },
            Cut::Io(source) => ExecError::Io { program, source },
        })
    }

    #[allow(clippy::disallowed_types, reason = "this is the one place that starts processes")]
    fn start(self) -> Result<Running, ExecError> {
        let Self { program, args, env, held, .. } = self;
        if !program.is_absolute() {
            return Err(ExecError::NotAbsolute { program });
        }
        let child = tokio::process::Command::new(&program)
            .args(&args)
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", CHILD_PATH)
            .envs(env)
            .current_dir("/")
            .stdin(held.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| ExecError::Start { program: program.clone(), source })?;
        let group = GroupGuard(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        Ok(Running { program, child, group })
    }

    async fn run_any_status(self) -> Result<(ExitStatus, Ended), ExecError> {
        let (deadline, stdout_cap) = (self.deadline, self.stdout_cap);
        let started = std::time::Instant::now();
        let Running { program, mut child, group } = self.start()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let work = async {
            let (stdout, stderr, status) = tokio::join!(read_capped(stdout, stdout_cap), read_head(stderr), child.wait());
            (stdout, stderr, status)
        };
        // An endless output must not be read to its end; the limit ends the wait through the error below.
        let (stdout, stderr, status) = match tokio::time::timeout(deadline, work).await {
            Ok(ended) => ended,
            Err(_) => return Err(ExecError::Deadline { program, seconds: deadline.as_secs() }),
        };
        drop(group);
        let io = |source| ExecError::Io { program: program.clone(), source };
        let Some(stdout) = stdout.map_err(io)? else {
            return Err(ExecError::TooMuchOutput { program, cap: stdout_cap });
        };
        let stderr = stderr.map_err(io)?;
        let status = status.map_err(io)?;
        tracing::debug!(program = %program.display(), %status, milliseconds = started.elapsed().as_millis(), "program ended");
        Ok((status, Ended { program, output: Finished { stdout, stderr } }))
    }
}

/// A started program.
struct Running {
    program: PathBuf,
    child: tokio::process::Child,
    group: GroupGuard,
}

/// Why a watched program is killed.
enum Cut {
    Stopped,
    Stalled,
    Io(std::io::Error),
}

struct Ended {
    program: PathBuf,
    output: Finished,
}

/// Kills the whole process group when dropped, so that no grandchild outlives the call.
struct GroupGuard(Option<Pid>);

impl GroupGuard {
    /// Kills the group and waits until it is gone.
    async fn end(mut self, child: &mut tokio::process::Child) {
        let Some(group) = self.0.take() else { return };
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        // Without a time limit: a program that hangs on a drive can still write to it.
        let _ = child.wait().await;
        let gone = async {
            // There is no notification about grandchildren, so this polls. A zombie that is never reaped still counts, hence the
            // limit.
            while rustix::process::test_kill_process_group(group).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(GROUP_PATIENCE, gone).await;
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Fails with "no such process" when everything has ended by itself, which is the usual case.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// Reads all of `pipe`, or returns `None` if there is more than `cap`. Returning early closes the pipe, which ends the writer.
async fn read_capped(pipe: Option<impl AsyncRead + Unpin>, cap: usize) -> std::io::Result<Option<Vec<u8>>> {
    let Some(mut pipe) = pipe else { return Ok(Some(Vec::new())) };
    let mut bytes = Vec::new();
    let limit = u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1);
    (&mut pipe).take(limit).read_to_end(&mut bytes).await?;
    Ok((bytes.len() <= cap).then_some(bytes))
}

/// Passes on what arrives through `pipe`, until its end or until it is silent for too long.
async fn hand_on(
    pipe: Option<impl AsyncRead + Unpin>,
    silence: Duration,
    on_text: &(dyn Fn(&[u8]) + Send + Sync),
) -> Result<(), Cut> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut chunk = [0_u8; 4096];
    loop {
        match tokio::time::timeout(silence, pipe.read(&mut chunk)).await {
            Err(_) => return Err(Cut::Stalled),
            Ok(Err(error)) => return Err(Cut::Io(error)),
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(count)) => on_text(&chunk[..count]),
        }
    }
}

/// Returns the first part of `pipe`; the rest is read and discarded.
async fn read_head(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    let mut head = Vec::new();
    let mut chunk = [0_u8; 4096];
    loop {
        let count = pipe.read(&mut chunk).await?;
        if count == 0 {
            return Ok(head);
        }
        let room = STDERR_CAP - head.len();
        head.extend_from_slice(&chunk[..count.min(room)]);
    }
}

/// Makes bytes from outside fit for one line of a log: without control characters, and bounded.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(STDERR_IN_MESSAGE).collect()
}

/// Returns a secret as it may appear in a log: the prefix shows its kind, and its value cannot be guessed.
pub fn redact(secret: &str) -> String {
    match secret.split_once('_') {
        Some((prefix, _)) if prefix.len() <= 8 && prefix.bytes().all(|b| b.is_ascii_lowercase()) => {
            format!("{prefix}_[redacted]")
        }
        _ => "[redacted]".to_owned(),
    }
}

/// Returns the first of these absolute paths that is an executable file.
pub fn first_installed(candidates: &[&str]) -> Option<PathBuf> {
    candidates.iter().map(PathBuf::from).find(|path| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.metadata().is_ok_and(|meta| meta.is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Exec {
        // Tests may use a shell to build misbehaving programs; the product never does.
        Exec::new("/bin/sh").arg("-c").arg(script)
    }

    #[tokio::test]
    async fn a_child_sees_only_our_environment_and_no_input() {
        let output = shell("env; cat").run().await.expect("runs").stdout;
        let text = String::from_utf8(output).expect("text");
        let mut names: Vec<_> = text.lines().filter_map(|l| l.split_once('=')).map(|(name, _)| name).collect();
        names.retain(|name| !matches!(*name, "PWD" | "SHLVL" | "_" | "OLDPWD"));
        names.sort_unstable();
        assert_eq!(names, ["LC_ALL", "PATH"]);
    }

    #[tokio::test]
    async fn a_relative_program_is_refused() {
        assert!(matches!(Exec::new("sh").run().await, Err(ExecError::NotAbsolute { .. })));
    }

    #[tokio::test]
    async fn the_deadline_kills_grandchildren_too() {
        let folder = tempfile::tempdir().expect("folder");
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        let error = shell(&script).deadline(Duration::from_millis(500)).run().await.expect_err("too long");
        assert!(matches!(error, ExecError::Deadline { .. }), "{error}");
        let pid: i32 = std::fs::read_to_string(pid_file).expect("written").trim().parse().expect("number");
        tokio::time::timeout(Duration::from_secs(10), async {
            while !gone(pid) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the grandchild is killed");
    }

    #[tokio::test]
    async fn endless_output_is_cut_and_the_program_killed() {
        let error = shell("while :; do echo yes; done").stdout_cap(10_000).run().await.expect_err("too much");
        assert!(matches!(error, ExecError::TooMuchOutput { cap: 10_000, .. }), "{error}");
    }

    #[tokio::test]
    async fn a_failure_names_the_program_and_what_it_said() {
        let error = shell("echo no such thing >&2; exit 3").run().await.expect_err("fails").to_string();
        assert!(error.contains("/bin/sh") && error.contains("no such thing") && error.contains('3'), "{error}");
        let (code, _) = shell("exit 4").run_with_code().await.expect("runs");
        assert_eq!(code, Some(4));
    }

    /// Returns whether a process has ended. A killed orphan may stay a zombie if nothing reaps it.
    fn gone(pid: i32) -> bool {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(_) => true,
            Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        }
    }

    #[tokio::test]
    async fn a_watched_program_is_heard_while_it_runs_and_outlives_its_deadline_by_talking() {
        let heard = std::sync::Mutex::new(Vec::new());
        let on_text = |text: &[u8]| heard.lock().expect("heard").extend_from_slice(text);
        let exec = shell("for n in 1 2 3 4; do echo $n; sleep 0.4; done; echo oops >&2").deadline(Duration::from_secs(1));
        let finished = exec.run_watched(&on_text, &CancellationToken::new()).await.expect("ends well");
        assert_eq!(heard.lock().expect("heard").as_slice(), b"1\n2\n3\n4\n");
        assert_eq!((finished.stdout.as_slice(), finished.stderr.as_slice()), (&b""[..], &b"oops\n"[..]));
        let silent = shell("echo 1; exec sleep 600").deadline(Duration::from_millis(300));
        let error = silent.run_watched(&|_| {}, &CancellationToken::new()).await.expect_err("silent");
        assert!(matches!(error, ExecError::Stalled { .. }), "{error}");
        let error = shell("echo no >&2; exit 3").run_watched(&|_| {}, &CancellationToken::new()).await.expect_err("fails");
        assert!(matches!(&error, ExecError::Failed { stderr, .. } if stderr == "no"), "{error}");
    }

    #[tokio::test]
    async fn a_watched_program_that_is_stopped_has_ended_with_its_children_when_the_call_returns() {
        let (stop, heard) = (CancellationToken::new(), std::sync::Mutex::new(String::new()));
        // The child prints its id; then it is stopped.
        let on_text = |text: &[u8]| {
            let mut heard = heard.lock().expect("heard");
            heard.push_str(&String::from_utf8_lossy(text));
            if heard.ends_with('\n') {
                stop.cancel();
            }
        };
        let error = shell("sleep 600 & echo $$ $!; wait").run_watched(&on_text, &stop).await.expect_err("stopped");
        assert!(matches!(error, ExecError::Stopped { .. }), "{error}");
        let heard = heard.lock().expect("heard").clone();
        let pids: Vec<i32> = heard.split_whitespace().map(|pid| pid.parse().expect("number")).collect();
        assert_eq!(pids.len(), 2, "{heard}");
        assert!(pids.into_iter().all(gone), "everything has ended before the call returned");
        let error = shell("exit 0").run_watched(&|_| {}, &stop).await.expect_err("stopped before it began");
        assert!(matches!(error, ExecError::Stopped { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_lock_on_a_held_file_lives_as_long_as_the_child() {
        use rustix::fs::{FlockOperation, flock};
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lock");
        let open = || File::options().create(true).truncate(false).write(true).read(true).open(&path).expect("opened");
        let (locked, other) = (open(), open());
        flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("locked");
        let stop = CancellationToken::new();
        // This process does not have the file open while the child runs.
        let on_text = |_: &[u8]| {
            flock(&other, FlockOperation::NonBlockingLockExclusive).expect_err("the child holds it");
            stop.cancel();
        };
        let exec = shell("echo here; exec sleep 600").holding(locked);
        exec.run_watched(&on_text, &stop).await.expect_err("stopped");
        flock(&other, FlockOperation::NonBlockingLockExclusive).expect("free");
    }

    #[tokio::test]
    async fn a_variable_reaches_the_child_and_no_other() {
        let output = shell("echo $ONE$HOME").env("ONE", "1").run().await.expect("runs").stdout;
        assert_eq!(output, b"1\n");
    }

    #[test]
    fn secrets_are_not_in_their_redacted_form() {
        assert_eq!(redact("gpj_abcdef"), "gpj_[redacted]");
        assert_eq!(redact("hunter2"), "[redacted]");
    }
}
