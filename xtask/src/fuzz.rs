//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer and keeps their corpora small.
//!
//! The bodies of the targets are in `crates/fuzz`, where an ordinary test replays the committed corpora. A nightly compiler is
//! needed only to find new inputs.

mod log;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::guard::Guard;
use crate::test::temporary_folder;
use crate::{cargo, requirements};

/// Memory limit of a target in MiB, including the sanitizer's own memory.
const MEMORY: u32 = 1024;
/// Limit of a single allocation in MiB: no input may cause an allocation much larger than itself.
const ALLOCATION: u32 = 64;
/// Time limit for one input, in seconds.
const SECONDS: u32 = 5;

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The targets to run (default: all)
    targets: Vec<String>,
    /// Number of minutes to run each target
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Number of processes per target
    #[arg(long, default_value_t = 1)]
    jobs: u32,
}

struct Outcome {
    target: String,
    figures: log::Figures,
    corpus: (usize, u64),
    findings: Vec<PathBuf>,
}

/// Runs the targets one after the other and prints what they found. Returns true if they found nothing.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let all = targets()?;
    if let Some(unknown) = options.targets.iter().find(|target| !all.contains(target)) {
        return Err(format!("there is no target `{unknown}`; there are: {}", all.join(", ")));
    }
    ensure_nightly()?;
    ensure_cargo_fuzz()?;
    let folder = cargo::workspace().join("fuzz/target");
    let seeds = folder.join("seeds");
    println!("==> writing the seeds");
    let path = seeds.display().to_string();
    if !cargo::run(&["run", "--quiet", "--package", "gpuaas-fuzz", "--example", "seeds", "--", &path])? {
        return Err("the seeds could not be written".to_owned());
    }
    println!("==> building the targets");
    let chosen = if options.targets.is_empty() { &all } else { &options.targets };
    for target in chosen {
        if !nightly(&["fuzz", "build", target]).status().map_err(cannot_start)?.success() {
            return Err(format!("the target {target} could not be built"));
        }
    }

    // The targets write files for every input. In memory that is fast and does not wear out a disk.
    let memory = Path::new("/dev/shm");
    let scratch = temporary_folder(if memory.is_dir() { memory } else { Path::new("/tmp") })?;
    let mut guard = Guard::over(&scratch)?;
    let mut outcomes = Vec::new();
    for target in chosen {
        println!("==> {target}");
        let outcome = fuzz(target, options, &folder, &scratch, &mut guard)?;
        for artifact in &outcome.findings {
            let artifact = artifact.strip_prefix(cargo::workspace()).unwrap_or(artifact).display();
            println!("    FOUND {artifact}");
            println!("    replay it: cargo +nightly fuzz run {target} {artifact}");
            println!("    make it smaller: cargo +nightly fuzz tmin {target} {artifact}");
            println!("    once it is mended, keep it: mv {artifact} fuzz/regressions/{target}/");
        }
        outcomes.push(outcome);
    }
    drop(guard);
    Ok(summary(&outcomes))
}

/// Runs one target and updates its committed corpus.
fn fuzz(target: &str, options: &Options, folder: &Path, scratch: &Path, guard: &mut Guard) -> Result<Outcome, String> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let committed = cargo::workspace().join("fuzz/corpus").join(target).with_extension("bin");
    let corpus = folder.join("corpus").join(target);
    let _ = std::fs::remove_dir_all(&corpus);
    if committed.is_file() {
        corpus_file(&["unpack", &committed.display().to_string(), &corpus.display().to_string()])?;
    }
    let artifacts = cargo::workspace().join("fuzz/artifacts").join(target);
    let (found, seeds) = (folder.join("found").join(target), folder.join("seeds").join(target));
    let fresh = folder.join("fresh").join(target);
    for path in [&corpus, &artifacts, &found, &seeds] {
        std::fs::create_dir_all(path).map_err(io(path))?;
    }
    let known = files(&artifacts);
    let log_file = folder.join(format!("{target}.log"));
    let inputs = [&found, &corpus, &seeds].map(|path| path.display().to_string());
    let limits = [
        format!("-max_total_time={}", options.minutes * 60),
        format!("-rss_limit_mb={MEMORY}"),
        format!("-malloc_limit_mb={ALLOCATION}"),
        format!("-timeout={SECONDS}"),
        format!("-max_len={}", longest_input(target)),
        "-print_final_stats=1".to_owned(),
    ];
    let jobs = options.jobs.to_string();
    let mut arguments = vec!["fuzz", "run", "--jobs", &jobs, target];
    arguments.extend(inputs.iter().map(String::as_str));
    arguments.push("--");
    arguments.extend(limits.iter().map(String::as_str));
    let succeeded = watched(nightly(&arguments), &log_file, scratch, guard)?;
    let text = String::from_utf8_lossy(&std::fs::read(&log_file).map_err(io(&log_file))?).into_owned();
    let findings: Vec<PathBuf> = files(&artifacts).into_iter().filter(|path| !known.contains(path)).collect();
    if !succeeded && findings.is_empty() {
        return Err(format!("{target} could not be run; see {}", log_file.display()));
    }

    // Keep the smallest set of inputs that reaches every edge.
    let _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh).map_err(io(&fresh))?;
    let fresh_path = fresh.display().to_string();
    let mut arguments = vec!["fuzz", "run", target, &fresh_path];
    arguments.extend(inputs.iter().map(String::as_str));
    arguments.extend(["--", "-set_cover_merge=1", "-use_counters=0", &limits[1], &limits[2], &limits[3], &limits[4]]);
    if watched(nightly(&arguments), &folder.join(format!("{target}.merge.log")), scratch, guard)? && !files(&fresh).is_empty() {
        std::fs::remove_dir_all(&corpus).map_err(io(&corpus))?;
        std::fs::rename(&fresh, &corpus).map_err(io(&corpus))?;
        corpus_file(&["pack", &corpus.display().to_string(), &committed.display().to_string()])?;
    } else {
        println!("    the corpus could not be minimized; it stays as it was");
    }
    let kept = files(&corpus);
    let bytes = kept.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    let figures = log::figures(&text);
    Ok(Outcome { target: target.to_owned(), figures, corpus: (kept.len(), bytes), findings })
}

