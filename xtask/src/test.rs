//! `cargo xtask test`: every check that must pass before a change is merged.

use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::cargo;
use crate::counts::Counts;
use crate::guard::Guard;
use crate::parallel::{self, Job, Outcome};
use crate::servers::Servers;
use crate::test_programs::nice;
use crate::{schema_check, test_programs};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only run the tests, not rustfmt and clippy
    #[arg(long)]
    no_lint: bool,
    /// Only test this crate (repeatable)
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,
    /// Arguments for the test programs, such as a part of a test's name
    #[arg(last = true, value_name = "FILTER")]
    filter: Vec<String>,
}

struct Step {
    name: &'static str,
    succeeded: bool,
    seconds: u64,
}

/// The name of the step that runs clippy.
const LINT: &str = "clippy";

/// How many programs run at the same time: one more than the two cores of a small machine, because tests mostly wait, and few enough
/// for the time limits in them.
const WIDTH: usize = 3;

/// What the steps of a run share.
struct Run {
    /// Belongs to the guard, which removes it.
    folder: PathBuf,
    guard: Guard,
    servers: Servers,
    steps: Vec<Step>,
    counts: Counts,
}

/// Runs all steps, even after one has failed, and prints a summary. Returns true if everything succeeded.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let all = cargo::test_features()?;
    let folder = temporary_folder(Path::new("/tmp"))?;
    let mut guard = Guard::over(&folder)?;
    let servers = Servers::start(&folder, &mut guard);
    let mut run = Run { folder, guard, servers, steps: vec![], counts: Counts::default() };

    let everywhere = features(&all);
    let everywhere: Vec<&str> = everywhere.iter().map(String::as_str).collect();
    if !options.no_lint {
        run.step("format", &["fmt", "--all", "--check"])?;
    }
    // The end-to-end tests start the real programs, so those are built first, with the same targets and features as the tests:
    // that way nothing is compiled twice.
    let targets = if options.packages.is_empty() { "--all-targets" } else { "--bins" };
    run.step("build", &[&["build", "--workspace", targets], everywhere.as_slice()].concat())?;
    let lint = [&["clippy", "--workspace", "--all-targets"], everywhere.as_slice(), &["--", "-D", "warnings"]].concat();
    run.tests(options, &all, (!options.no_lint).then_some(&lint))?;
    if options.packages.is_empty() && options.filter.is_empty() {
        run.schema_check();
    }
    Ok(run.summary())
}

impl Run {
    /// Runs one call of cargo as a step.
    fn step(&mut self, name: &'static str, arguments: &[&str]) -> Result<(), String> {
        println!("==> cargo {}", arguments.join(" "));
        let started = Instant::now();
        let mut command = self.cargo(arguments);
        command.process_group(0).stdin(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
        self.guard.running(child.id())?;
        let succeeded = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?.success();
        self.guard.end(child.id())?;
        self.steps.push(Step { name, succeeded, seconds: started.elapsed().as_secs() });
        Ok(())
    }

    /// Runs the test programs, and clippy with these arguments besides, and counts the tests.
    fn tests(&mut self, options: &Options, all: &[String], lint: Option<&Vec<&str>>) -> Result<(), String> {
        let started = Instant::now();
        let (mut selection, of_selected): (Vec<String>, Vec<String>) = if options.packages.is_empty() {
            (vec!["--workspace".into()], all.to_vec())
        } else {
            let packages = options.packages.iter().flat_map(|package| ["--package".to_owned(), package.clone()]);
            // Cargo rejects features of packages that are not selected.
            (packages.collect(), options.packages.iter().flat_map(|package| cargo::of_package(all, package)).collect())
        };
        selection.extend(features(&of_selected));
        let selection: Vec<&str> = selection.iter().map(String::as_str).collect();
        let Some(programs) = test_programs::build(self.cargo(&[]), &selection)? else {
            self.steps.push(Step { name: "test", succeeded: false, seconds: started.elapsed().as_secs() });
            return Ok(());
        };

        let mut jobs = Vec::new();
        for program in programs {
            let mut command = program.command();
            self.tell(&mut command);
            command.args(&options.filter);
            jobs.push(Job { name: program.name(), command });
        }
        // The second one: most of its work fits beside the longest test program, which mostly waits.
        let lint = lint.map(|arguments| Job { name: LINT.to_owned(), command: nice(&self.cargo(arguments)) });
        jobs.splice(jobs.len().min(1)..jobs.len().min(1), lint);
        let filter: Vec<&str> = options.filter.iter().map(String::as_str).collect();
        let documentation = [&["test", "--no-fail-fast", "--doc"], selection.as_slice(), &["--"], filter.as_slice()].concat();
        jobs.push(Job { name: "tests in the documentation".to_owned(), command: self.cargo(&documentation) });

        let Self { guard, folder, counts, steps, .. } = self;
        let mut failed = Vec::new();
        parallel::run(jobs, WIDTH, folder, guard, |Outcome { name, succeeded, seconds, output }| {
            // Test programs may print arbitrary bytes.
            let output = String::from_utf8_lossy(&output);
            println!("\n==> {name}: {} ({seconds} s)\n{output}", if succeeded { "ok" } else { "FAILED" });
            if name == LINT {
                steps.push(Step { name: LINT, succeeded, seconds });
                return;
            }
            output.lines().for_each(|line| counts.add_line(line));
            if !succeeded {
                failed.push(name);
            }
        })?;
        for name in &failed {
            println!("    FAILED: {name}");
        }
        self.steps.push(Step { name: "test", succeeded: failed.is_empty(), seconds: started.elapsed().as_secs() });
        Ok(())
    }

    /// Returns a cargo command, not yet started, that knows the servers.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo::command(arguments);
        self.tell(&mut command);
        command
    }

