//! `cargo xtask test`: every check that must pass before a change is merged.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use crate::cargo;
use crate::counts::Counts;
use crate::guard::Guard;
use crate::schema_check;
use crate::servers::Servers;

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

/// What the steps of a run share.
struct Run {
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
    let mut run = Run { guard, servers, steps: vec![], counts: Counts::default() };

    let everywhere = features(&all);
    let everywhere: Vec<&str> = everywhere.iter().map(String::as_str).collect();
    if !options.no_lint {
        run.step("format", &["fmt", "--all", "--check"])?;
    }
    // The end-to-end tests start the real programs, so those are built first, with the same targets and features as the tests:
    // that way nothing is compiled twice.
    let targets = if options.packages.is_empty() { "--all-targets" } else { "--bins" };
    run.step("build", &[&["build", "--workspace", targets], everywhere.as_slice()].concat())?;
    if !options.no_lint {
        let clippy = [&["clippy", "--workspace", "--all-targets"], everywhere.as_slice(), &["--", "-D", "warnings"]].concat();
        run.step("clippy", &clippy)?;
    }
    run.tests(options, &all)?;
    if options.packages.is_empty() && options.filter.is_empty() {
        run.schema_check(&folder);
    }
    Ok(run.summary())
}

impl Run {
    /// Runs one call of cargo as a step.
    fn step(&mut self, name: &'static str, arguments: &[&str]) -> Result<(), String> {
        self.cargo(name, arguments, false)
    }

    /// Runs the tests and counts them.
    fn tests(&mut self, options: &Options, all: &[String]) -> Result<(), String> {
        let mut arguments: Vec<String> = vec!["test".into(), "--no-fail-fast".into()];
        let of_selected: Vec<String> = if options.packages.is_empty() {
            arguments.push("--workspace".into());
            all.to_vec()
        } else {
            arguments.extend(options.packages.iter().flat_map(|package| ["--package".to_owned(), package.clone()]));
            // Cargo rejects features of packages that are not selected.
            options.packages.iter().flat_map(|package| cargo::of_package(all, package)).collect()
        };
        arguments.extend(features(&of_selected));
        if !options.filter.is_empty() {
            arguments.push("--".into());
            arguments.extend(options.filter.iter().cloned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.cargo("test", &arguments, true)
    }

    /// Checks that the built server conforms to its OpenAPI document. If schemathesis is missing, that has already been recorded.
    fn schema_check(&mut self, folder: &Path) {
        if schema_check::program().is_none() {
            return;
        }
        println!("==> schema-check");
        let started = Instant::now();
        let holds = schema_check::check(folder, &mut self.guard, &schema_check::SHORT);
        if let Err(reason) = &holds {
            println!("    FAILED: {reason}");
        }
        self.steps.push(Step { name: "schema", succeeded: holds == Ok(true), seconds: started.elapsed().as_secs() });
    }

    fn cargo(&mut self, name: &'static str, arguments: &[&str], count: bool) -> Result<(), String> {
        println!("==> cargo {}", arguments.join(" "));
        let started = Instant::now();
        let mut command = cargo::command(arguments);
        // A process group of its own, so that the guard can end cargo together with everything it started.
        command.process_group(0).stdin(Stdio::null());
        command.env_remove("GPUAAS_FAILPOINT_DIR");
        self.servers.tell(&mut command);
        if count {
            command.stdout(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
        self.guard.running(child.id())?;
        if let Some(output) = child.stdout.take() {
            let mut lines = BufReader::new(output);
            let mut line = Vec::new();
            // Test programs may print arbitrary bytes, so lines are bytes until they are counted.
            while lines.read_until(b'\n', &mut line).map_err(|error| format!("output of cargo: {error}"))? > 0 {
                let text = String::from_utf8_lossy(&line);
                self.counts.add_line(&text);
                print!("{text}");
                line.clear();
            }
        }
        let succeeded = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?.success();
        self.guard.idle()?;
        self.steps.push(Step { name, succeeded, seconds: started.elapsed().as_secs() });
        Ok(())
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