/// Unpacks or packs a corpus file. Goes through `crates/fuzz`, the only place that knows the format.
fn corpus_file(arguments: &[&str]) -> Result<(), String> {
    let run = ["run", "--quiet", "--package", "gpuaas-fuzz", "--example", "corpus", "--"];
    if cargo::run(&[&run, arguments].concat())? { Ok(()) } else { Err(format!("corpus {} failed", arguments.join(" "))) }
}

/// Returns the length limit of inputs. Longer inputs only slow the fuzzer down: where length matters, the targets generate it.
fn longest_input(target: &str) -> u32 {
    match target {
        // A journal starts with a header of 4 KiB.
        "agent_journal" => 6144,
        _ => 4096,
    }
}

/// Runs the command in a process group of its own, so that the guard can end it, with its output in a file.
fn watched(mut command: Command, log: &Path, scratch: &Path, guard: &mut Guard) -> Result<bool, String> {
    let file = std::fs::File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let also = file.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
    command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(also).env("TMPDIR", scratch);
    let mut child = command.spawn().map_err(cannot_start)?;
    guard.running(child.id())?;
    let succeeded = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?.success();
    guard.end(child.id())?;
    Ok(succeeded)
}

fn summary(outcomes: &[Outcome]) -> bool {
    println!("\n==> summary");
    let head = ["target", "minutes", "executions", "edges", "memory", "slowest", "corpus", "findings"];
    let [target, minutes, executions, edges, memory, slowest, corpus, findings] = head;
    println!("    {target:<14} {minutes:>7} {executions:>11} {edges:>6} {memory:>8} {slowest:>7} {corpus:>20} {findings:>8}");
    for outcome in outcomes {
        let log::Figures { seconds, executions, edges, peak_mib, slowest_seconds } = outcome.figures;
        let minutes = format!("{}:{:02}", seconds / 60, seconds % 60);
        let corpus = format!("{} inputs, {} KiB", outcome.corpus.0, outcome.corpus.1.div_ceil(1024));
        let (memory, slowest) = (format!("{peak_mib} MiB"), format!("{slowest_seconds} s"));
        let findings = outcome.findings.len();
        println!(
            "    {:<14} {minutes:>7} {executions:>11} {edges:>6} {memory:>8} {slowest:>7} {corpus:>20} {findings:>8}",
            outcome.target
        );
    }
    outcomes.iter().all(|outcome| outcome.findings.is_empty())
}

/// Returns the names of the targets, from the file names of their shims.
fn targets() -> Result<Vec<String>, String> {
    let names = files(&cargo::workspace().join("fuzz/fuzz_targets")).into_iter();
    let names: Vec<String> = names.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    if names.is_empty() { Err("there are no targets in fuzz/fuzz_targets".to_owned()) } else { Ok(names) }
}

/// Returns the files of a folder, sorted by name; none if the folder cannot be read.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Returns a command that runs the nightly cargo. It goes through rustup, because cargo itself cannot switch toolchains.
fn nightly(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).current_dir(cargo::workspace());
    // These are set by the cargo that runs this program, and would mislead the other one.
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_MANIFEST_DIR"] {
        command.env_remove(variable);
    }
    command
}

fn ensure_nightly() -> Result<(), String> {
    if requirements::in_path("rustup").is_none() {
        return Err("fuzzing needs a nightly compiler, and there is no rustup to find one with (https://rustup.rs)".to_owned());
    }
    let found = nightly(&["--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(cannot_start)?;
    if found.success() {
        return Ok(());
    }
    Err("fuzzing needs a nightly compiler; install one with: rustup toolchain install nightly --profile minimal".to_owned())
}

fn ensure_cargo_fuzz() -> Result<(), String> {
    let found = nightly(&["fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(cannot_start)?;
    if found.success() {
        return Ok(());
    }
    println!("==> cargo install cargo-fuzz --locked");
    if cargo::run(&["install", "cargo-fuzz", "--locked"])? {
        return Ok(());
    }
    Err("cargo-fuzz could not be installed (is there a network?); install it with: cargo install cargo-fuzz --locked".to_owned())
}

fn cannot_start(error: std::io::Error) -> String {
    format!("rustup cannot be started: {error}")
}
