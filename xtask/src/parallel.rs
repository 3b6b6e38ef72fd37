//! Runs several programs at the same time. Most tests wait rather than compute, so one test program after another would leave the
//! machine idle.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::guard::Guard;

/// A program to run.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// What a program did.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) succeeded: bool,
    pub(crate) seconds: u64,
    /// Everything it printed, as the file is read: both streams in their order.
    pub(crate) output: Vec<u8>,
}

/// Runs the jobs in their order, `width` at a time, and calls `ended` for each as soon as it has ended. Their output goes to files
/// in `folder` meanwhile, so that it is not mixed.
pub(crate) fn run(
    jobs: Vec<Job>,
    width: usize,
    folder: &Path,
    guard: &mut Guard,
    ended: impl FnMut(Outcome) + Send,
) -> Result<(), String> {
    let waiting: Mutex<VecDeque<(usize, Job)>> = Mutex::new(jobs.into_iter().enumerate().collect());
    let (guard, ended) = (Mutex::new(guard), Mutex::new(ended));
    let work = || -> Result<(), String> {
        loop {
            let Some((number, job)) = lock(&waiting).pop_front() else { return Ok(()) };
            let outcome = one(job, &folder.join(format!("output-{number}")), &guard)?;
            lock(&ended)(outcome);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..width.max(1)).map(|_| scope.spawn(work)).collect();
        // Every worker is waited for, also after one has failed.
        let results: Vec<_> =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err("a worker failed".to_owned()))).collect();
        results.into_iter().collect()
    })
}

fn one(job: Job, output: &Path, guard: &Mutex<&mut Guard>) -> Result<Outcome, String> {
    let Job { name, mut command } = job;
    let unusable = |error| format!("{}: {error}", output.display());
    let file = File::create(output).map_err(unusable)?;
    let errors = file.try_clone().map_err(unusable)?;
    // A process group of its own, so that the guard can end the program together with everything it started.
    command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(errors);
    println!("==> {name}");
    let started = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
    let group = child.id();
    lock(guard).running(group)?;
    let status = child.wait().map_err(|error| format!("waiting for {name}: {error}"))?;
    lock(guard).end(group)?;
    let printed = std::fs::read(output).map_err(unusable)?;
    std::fs::remove_file(output).map_err(unusable)?;
    Ok(Outcome { name, succeeded: status.success(), seconds: started.elapsed().as_secs(), output: printed })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_once_and_keeps_its_output_together() {
        let folder = std::env::temp_dir().join(format!("gpuaas-parallel-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder");
        let mut guard = Guard::over(&folder).expect("start the guard");
        let job = |number: u32| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &format!("echo {number} a; echo {number} b >&2; exit {}", number % 2)]);
            Job { name: number.to_string(), command }
        };
        let mut outcomes = Vec::new();
        run((0..7).map(job).collect(), 3, &folder, &mut guard, |outcome| outcomes.push(outcome)).expect("run the jobs");
        drop(guard);
        outcomes.sort_by(|a, b| a.name.cmp(&b.name));
        let seen: Vec<_> =
            outcomes.iter().map(|outcome| (String::from_utf8_lossy(&outcome.output).into_owned(), outcome.succeeded)).collect();
        let expected: Vec<_> = (0..7).map(|number| (format!("{number} a\n{number} b\n"), number % 2 == 0)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let folder = std::env::temp_dir().join(format!("gpuaas-parallel-missing-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder");
        let mut guard = Guard::over(&folder).expect("start the guard");
        let jobs = vec![Job { name: "missing".to_owned(), command: Command::new("/nowhere/missing") }];
        let error = run(jobs, 2, &folder, &mut guard, |_| {}).expect_err("it cannot be started");
        assert!(error.starts_with("missing cannot be started"), "{error}");
    }
}
