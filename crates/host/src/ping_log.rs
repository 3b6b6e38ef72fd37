//! The ping log: one line per run of a `diag.ping`, the smallest effect that can be counted from outside.
//!
//! An append does not check for an earlier line of the task, so that the log shows a task that ran twice. The journal guarantees
//! that this does not happen, and the recovery of a task calls [`PingLog::contains`] first.
//!
//! A line is appended with one write and fsynced before the call returns. A line that was cut by a power failure is removed
//! before the next append, so that the question whether the log has a task's line always has an answer. There is no other writer
//! while the agent runs, so the ids are read once and then cached.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;

/// Size at which the log is rotated.
const ROTATE_AT: u64 = 4 * 1024 * 1024;
/// Longest line; ours are far shorter.
const MAX_LINE: usize = 4096;

/// The log and its one old file.
#[derive(Debug)]
pub struct PingLog {
    path: PathBuf,
    old: PathBuf,
    rotate_at: u64,
    /// Tasks with a line in either file; `None` until they are read. It also serializes appends.
    known: Mutex<Option<HashSet<TaskId>>>,
}

/// The ping log could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the ping log {path}; check the folder and the space on its disk", path = .path.display())]
pub struct PingLogError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl PingLog {
    /// Returns the log `ping.log` in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join("ping.log"), old: folder.join("ping.log.1"), rotate_at: ROTATE_AT, known: Mutex::new(None) }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line of the task. Durable when it returns.
    pub fn append(&self, task_id: TaskId, at: Timestamp, message: &str) -> Result<(), PingLogError> {
        let mut guard = self.lock();
        let fail = |what| move |source| PingLogError { what, path: self.path.clone(), source };
        if self.path.metadata().is_ok_and(|meta| meta.len() >= self.rotate_at) {
            std::fs::rename(&self.path, &self.old).map_err(fail("rotate"))?;
            // The tasks of the removed file are forgotten.
            *guard = None;
        }
        let is_new = !self.path.exists();
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path);
        let mut file = opened.map_err(fail("open"))?;
        cut_torn_line(&mut file).map_err(fail("repair"))?;
        let clean: String = message.chars().filter(|c| !c.is_control()).collect();
        file.write_all(format!("{task_id} {at} {clean}\n").as_bytes()).map_err(fail("write"))?;
        file.sync_all().map_err(fail("fsync"))?;
        if is_new && let Some(folder) = self.path.parent() {
            File::open(folder).and_then(|f| f.sync_all()).map_err(fail("fsync the folder of"))?;
        }
        self.loaded(&mut guard)?.insert(task_id);
        Ok(())
    }

    /// Returns whether the task has a line, in the log or in the old file.
    pub fn contains(&self, task_id: TaskId) -> Result<bool, PingLogError> {
        Ok(self.loaded(&mut self.lock())?.contains(&task_id))
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashSet<TaskId>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loaded<'a>(&self, known: &'a mut Option<HashSet<TaskId>>) -> Result<&'a mut HashSet<TaskId>, PingLogError> {
        if known.is_none() {
            let mut tasks = HashSet::new();
            for path in [&self.path, &self.old] {
                let read = read_tasks(path, &mut tasks);
                read.map_err(|source| PingLogError { what: "read", path: path.clone(), source })?;
            }
            *known = Some(tasks);
        }
        Ok(known.get_or_insert_default())
    }
}

/// Adds the task of every complete line.
fn read_tasks(path: &Path, tasks: &mut HashSet<TaskId>) -> std::io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        if (&mut reader).take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let task = std::str::from_utf8(&line).ok().and_then(|text| text.split(' ').next());
        if line.ends_with(b"\n")
            && let Some(Ok(task)) = task.map(str::parse)
        {
            tasks.insert(task);
        }
    }
}

/// Removes an incomplete last line from the file.
fn cut_torn_line(file: &mut File) -> std::io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    if size == 0 {
        return Ok(());
    }
    let tail = size.min(u64::try_from(MAX_LINE).unwrap_or(u64::MAX));
    file.seek(SeekFrom::End(-i64::try_from(tail).unwrap_or(0)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        return Ok(());
    }
    let keep_of_tail = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let keep = size - tail + u64::try_from(keep_of_tail).unwrap_or(0);
    tracing::warn!(bytes = size - keep, "removed an incomplete line from the ping log");
    file.set_len(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &Path, task: TaskId) -> usize {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(&task.to_string())).count()
    }

    #[test]
    fn a_line_is_found_again_also_by_the_next_process_and_a_second_run_would_show() {
        let folder = tempfile::tempdir().expect("folder");
        let log = PingLog::new(folder.path());
        let task = TaskId::generate();
        assert!(!log.contains(task).expect("reads"));
        log.append(task, Timestamp(0), "hi\nthere").expect("writes");
        assert!(log.contains(task).expect("reads") && PingLog::new(folder.path()).contains(task).expect("reads"));
        assert_eq!(lines_of(log.path(), task), 1);
        log.append(task, Timestamp(0), "hi").expect("writes");
        assert_eq!(lines_of(log.path(), task), 2);
    }

    #[test]
    fn a_torn_line_is_not_an_effect_and_is_written_anew() {
        let folder = tempfile::tempdir().expect("folder");
        let log = PingLog::new(folder.path());
        let (whole, torn) = (TaskId::generate(), TaskId::generate());
        log.append(whole, Timestamp(0), "whole").expect("writes");
        let mut file = OpenOptions::new().append(true).open(log.path()).expect("opens");
        write!(file, "{torn} 1970-01").expect("tears");
        let log = PingLog::new(folder.path());
        assert!(!log.contains(torn).expect("reads"));
        log.append(torn, Timestamp(0), "again").expect("writes");
        assert_eq!((lines_of(log.path(), whole), lines_of(log.path(), torn)), (1, 1));
    }

    #[test]
    fn it_rotates_and_still_knows_the_old_file() {
        let folder = tempfile::tempdir().expect("folder");
        let log = PingLog { rotate_at: 200, ..PingLog::new(folder.path()) };
        let tasks: Vec<_> = (0..4).map(|_| TaskId::generate()).collect();
        for task in &tasks {
            log.append(*task, Timestamp(0), "a message of some length").expect("writes");
        }
        assert!(folder.path().join("ping.log.1").exists());
        assert!(log.contains(tasks[2]).expect("reads") && log.contains(tasks[3]).expect("reads"));
        assert!(folder.path().join("ping.log").metadata().expect("meta").len() < 400);
    }
}
