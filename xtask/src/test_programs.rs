//! The test programs of the workspace, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Programs that take much longer than the others, the longest first. They start first, so that none of them is left alone at the end.
const LONGEST: [&str; 3] = ["e2e", SIMULATION, "open_streams"];

/// It computes all the time and looks at no clock, so it leaves the processor to others.
const SIMULATION: &str = "seeds";

/// A built test program.
pub(crate) struct TestProgram {
    target: String,
    package: PathBuf,
    executable: PathBuf,
}

impl TestProgram {
    /// Returns a name for people: of the target, and of the crate's folder.
    pub(crate) fn name(&self) -> String {
        let package = self.package.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        format!("{} in {package}", self.target)
    }

    /// Returns the command that runs it as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        if self.target == SIMULATION { nice(&command) } else { command }
    }

    /// Returns its place among all programs.
    fn rank(&self) -> usize {
        LONGEST.iter().position(|name| *name == self.target).unwrap_or(LONGEST.len())
    }
}

/// Builds the test programs of a selection of packages with `cargo`, and returns them, the longest first. Returns `None` if they do
/// not compile; cargo has printed why.
pub(crate) fn build(mut cargo: Command, selection: &[&str]) -> Result<Option<Vec<TestProgram>>, String> {
    cargo.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]).args(selection);
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Ok(None);
    }
    let mut programs: Vec<TestProgram> = String::from_utf8_lossy(&output.stdout).lines().filter_map(read).collect();
    if programs.is_empty() {
        return Err("cargo built no test programs".to_owned());
    }
    programs.sort_by_key(TestProgram::rank);
    Ok(Some(programs))
}

/// Reads a line of cargo's output.
fn read(line: &str) -> Option<TestProgram> {
    let artifact: Value = serde_json::from_str(line).ok()?;
    if artifact["profile"]["test"] != true {
        return None;
    }
    Some(TestProgram {
        target: artifact["target"]["name"].as_str()?.to_owned(),
        package: Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned(),
        executable: artifact["executable"].as_str()?.into(),
    })
}

/// Returns the same command with a low priority.
pub(crate) fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_read_from_the_output_of_cargo() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/store/Cargo.toml","target":{{"name":"engines"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = read(&line(true, r#""/t/engines-1""#)).expect("a test program");
        assert_eq!(program.name(), "engines in store");
        assert_eq!(program.command().get_current_dir(), Some(Path::new("/w/crates/store")));
        assert!(read(&line(false, r#""/t/gpuaas""#)).is_none(), "a program that is no test");
        assert!(read(&line(true, "null")).is_none(), "a library");
        assert!(read(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn a_nice_command_is_the_same_command() {
        let mut command = Command::new("/bin/echo");
        command.arg("one").env("A", "1").env_remove("B").current_dir("/");
        let nice = nice(&command);
        assert_eq!(nice.get_args().collect::<Vec<_>>(), ["-n", "10", "/bin/echo", "one"]);
        assert!(nice.get_envs().eq(command.get_envs()));
        assert_eq!(nice.get_current_dir(), command.get_current_dir());
    }
}