    fn tell(&self, command: &mut Command) {
        command.env_remove("GPUAAS_FAILPOINT_DIR");
        self.servers.tell(command);
    }

    /// Checks that the built server conforms to its OpenAPI document. If schemathesis is missing, that has already been recorded.
    fn schema_check(&mut self) {
        if schema_check::program().is_none() {
            return;
        }
        println!("==> schema-check");
        let started = Instant::now();
        let holds = schema_check::check(&self.folder, &mut self.guard, &schema_check::SHORT);
        if let Err(reason) = &holds {
            println!("    FAILED: {reason}");
        }
        self.steps.push(Step { name: "schema", succeeded: holds == Ok(true), seconds: started.elapsed().as_secs() });
    }

    /// Prints the results. The last line is meant for programs.
    fn summary(self) -> bool {
        println!("\n==> summary");
        for Step { name, succeeded, seconds } in &self.steps {
            println!("    {name:<8} {} ({seconds} s)", if *succeeded { "ok" } else { "FAILED" });
        }
        for skipped in self.servers.missing() {
            println!("    skipped  {skipped}");
        }
        if self.counts.ignored > 0 {
            println!("    ignored  {} tests", self.counts.ignored);
        }
        // A step that failed without a failing test (a lint, a build, a test program that crashed) counts as one failure, so that
        // the last line never looks better than the run was.
        let failed_otherwise =
            self.steps.iter().filter(|step| !step.succeeded && (step.name != "test" || self.counts.failed == 0));
        let failed = self.counts.failed + failed_otherwise.count() as u64;
        let Counts { passed, .. } = self.counts;
        // Stop everything first, so that nothing is printed after the last line.
        drop(self.guard);
        println!("{passed} passed, {failed} failed");
        failed == 0
    }
}

/// Returns the arguments that enable these features in a call of cargo.
pub(crate) fn features(features: &[String]) -> Vec<String> {
    if features.is_empty() {
        return vec![];
    }
    vec!["--features".to_owned(), features.join(",")]
}

/// Creates a folder that only this user can write to. `under` must be short, because the path of a Unix socket is limited.
pub(crate) fn temporary_folder(under: &Path) -> Result<PathBuf, String> {
    let folder = under.join(format!("gpuaas-xtask-{}", std::process::id()));
    let create = |path: &PathBuf, mode| std::fs::DirBuilder::new().mode(mode).create(path);
    create(&folder, 0o711).map_err(|error| format!("{}: {error}", folder.display()))?;
    // For the user that runs PostgreSQL.
    let database = folder.join("database");
    create(&database, 0o700).map_err(|error| format!("{}: {error}", database.display()))?;
    Ok(folder)
}
