//! One round of schemathesis, with one caller and some of the operations.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::ENDINGS;
use super::figures::Figures;
use super::subject::Subject;
use crate::guard::Guard;
use crate::requirements::wheel_folder;

pub(crate) const PROGRAM: &str = "schemathesis";
/// The version on PyPI. A newer version may find more, so upgrading it is a change of its own.
pub(crate) const VERSION: &str = "4.32.5";

/// The schemathesis hooks for gpuaas.
const HOOKS: &str = include_str!("hooks.py");
/// Name of the hooks as a Python module.
const HOOKS_MODULE: &str = "gpuaas_check_hooks";
/// Reads only the first event of a stream, and gives up early on a stream without events.
const SETTINGS: &str =
    "max-stream-events = 1\n\n[[operations]]\ninclude-operation-id = [\"events\", \"project_events\"]\nrequest-timeout = 2\n";
/// The checks that schemathesis applies to every response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance";
/// Time limit of a request in seconds, generous enough for a busy machine.
const REQUEST_TIMEOUT: &str = "30";

/// Returns the path of schemathesis, if it is installed in exactly that version.
pub(crate) fn program() -> Option<PathBuf> {
    let folder = wheel_folder(PROGRAM);
    let of_version = folder.join(format!("{PROGRAM}-{VERSION}.dist-info")).is_dir();
    Some(folder.join("bin").join(PROGRAM)).filter(|path| of_version && path.is_file())
}

/// Which operations a round calls.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Everything,
    /// Those that remove nothing that other operations need.
    Main,
    /// Those that do.
    Endings,
}

/// One round of calls by one caller.
pub(super) struct Round<'a> {
    /// Name of the caller, one word.
    pub(super) caller: &'static str,
    /// The keys to use in turn. Without any, requests have no token.
    pub(super) keys: &'a [String],
    /// The operations to call.
    pub(super) part: Part,
    /// The phases of schemathesis to run.
    pub(super) phases: &'static str,
    /// How many operations must succeed at least once: a server that refuses everything violates no schema. `None` for a caller
    /// without a token, whom every operation must refuse.
    pub(super) successes: Option<usize>,
}

impl Round<'_> {
    fn name(&self) -> String {
        match self.part {
            Part::Everything | Part::Main => self.caller.to_owned(),
            Part::Endings => format!("{} endings", self.caller),
        }
    }

    /// Runs the round and prints the result. Returns true if every response conforms to the document.
    pub(super) fn run(&self, subject: &Subject, guard: &mut Guard, examples: u32, until: Instant) -> Result<bool, String> {
        let folder = subject.folder.join(self.name().replace(' ', "-"));
        let (figures, output) = (folder.join("figures.json"), folder.join("output.txt"));
        let mut command = self.command(subject, &folder, &figures, examples)?;
        let unusable = |error| format!("{}: {error}", output.display());
        let file = std::fs::File::create(&output).map_err(unusable)?;
        let errors = file.try_clone().map_err(unusable)?;
        // A process group of its own, so that the guard can end schemathesis together with everything it started.
        command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(errors);
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("{PROGRAM} cannot be started: {error}"))?;
        guard.running(child.id())?;
        let ended = loop {
            if let Some(status) = child.try_wait().map_err(|error| format!("waiting for {PROGRAM}: {error}"))? {
                break Some(status);
            }
            if Instant::now() > until {
                guard.end(child.id())?;
                child.wait().map_err(|error| format!("waiting for {PROGRAM}: {error}"))?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        guard.end(child.id())?;
        let verdict = match ended {
            Some(status) if status.success() => self.verdict(&figures, started.elapsed().as_secs())?,
            Some(_) => Err("an answer did not conform to the document, or could not be checked".to_owned()),
            None => Err("it took too long".to_owned()),
        };
        if let Err(reason) = &verdict {
            println!("{}", std::fs::read_to_string(&output).unwrap_or_default());
            println!("    {}: FAILED: {reason}", self.name());
        }
        Ok(verdict.is_ok())
    }

    /// Checks that a round without errors has covered enough.
    fn verdict(&self, figures: &Path, seconds: u64) -> Result<Result<(), String>, String> {
        let figures = Figures::read(figures)?;
        let (operations, requests, successes) = (figures.operations(), figures.requests(), figures.successes());
        println!(
            "    {}: {operations} operations, {requests} requests, {successes} operations with success ({seconds} s)",
            self.name()
        );
        println!("        {}", figures.by_status());
        Ok(match self.successes {
            Some(least) if successes < least => {
                Err(format!("only {successes} operations with success, and {least} are expected"))
            }
            Some(_) => Ok(()),
            None => match figures.other_than(401) {
                Some(operation) => Err(format!("{operation} did not refuse a caller without a token")),
                None => Ok(()),
            },
        })
    }

    fn command(&self, subject: &Subject, folder: &Path, figures: &Path, examples: u32) -> Result<Command, String> {
        let program = program().ok_or("schemathesis is not installed")?;
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (name, text) in [(format!("{HOOKS_MODULE}.py"), HOOKS), ("schemathesis.toml".to_owned(), SETTINGS)] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let modules = std::env::join_paths([wheel_folder(PROGRAM), folder.to_owned()])
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut command = Command::new("python3");
        command.arg(program).args(["run", &format!("{}/openapi.json", subject.url), "--url", &subject.url]);
        command.args(["--checks", CHECKS, "--phases", self.phases, "--max-examples", &examples.to_string()]);
        command.args(["--request-timeout", REQUEST_TIMEOUT, "--generation-database", "none"]);
        command.args(["--continue-on-failure", "--no-color", "--warnings", "off"]);
        match self.part {
            Part::Everything => {}
            Part::Main => drop(command.args(ENDINGS.iter().flat_map(|name| ["--exclude-operation-id", name]))),
            Part::Endings => drop(command.args(ENDINGS.iter().flat_map(|name| ["--include-operation-id", name]))),
        }
        // schemathesis writes files into its working folder.
        command.current_dir(folder).env("PYTHONPATH", modules).env("SCHEMATHESIS_HOOKS", HOOKS_MODULE);
        command.env("GPUAAS_CHECK_KEYS", self.keys.join(",")).env("GPUAAS_CHECK_FIGURES", figures);
        command.env("GPUAAS_CHECK_KNOWN", subject.folder.join(format!("{}-known.json", self.caller)));
        Ok(command)
    }
}
