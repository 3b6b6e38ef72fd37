//! The log buffer on disk: task logs wait here until the control plane has stored them.
//!
//! Lines are kept in segments under `<state_dir>/logs/`, with a size limit. When it is reached, the oldest segment is dropped,
//! and the next line of the task reports the gap (`dropped`). Lines survive a restart of the agent and an outage of the control
//! plane. They are written to the file at once but not fsynced: a power cut may lose the lines of the last seconds. What must not
//! be lost is in the receipt, not in the log.
//!
//! One thread owns the files. Lines are sent in order and removed when their position is acknowledged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::{LogLine, LogPosition};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::private_file;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};

/// Longest text of one line; the rest is cut off.
const MAX_TEXT: usize = 8 * 1024;
/// Maximum number of lines that are sent and not acknowledged.
const WINDOW_LINES: usize = 4096;
/// Maximum number of lines and bytes of one batch.
const BATCH_LINES: usize = 1000;
const BATCH_BYTES: usize = 256 * 1024;
/// Maximum number of lines that wait for the thread.
const QUEUE: usize = 1024;
/// Entry header: length and checksum.
const ENTRY_HEADER: usize = 8;
/// Longest valid entry.
const MAX_ENTRY: usize = MAX_TEXT + 1024;

/// The log buffer. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    commands: mpsc::Sender<Command>,
    appended: watch::Receiver<u64>,
}

/// Why the buffer cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The folder cannot be used.
    #[error("the log buffer {path} cannot be opened", path = .path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The folder cannot be created.
    #[error("the log buffer cannot be opened")]
    Folder(#[from] private_file::PrivateFileError),
}

#[derive(Debug)]
enum Command {
    Append { task_id: TaskId, at: Timestamp, stream: &'static str, text: String },
    Close { task_id: TaskId },
    Rewind,
    Read { reply: oneshot::Sender<Vec<LogLine>> },
    Ack { positions: Vec<LogPosition> },
    Flush { reply: oneshot::Sender<()> },
}

impl Spool {
    /// Opens the buffer in `folder` with a limit of `cap` bytes. Blocks while it reads the segments.
    pub(crate) fn open(folder: &Path, cap: u64) -> Result<Self, SpoolError> {
        private_file::make_folder(folder)?;
        let fail = |source| SpoolError::Io { path: folder.to_owned(), source };
        let (announce, appended) = watch::channel(0);
        let mut store = Store::open(folder, cap, announce).map_err(fail)?;
        let (commands, mut queue) = mpsc::channel(QUEUE);
        let run = move || {
            while let Some(command) = queue.blocking_recv() {
                store.serve(command);
            }
            store.save_state();
        };
        gpuaas_runtime::spawn_thread("log-buffer", run).map_err(fail)?;
        Ok(Self { commands, appended })
    }

    /// Adds a line. Waits only for the disk.
    pub(crate) async fn append(&self, task_id: TaskId, stream: &'static str, text: String) {
        // The thread ends only with the agent.
        let _ = self.commands.send(Command::Append { task_id, at: Timestamp::now(), stream, text }).await;
        self.settle().await;
    }

    /// Records that the task writes no more lines.
    pub(crate) async fn close(&self, task_id: TaskId) {
        let _ = self.commands.send(Command::Close { task_id }).await;
        self.settle().await;
    }

    /// Restarts at the first line that is not acknowledged: a new link has no state of the old one.
    pub(crate) async fn rewind(&self) {
        let _ = self.commands.send(Command::Rewind).await;
        self.settle().await;
    }

    /// Returns the next lines to send; empty if there are none or too many are unacknowledged.
    pub(crate) async fn next_batch(&self) -> Vec<LogLine> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Read { reply }).await;
        gpuaas_runtime::answer(answer).await.unwrap_or_default()
    }

    /// Records that the control plane has everything up to these positions.
    pub(crate) async fn acknowledge(&self, positions: Vec<LogPosition>) {
        let _ = self.commands.send(Command::Ack { positions }).await;
        self.settle().await;
    }

    /// Waits until every earlier line is in its file.
    pub(crate) async fn flush(&self) {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Flush { reply }).await;
        let _ = gpuaas_runtime::answer(answer).await;
    }

    /// Waits for the thread in a simulation, where nothing may depend on its timing.
    async fn settle(&self) {
        if gpuaas_runtime::is_simulated() {
            self.flush().await;
        }
    }

    /// Returns a watch that changes whenever there may be something to send.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.appended.clone()
    }
}

