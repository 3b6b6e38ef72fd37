//! Child processes: peers, servers and load generators. Each ends when its value is dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Result;

/// How long a program may take to become ready, or to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that reads one command per line and answers in lines of JSON.
pub(crate) struct Companion {
    name: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Creates a command that inherits only `PATH` from our environment.
pub(crate) fn command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home).env("LC_ALL", "C");
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

impl Companion {
    /// Starts the program. Its standard error goes to a file in `home`.
    pub(crate) fn start(name: &str, mut command: Command, home: &Path) -> Result<Self> {
        let log = std::fs::File::create(log_file(home, name))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err("no pipes".into()) };
        Ok(Self { name: name.to_owned(), child, input, output: BufReader::new(output).lines() })
    }

    /// Sends one command and returns the answer.
    pub(crate) async fn ask(&mut self, line: &str) -> Result<serde_json::Value> {
        self.input.write_all(format!("{line}\n").as_bytes()).await.map_err(|error| format!("{} is gone: {error}", self.name))?;
        self.hear().await
    }

    /// Returns the next line of output.
    pub(crate) async fn hear(&mut self) -> Result<serde_json::Value> {
        self.hear_within(PATIENCE).await
    }

    /// Returns the next line of output, if it arrives in time.
    pub(crate) async fn hear_within(&mut self, patience: Duration) -> Result<serde_json::Value> {
        let line = tokio::time::timeout(patience, self.output.next_line())
            .await
            .map_err(|_| format!("{} did not answer within {} s", self.name, patience.as_secs()))??;
        let line = line.ok_or_else(|| format!("{} ended; its log is kept beside the results", self.name))?;
        Ok(serde_json::from_str(&line).map_err(|error| format!("{} said `{line}`: {error}", self.name))?)
    }

    pub(crate) fn id(&self) -> Result<u32> {
        self.child.id().ok_or_else(|| format!("{} has ended", self.name).into())
    }
}

/// A program that runs in the background.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts the program with its output in a file, and waits until that file contains `ready`.
    pub(crate) async fn start(name: &str, mut command: Command, home: &Path, ready: &str) -> Result<Self> {
        let path = log_file(home, name);
        let log = std::fs::File::create(&path)?;
        let child = command
            .stdout(log.try_clone()?)
            .stderr(log)
            // `drop` sends SIGTERM instead, so that the program can stop its own children.
            .kill_on_drop(false)
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let mut server = Self { child, log: path };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !server.reported(ready) {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{name} ended at once ({status}): {}", server.tail()).into());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{name} was not ready after {} s: {}", PATIENCE.as_secs(), server.tail()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    fn reported(&self, text: &str) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains(text))
    }

    /// Returns the last lines of the output.
    pub(crate) fn tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    pub(crate) fn id(&self) -> Result<u32> {
        self.child.id().ok_or_else(|| "the server has ended".into())
    }

    /// Stops the program and waits until it has ended.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.terminate();
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    fn terminate(&self) {
        if let Some(id) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).unwrap_or(0))) {
            // An error means that the process is already gone.
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.terminate();
    }
}

fn log_file(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{}.log", name.replace([' ', '/'], "-")))
}

/// Runs a program to its end and returns its output.
pub(crate) async fn output_of(mut command: Command, what: &str) -> Result<String> {
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .map_err(|_| format!("{what} did not end within {} s", PATIENCE.as_secs()))?
        .map_err(|error| format!("{what} cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds a program in the search path or in one of these folders.
pub(crate) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(std::env::split_paths(&path)).chain([PathBuf::from("/usr/sbin")]);
    all.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Raises the limit of open files to the hard limit, for this process and its children, because benchmarks open thousands of
/// connections.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?)
}

/// Returns an error if the limit of open files does not allow this many connections in one process.
pub(crate) fn check_descriptor_limit(connections: usize) -> Result<()> {
    // Room for databases, logs, pipes and the API's own connections.
    let wanted = u64::try_from(connections)? + 1000;
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) if limit < wanted => Err(format!("this needs {wanted} file descriptors; `ulimit -Hn` allows {limit}").into()),
        _ => Ok(()),
    }
}

/// Returns a free port, below the range for outgoing connections.
pub(crate) fn free_port() -> Result<u16> {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000)?;
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    for _ in 0..2000 {
        let offset = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = 20_000 + (first - 20_000 + offset) % 12_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err("no free port between 20000 and 32000".into())
}
