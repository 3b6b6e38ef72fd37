//! Runs programs, and waits for conditions.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs a program and returns its standard output. An error contains the command line and the program's standard error.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    succeeded(command, &output)
}

/// Like [`run`], with text for the program's standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that does not read all of its input reports the reason itself.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("waiting for {}: {error}", shown(command)))?;
    succeeded(command, &output)
}

/// Waits until a condition holds. Polls ten times per second, because the lab's daemons offer no notification.
pub(crate) fn wait_until(what: &str, timeout: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > timeout {
            return Err(format!("waited {} s in vain: {what}", timeout.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Writes a file. An error contains the path.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    std::fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a file. An error contains the path.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns a path as text, for use within an argument. The lab creates all its paths itself, so this does not fail.
pub(crate) fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not text", path.display()))
}

fn succeeded(command: &Command, output: &Output) -> Result<String, String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reported = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} ended with {}: {}", shown(command), output.status, reported.trim()))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("{} cannot be started: {error}", shown(command))
}

fn shown(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    let words: Vec<_> = std::iter::once(command.get_program().to_string_lossy()).chain(arguments).collect();
    words.join(" ")
}