/// A position between two lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Cursor {
    segment: u64,
    offset: u64,
}

/// The progress of a task's lines.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Progress {
    /// Sequence of the last written line.
    written: u64,
    /// Sequence of the last acknowledged line.
    acknowledged: u64,
    /// Sequence of the last sent line; every link starts over at `acknowledged`.
    #[serde(skip)]
    shipped: u64,
    /// Whether no more lines will come.
    closed: bool,
}

/// Kept across restarts, in `state.json`.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct State {
    acknowledged: Cursor,
    tasks: BTreeMap<TaskId, Progress>,
}

#[derive(Debug)]
struct Segment {
    id: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Store {
    folder: PathBuf,
    cap: u64,
    segment_cap: u64,
    segments: VecDeque<Segment>,
    /// The last segment, open for writing.
    writer: Option<File>,
    state: State,
    read_at: Cursor,
    /// Sent and not acknowledged: the end of each line.
    shipped: VecDeque<(TaskId, u64, Cursor)>,
    announce: watch::Sender<u64>,
    write_errors: u64,
}

impl Store {
    fn open(folder: &Path, cap: u64, announce: watch::Sender<u64>) -> io::Result<Self> {
        let state = std::fs::read(folder.join("state.json")).ok();
        // A lost or damaged state only means that lines are sent again; the control plane recognizes them by sequence.
        let state = state.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let mut store = Self {
            folder: folder.to_owned(),
            cap,
            segment_cap: (cap / 8).clamp(4096, 1 << 20),
            segments: VecDeque::new(),
            writer: None,
            state,
            read_at: Cursor::default(),
            shipped: VecDeque::new(),
            announce,
            write_errors: 0,
        };
        let mut ids: Vec<u64> = std::fs::read_dir(folder)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".seg")?.parse().ok())
            .collect();
        ids.sort_unstable();
        for id in ids {
            store.take_in(id)?;
        }
        store.rewind();
        Ok(store)
    }

    /// Reads a segment of an earlier run: its sequences, and the end of its last valid line.
    fn take_in(&mut self, id: u64) -> io::Result<()> {
        let path = self.segment_path(id);
        let mut end = 0;
        let mut reader = BufReader::new(File::open(&path)?);
        while let Some((line, length)) = read_entry(&mut reader)? {
            end += length;
            if let Ok(task_id) = line.task_id.parse::<TaskId>() {
                let progress = self.state.tasks.entry(task_id).or_default();
                progress.written = progress.written.max(line.sequence);
            }
        }
        if end < path.metadata()?.len() {
            OpenOptions::new().write(true).open(&path)?.set_len(end)?;
        }
        self.segments.push_back(Segment { id, bytes: end });
        Ok(())
    }

    fn serve(&mut self, command: Command) {
        match command {
            Command::Append { task_id, at, stream, text } => self.append(task_id, at, stream, text),
            Command::Close { task_id } => {
                if let Some(progress) = self.state.tasks.get_mut(&task_id) {
                    progress.closed = true;
                }
                self.forget_done();
            }
            Command::Rewind => self.rewind(),
            Command::Read { reply } => {
                // A session that ended in the meantime rewinds before it reads again.
                let _ = reply.send(self.read_batch());
            }
            Command::Ack { positions } => self.acknowledge(&positions),
            Command::Flush { reply } => {
                let _ = reply.send(());
            }
        }
    }

    fn append(&mut self, task_id: TaskId, at: Timestamp, stream: &str, mut text: String) {
        if text.len() > MAX_TEXT {
            let cut = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(cut);
            text.push_str(" [line cut]");
        }
        let progress = self.state.tasks.entry(task_id).or_default();
        progress.written += 1;
        let line = LogLine {
            task_id: task_id.to_string(),
            sequence: progress.written,
            at_us: at.0,
            stream: stream.to_owned(),
            text,
            dropped: 0,
        };
        // A line that cannot be written leaves a gap in the sequence, which shows that it is missing.
        if let Err(error) = self.write(&encode_entry(&line)) {
            self.write_errors += 1;
            if self.write_errors.is_power_of_two() {
                tracing::warn!(%error, lost = self.write_errors, "task log lines cannot be written; check the free disk space");
            }
            self.writer = None;
        }
        self.announce.send_modify(|count| *count += 1);
    }

    fn write(&mut self, entry: &[u8]) -> io::Result<()> {
        let length = u64::try_from(entry.len()).unwrap_or(u64::MAX);
        let full = self.segments.back().is_none_or(|last| last.bytes + length > self.segment_cap);
        if full {
            let id = self.segments.back().map_or(self.state.acknowledged.segment.max(self.read_at.segment), |last| last.id) + 1;
            let path = self.segment_path(id);
            self.writer = Some(OpenOptions::new().create(true).append(true).mode(0o600).open(path)?);
            self.segments.push_back(Segment { id, bytes: 0 });
            self.make_room();
        }
        let Some(last) = self.segments.back_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let path = self.folder.join(format!("{:012}.seg", last.id));
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
                // A write that failed halfway left invalid bytes.
                file.set_len(last.bytes)?;
                self.writer.insert(file)
            }
        };
        writer.write_all(entry)?;
        last.bytes += length;
        Ok(())
    }

    /// Drops the oldest segments until the rest fits.
    fn make_room(&mut self) {
        while self.segments.len() > 1 && self.segments.iter().map(|s| s.bytes).sum::<u64>() + self.segment_cap > self.cap {
            let Some(oldest) = self.segments.pop_front() else { return };
            let lost = self.unshipped_in(oldest.id);
            let _ = std::fs::remove_file(self.segment_path(oldest.id));
            let next = Cursor { segment: self.segments.front().map_or(oldest.id + 1, |s| s.id), offset: 0 };
            if self.read_at.segment <= oldest.id {
                self.read_at = next;
            }
            if self.state.acknowledged.segment <= oldest.id {
                self.state.acknowledged = next;
            }
            tracing::warn!(lines = lost.values().sum::<u64>(), "log buffer is full; its oldest lines were dropped");
            for task_id in lost.into_keys() {
                // A task that writes no more needs a last line for the count.
                if self.state.tasks.get(&task_id).is_some_and(|progress| progress.closed) {
                    let text = "the host's log buffer was full; earlier lines of this task were dropped".to_owned();
                    self.append(task_id, Timestamp::now(), "agent", text);
                }
            }
        }
    }

    fn unshipped_in(&self, segment: u64) -> HashMap<TaskId, u64> {
        let mut counts = HashMap::new();
        let start = if self.read_at.segment == segment { self.read_at.offset } else { 0 };
        if self.read_at.segment > segment {
            return counts;
        }
        let Ok(mut file) = File::open(self.segment_path(segment)) else { return counts };
        if file.seek(SeekFrom::Start(start)).is_err() {
            return counts;
        }
        while let Ok(Some((line, _))) = read_entry(&mut file) {
            if let Ok(task_id) = line.task_id.parse() {
                *counts.entry(task_id).or_default() += 1;
            }
        }
        counts
    }

    fn rewind(&mut self) {
        let first = self.segments.front().map_or(0, |segment| segment.id);
        if self.state.acknowledged.segment < first {
            self.state.acknowledged = Cursor { segment: first, offset: 0 };
        }
        self.read_at = self.state.acknowledged;
        self.shipped.clear();
        for progress in self.state.tasks.values_mut() {
            progress.shipped = progress.acknowledged;
        }
        self.announce.send_modify(|count| *count += 1);
    }

    fn read_batch(&mut self) -> Vec<LogLine> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut reader = None;
        while batch.len() < BATCH_LINES && bytes < BATCH_BYTES && self.shipped.len() < WINDOW_LINES {
            let Some((mut line, length)) = self.read_next(&mut reader) else { break };
            self.read_at.offset += length;
            let Ok(task_id) = line.task_id.parse::<TaskId>() else { continue };
            let progress = self.state.tasks.entry(task_id).or_default();
            if line.sequence <= progress.acknowledged {
                continue;
            }
            line.dropped = line.sequence - 1 - progress.shipped.min(line.sequence - 1);
            progress.shipped = line.sequence;
            bytes += line.encoded_len();
            self.shipped.push_back((task_id, line.sequence, self.read_at));
            batch.push(line);
        }
        batch
    }

    /// Reads the line at the cursor, and moves the cursor to the next segment at the end of one. `reader` keeps the segment open
    /// between calls.
    fn read_next(&mut self, reader: &mut Option<(u64, BufReader<File>)>) -> Option<(LogLine, u64)> {
        loop {
            let position = self.segments.iter().position(|s| s.id >= self.read_at.segment)?;
            let segment = &self.segments[position];
            if segment.id > self.read_at.segment {
                self.read_at = Cursor { segment: segment.id, offset: 0 };
            }
            if self.read_at.offset < segment.bytes {
                let entry = match reader {
                    Some((id, file)) if *id == segment.id => read_entry(file),
                    Some(_) | None => File::open(self.segment_path(segment.id)).and_then(|mut file| {
                        file.seek(SeekFrom::Start(self.read_at.offset))?;
                        let (_, file) = reader.insert((segment.id, BufReader::new(file)));
                        read_entry(file)
                    }),
                };
                match entry {
                    Ok(Some(found)) => return Some(found),
                    Ok(None) | Err(_) => {
                        // Unreadable from here on: the gap in the sequences shows what is missing.
                        self.read_at.offset = segment.bytes;
                    }
                }
            }
            let next = self.segments.get(position + 1)?;
            self.read_at = Cursor { segment: next.id, offset: 0 };
        }
    }

    fn acknowledge(&mut self, positions: &[LogPosition]) {
        for position in positions {
            let Ok(task_id) = position.task_id.parse::<TaskId>() else { continue };
            if let Some(progress) = self.state.tasks.get_mut(&task_id) {
                progress.acknowledged = progress.acknowledged.max(position.sequence.min(progress.shipped));
            }
        }
        while let Some((task_id, sequence, end)) = self.shipped.front() {
            if self.state.tasks.get(task_id).is_some_and(|progress| progress.acknowledged < *sequence) {
                break;
            }
            self.state.acknowledged = *end;
            self.shipped.pop_front();
        }
        self.forget_done();
        // The state first: a crash in between must not lose sequences that are in no segment any more.
        self.save_state();
        while self.segments.len() > 1 && self.segments.front().is_some_and(|s| s.id < self.state.acknowledged.segment) {
            if let Some(segment) = self.segments.pop_front() {
                let _ = std::fs::remove_file(self.segment_path(segment.id));
            }
        }
        self.announce.send_modify(|count| *count += 1);
    }

    fn forget_done(&mut self) {
        self.state.tasks.retain(|_, progress| !progress.closed || progress.acknowledged < progress.written);
    }

    fn save_state(&self) {
        let temporary = self.folder.join("state.json.tmp");
        let saved = serde_json::to_vec(&self.state)
            .map_err(io::Error::other)
            .and_then(|bytes| std::fs::write(&temporary, bytes))
            .and_then(|()| std::fs::rename(&temporary, self.folder.join("state.json")));
        if let Err(error) = saved {
            tracing::debug!(%error, "log positions could not be saved; lines may be sent twice after a restart");
        }
    }

    fn segment_path(&self, id: u64) -> PathBuf {
        self.folder.join(format!("{id:012}.seg"))
    }
}

fn encode_entry(line: &LogLine) -> Vec<u8> {
    let body = line.encode_to_vec();
    let mut entry = Vec::with_capacity(ENTRY_HEADER + body.len());
    entry.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
    entry.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    entry.extend_from_slice(&body);
    entry
}

/// Returns the next line and its size, or `None` at the end or at the first invalid byte.
fn read_entry(file: &mut impl Read) -> io::Result<Option<(LogLine, u64)>> {
    let mut header = [0_u8; ENTRY_HEADER];
    if !fill(file, &mut header)? {
        return Ok(None);
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let length = usize::try_from(word(0)).unwrap_or(usize::MAX);
    if length > MAX_ENTRY {
        return Ok(None);
    }
    let mut body = vec![0; length];
    if !fill(file, &mut body)? || crc32fast::hash(&body) != word(4) {
        return Ok(None);
    }
    let line = LogLine::decode(body.as_slice()).ok();
    Ok(line.map(|line| (line, u64::try_from(ENTRY_HEADER + length).unwrap_or(u64::MAX))))
}

fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
