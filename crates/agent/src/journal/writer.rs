//! The journal's only writer: grouped appends, compaction, and reserved space for receipts.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuaas_contract::time::Timestamp;
use gpuaas_host::private_file;
use tokio::sync::{mpsc, oneshot};

use super::file::{self, FILE_HEADER, FileHeader, Found, JournalId};
use super::index::{Index, Keep, Kept};
use super::record::{self, Location, Record};
use super::{AppendError, JournalError, RESERVED_PER_TASK, Shared, Stored, Summary};

/// Maximum number of records that share one sync.
const GROUP: usize = 256;

/// A record to append.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) record: Record,
    pub(super) blob: Vec<u8>,
    /// A record to write together with it, or not at all.
    pub(super) also: Option<Record>,
    pub(super) reply: oneshot::Sender<Result<(), AppendError>>,
}

/// State of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    file: Arc<File>,
    capacity: u64,
    end: u64,
    sequence: u64,
    /// Compaction is not tried again before the file has grown to this.
    compact_at: u64,
    failed: Option<String>,
}

/// An opened journal.
pub(super) struct Opening {
    pub(super) stored: Stored,
    pub(super) writer: Writer,
    /// Messages about repairs.
    pub(super) notices: Vec<String>,
    /// Whether records were lost.
    pub(super) damaged: bool,
}

/// Opens or creates the file, repairs it, and resizes it.
///
/// With `doubtful`, the earlier content of the journal is unknown: tasks created before now are then not run.
pub(super) fn open(path: &Path, wanted: u64, now: Timestamp, doubtful: bool) -> Result<Opening, JournalError> {
    let wanted = wanted.next_multiple_of(8);
    let fail = |what| move |source| JournalError::Io { what, path: path.to_owned(), source };
    let _ = std::fs::remove_file(path.with_extension("new"));
    let mut notices = Vec::new();
    let mut lost = doubtful;
    if !path.exists() {
        make(path, wanted, if doubtful { file::REPAIRING } else { FILE_HEADER })?;
    }
    let open_file = || std::fs::OpenOptions::new().read(true).write(true).open(path);
    let mut file = open_file().map_err(fail("opened"))?;
    match file::read_header(&file).map_err(fail("read"))? {
        FileHeader::Good => {}
        FileHeader::Newer(version) => return Err(JournalError::Newer { path: path.to_owned(), version }),
        FileHeader::Bad => {
            let put_aside;
            (file, put_aside) = mend_header(path, file, wanted, &mut notices)?;
            lost |= put_aside;
        }
    }
    let mut capacity = file.metadata().map_err(fail("read"))?.len() / 8 * 8;
    let mut index = Index::default();
    let scan = file::scan(&file, path, capacity, |found| match found {
        Found::Record(at, decoded) => index.apply(&decoded.record, at),
        Found::Damage => index.note_damage(),
    })
    .map_err(fail("read"))?;
    notices.extend(scan.notices);
    let missing = match scan.confirmed {
        Some(confirmed) if confirmed <= scan.end => false,
        Some(file::REPAIRING) if lost => true,
        Some(file::REPAIRING) => {
            notices.push("a repair of the journal had been cut off and was completed".to_owned());
            true
        }
        Some(confirmed) => {
            let bytes = confirmed - scan.end;
            notices
                .push(format!("the last {bytes} bytes of the journal's records are lost; tasks signed before now are not run"));
            true
        }
        None => {
            notices.push("the journal's record of its end was damaged and has been repaired".to_owned());
            true
        }
    };
    lost |= missing;
    if lost {
        index.note_damage();
        if capacity < wanted {
            // The file was truncated: the records about the repair need space.
            grow(&file, path, capacity, wanted)?;
            capacity = wanted;
        }
    }

    let file = Arc::new(file);
    let mut writer = Writer {
        path: path.to_owned(),
        file: Arc::clone(&file),
        capacity,
        end: scan.end,
        sequence: scan.last_sequence,
        compact_at: 0,
        failed: None,
    };
    let mut stored = Stored { file, index, sequence: scan.last_sequence };
    let damaged = scan.damaged_inside || lost;
    let mut repairs = Vec::new();
    if damaged {
        repairs.push(Record::Fence { issued_until: now.max(stored.index.highest_time) });
    }
    // A start whose record may have been lost counts as a start: running a task twice is worse than not at all.
    let started = |task| Record::Started { task, attempt: 1, at: now };
    repairs.extend(stored.index.doubtful().into_iter().map(started));
    writer.repair(&mut stored, &repairs)?;
    capacity = writer.capacity;
    // The scan may have written another value than the one it read.
    if scan.damaged_inside || scan.confirmed != Some(writer.end) {
        // The last step of a repair. What was read and never synced is synced before anything acts on it.
        file::confirm(&writer.file, writer.end).map_err(fail("repaired"))?;
    }
    if capacity != wanted {
        // The setting changed. If the content does not fit now, the old size stays.
        match writer.compact(&mut Direct(&mut stored), wanted, now) {
            Ok(true) => notices.push(format!("the journal now has {wanted} bytes instead of {capacity}")),
            Ok(false) => notices
                .push(format!("journal_bytes = {wanted} is too small for what the journal holds; it keeps {capacity} bytes")),
            Err(error) => {
                notices.push(format!("the journal could not be resized to {wanted} bytes ({error}); it keeps {capacity} bytes"))
            }
        }
    }
    Ok(Opening { stored, writer, notices, damaged })
}

/// Reads the file without repairing it.
pub(super) fn inspect(path: &Path) -> Result<Summary, JournalError> {
    let fail = |source| JournalError::Io { what: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let capacity = file.metadata().map_err(fail)?.len() / 8 * 8;
    let sound = matches!(file::read_header(&file).map_err(fail)?, FileHeader::Good);
    let confirmed = file::confirmed_end(&file).map_err(fail)?;
    let mut index = Index::default();
    let mut damaged = !sound;
    let end = file::walk(&file, capacity, |found| match found {
        Found::Record(at, decoded) => index.apply(&decoded.record, at),
        Found::Damage => damaged = true,
    })
    .map_err(fail)?;
    damaged |= confirmed.is_none_or(|confirmed| confirmed > end);
    let used_percent = end.saturating_mul(100) / capacity.max(1);
    Ok(Summary { damaged, used_percent, in_flight: index.in_flight, unreported: index.unreported_count() })
}

/// Extends a truncated file. After `whole` there is at most a part of eight bytes that was not scanned: in the middle of the file
/// it would be damage.
fn grow(file: &File, path: &Path, whole: u64, bytes: u64) -> Result<(), JournalError> {
    let grown = file.set_len(whole).and_then(|()| file::allocate(file, bytes)).and_then(|()| file.sync_all());
    grown.map_err(|source| {
        if source.kind() == io::ErrorKind::StorageFull {
            return JournalError::NoSpace { path: path.to_owned(), bytes };
        }
        JournalError::Io { what: "repaired", path: path.to_owned(), source }
    })
}

fn make(path: &Path, capacity: u64, confirmed: u64) -> Result<(), JournalError> {
    let temporary = path.with_extension("new");
    let made = file::create(&temporary, capacity)
        .and_then(|file| {
            file::confirm(&file, confirmed)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&temporary, path))
        .and_then(|()| File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all());
    made.map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        if source.kind() == io::ErrorKind::StorageFull {
            JournalError::NoSpace { path: path.to_owned(), bytes: capacity }
        } else {
            JournalError::Io { what: "made", path: path.to_owned(), source }
        }
    })
}

/// Repairs a damaged header. A journal with a damaged header still has its records; a file without any is set aside. Returns
/// whether it was.
fn mend_header(path: &Path, file: File, wanted: u64, notices: &mut Vec<String>) -> Result<(File, bool), JournalError> {
    let fail = |what| move |source| JournalError::Io { what, path: path.to_owned(), source };
    let capacity = file.metadata().map_err(fail("read"))?.len() / 8 * 8;
    if file::has_records(&file, capacity).map_err(fail("read"))? {
        file::repair_header(&file).map_err(fail("repaired"))?;
        notices.push("the first bytes of the journal were damaged and have been repaired".to_owned());
        return Ok((file, false));
    }
    let aside = file::free_damaged_name(path).unwrap_or_else(|| path.with_extension("damaged"));
    // A hard link and not a rename, so that there is a journal at every moment: a missing one would count as new.
    std::fs::hard_link(path, &aside).map_err(fail("put aside"))?;
    notices
        .push(format!("the journal held no readable record; it was set aside as {} and a new one was created", aside.display()));
    make(path, wanted, file::REPAIRING)?;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(fail("opened"))?;
    Ok((file, true))
}

impl Writer {
    /// Returns the number of the last record.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the journal's id. Creates one if it has none.
    pub(super) fn identify(&self) -> Result<JournalId, JournalError> {
        let fail = |what| move |source| JournalError::Io { what, path: self.path.clone(), source };
        if let Some(id) = file::read_id(&self.file).map_err(fail("read"))? {
            return Ok(id);
        }
        let id = JournalId::generate().map_err(fail("named"))?;
        file::write_id(&self.file, id).and_then(|()| self.file.sync_all()).map_err(fail("named"))?;
        Ok(id)
    }

    /// Runs until all senders are dropped.
    pub(super) fn run(mut self, shared: &Shared, mut queue: mpsc::Receiver<Command>) {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = queue.blocking_recv() {
            group.push(first);
            while group.len() < GROUP
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            self.serve(shared, &mut group);
        }
    }

    /// Writes the queued records in order, with as few syncs as possible.
    pub(super) fn serve(&mut self, shared: &Shared, group: &mut Vec<Command>) {
        let mut waiting: VecDeque<Command> = group.drain(..).collect();
        while !waiting.is_empty() {
            self.serve_together(shared, &mut waiting);
        }
    }

    /// Writes the records that can share one sync, then sends their results.
    fn serve_together(&mut self, shared: &Shared, waiting: &mut VecDeque<Command>) {
        let mut admitted = Vec::with_capacity(waiting.len());
        let mut bytes = Vec::new();
        let mut newly_in_flight = 0;
        while let Some(command) = waiting.pop_front() {
            match self.admit(shared, &command, newly_in_flight, &bytes) {
                // Compaction may free space, but not behind records that already have their position.
                Err(AppendError::Full) if !bytes.is_empty() => {
                    waiting.push_front(command);
                    break;
                }
                Ok((mut encoded, mut sequence)) => {
                    // A small record of a task uses the task's reserved space.
                    let alone = u64::try_from(encoded.len()).unwrap_or(u64::MAX);
                    if let Some(also) = command.also.as_ref().and_then(|also| record::encode(also, &[], sequence + 1)) {
                        encoded.extend_from_slice(&also);
                        sequence += 1;
                    }
                    if matches!(command.record, Record::Accepted { .. }) {
                        newly_in_flight += 1;
                    }
                    let behind = u64::try_from(encoded.len()).unwrap_or(u64::MAX) - alone;
                    let offset = self.end + u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    self.sequence = sequence;
                    bytes.extend_from_slice(&encoded);
                    let at = Location { offset, length: alone };
                    admitted.push((command, at, Location { offset: offset + alone, length: behind }));
                }
                Err(error) => {
                    // The caller may be gone and not need the result.
                    let _ = command.reply.send(Err(error));
                }
            }
        }
        if admitted.is_empty() {
            return;
        }
        let written = match gpuaas_runtime::broken("agent.journal") {
            true => Ok(()),
            false => self.file.write_all_at(&bytes, self.end).and_then(|()| self.file.sync_data()),
        };
        if let Err(error) = written {
            tracing::error!(%error, path = %self.path.display(), "journal cannot be written; nothing more will be recorded");
            self.failed = Some(error.to_string());
            for (command, ..) in admitted {
                let _ = command.reply.send(Err(AppendError::Failed(error.to_string())));
            }
            return;
        }
        self.end += u64::try_from(bytes.len()).unwrap_or(0);
        // Before the results are sent, so that everything a caller relies on is confirmed.
        if let Err(error) = file::confirm(&self.file, self.end) {
            tracing::error!(%error, path = %self.path.display(), "journal cannot be written; nothing more will be recorded");
            self.failed = Some(error.to_string());
        }
        let mut stored = shared.lock();
        stored.sequence = self.sequence;
        for (command, at, behind) in &admitted {
            stored.index.apply(&command.record, *at);
            if let Some(also) = &command.also {
                stored.index.apply(also, *behind);
            }
        }
        drop(stored);
        for (command, ..) in admitted {
            let _ = command.reply.send(Ok(()));
        }
        self.compact_if_worthwhile(shared);
    }

    /// Encodes the record if there is space for it beside everything that is reserved.
    fn admit(&mut self, shared: &Shared, command: &Command, newly: usize, group: &[u8]) -> Result<(Vec<u8>, u64), AppendError> {
        if let Some(reason) = &self.failed {
            return Err(AppendError::Failed(reason.clone()));
        }
        let sequence = self.sequence + 1;
        let encoded = record::encode(&command.record, &command.blob, sequence).ok_or(AppendError::TooLarge)?;
        let length = u64::try_from(encoded.len()).unwrap_or(u64::MAX);
        let stored = shared.lock();
        let in_flight = stored.index.in_flight + newly;
        // Records of accepted tasks may use their reserved space; new tasks must leave it untouched.
        let promised_tasks = match &command.record {
            Record::Accepted { .. } => in_flight + 1,
            Record::Finished { task_id, .. } if stored.index.get(*task_id).is_none() => in_flight,
            Record::Started { .. }
            | Record::Phase { .. }
            | Record::Finished { .. }
            | Record::Reported { .. }
            | Record::HighestTime { .. }
            | Record::EpochReset { .. }
            | Record::EpochKnown { .. }
            | Record::Chain { .. }
            | Record::Remembered { .. }
            | Record::Fence { .. } => 0,
        };
        drop(stored);
        let promised = RESERVED_PER_TASK.saturating_mul(u64::try_from(promised_tasks).unwrap_or(u64::MAX));
        let used = self.end + u64::try_from(group.len()).unwrap_or(u64::MAX);
        if used.saturating_add(length).saturating_add(promised) <= self.capacity {
            return Ok((encoded, sequence));
        }
        self.compact_at = 0;
        if group.is_empty() {
            let compacted = self.compact(&mut &*shared, self.capacity, Timestamp::now());
            if matches!(compacted, Ok(true)) && self.end.saturating_add(length).saturating_add(promised) <= self.capacity {
                let sequence = self.sequence + 1;
                let encoded = record::encode(&command.record, &command.blob, sequence).ok_or(AppendError::TooLarge)?;
                return Ok((encoded, sequence));
            }
        }
        Err(AppendError::Full)
    }

    fn compact_if_worthwhile(&mut self, shared: &Shared) {
        let full = self.end > self.capacity / 100 * 60;
        if !full || self.end < self.compact_at {
            return;
        }
        let now = Timestamp::now();
        let essential = shared.lock().index.essential_bytes(now);
        if self.end.saturating_sub(essential) > self.capacity / 100 * 20
            && let Err(error) = self.compact(&mut &*shared, self.capacity, now)
        {
            tracing::warn!(%error, "journal could not be compacted; continuing with the current one");
        }
        // Not again before there is something new to gain.
        self.compact_at = self.end + self.capacity / 100 * 5;
    }

    /// Writes the live records to a new file of `capacity` bytes and swaps it in. Returns `false` if they would not fit.
    ///
    /// This thread is the only one that changes the journal, so the long part needs no lock.
    fn compact(&mut self, access: &mut impl Access, capacity: u64, now: Timestamp) -> io::Result<bool> {
        let room = capacity.saturating_sub(FILE_HEADER + 4096);
        let Some((head, kept)) = access.with(|stored| plan(&stored.index, room, now)) else {
            return Ok(false);
        };
        let path = self.path.with_extension("new");
        let built = self.build(&path, capacity, head, kept);
        let (file, fresh) = match built {
            Ok(built) => built,
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        };
        tracing::info!(before = self.end, after = FILE_HEADER + fresh.length, "journal compacted");
        self.file = Arc::new(file);
        self.capacity = capacity;
        self.end = FILE_HEADER + fresh.length;
        self.sequence += fresh.count;
        access.with(|stored| {
            stored.file = Arc::clone(&self.file);
            stored.index = fresh.index;
        });
        // The new file is in use now. If its name may not survive a power cut, nothing more may be claimed: the next start would
        // read the old file.
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = private_file::sync_folder(folder) {
            tracing::error!(%error, path = %self.path.display(), "journal's folder cannot be synced; nothing more will be recorded");
            self.failed = Some(error.to_string());
            return Err(io::Error::other(error));
        }
        Ok(true)
    }

    fn build(&self, path: &Path, capacity: u64, head: Vec<Record>, kept: Vec<Kept>) -> io::Result<(File, Fresh)> {
        let mut fresh = Fresh::default();
        let file = file::create(path, capacity)?;
        if let Some(id) = file::read_id(&self.file)? {
            file::write_id(&file, id)?;
        }
        for record in head {
            fresh.push(&file, self.sequence, &record, &[])?;
        }
        for kept in kept {
            match kept {
                Kept::Copy(at) => {
                    let decoded = file::read(&self.file, at)?;
                    fresh.push(&file, self.sequence, &decoded.record, &decoded.blob)?;
                }
                Kept::Reported(_, task_id) => fresh.push(&file, self.sequence, &Record::Reported { task_id }, &[])?,
                Kept::Remembered(task_id, start_by) => {
                    fresh.push(&file, self.sequence, &Record::Remembered { task_id, start_by }, &[])?;
                }
            }
        }
        file::confirm(&file, FILE_HEADER + fresh.length)?;
        file.sync_all()?;
        std::fs::rename(path, &self.path)?;
        Ok((file, fresh))
    }

    /// Writes the records about a repair at open, outside the queue. A full journal that is damaged must still open: the file
    /// then grows, until compaction shrinks it again.
    fn repair(&mut self, stored: &mut Stored, records: &[Record]) -> Result<(), JournalError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Io { what: "repaired", path, source }
        };
        let mut bytes = Vec::new();
        for (record, sequence) in records.iter().zip(self.sequence + 1..) {
            let too_large = || fail(&self.path)(io::Error::other("the record is too large"));
            let encoded = record::encode(record, &[], sequence).ok_or_else(too_large)?;
            let at = Location { offset: self.end + length_of(&bytes), length: length_of(&encoded) };
            stored.index.apply(record, at);
            bytes.extend_from_slice(&encoded);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let end = self.end + length_of(&bytes);
        if end > self.capacity {
            let capacity = end.next_multiple_of(4096);
            grow(&self.file, &self.path, self.capacity, capacity)?;
            self.capacity = capacity;
        }
        self.file.write_all_at(&bytes, self.end).and_then(|()| self.file.sync_data()).map_err(fail(&self.path))?;
        self.sequence += records.len() as u64;
        self.end = end;
        Ok(())
    }
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Access to the index: exclusive at open, later behind its lock.
trait Access {
    fn with<T>(&mut self, work: impl FnOnce(&mut Stored) -> T) -> T;
}

struct Direct<'a>(&'a mut Stored);

impl Access for Direct<'_> {
    fn with<T>(&mut self, work: impl FnOnce(&mut Stored) -> T) -> T {
        work(self.0)
    }
}

impl Access for &Shared {
    fn with<T>(&mut self, work: impl FnOnce(&mut Stored) -> T) -> T {
        work(&mut self.lock())
    }
}

/// Returns the content of the new file, or `None` if it would not leave the reserved space.
fn plan(index: &Index, room: u64, now: Timestamp) -> Option<(Vec<Record>, Vec<Kept>)> {
    let promised = RESERVED_PER_TASK.saturating_mul(u64::try_from(index.in_flight).unwrap_or(u64::MAX));
    if index.essential_bytes(now).saturating_add(promised) > room {
        return None;
    }
    // Receipts of reported tasks are optional: they stay while they take less than a third of the file.
    let keep = if index.live_bytes(now).saturating_add(promised) > room / 3 { Keep::Essentials } else { Keep::Receipts };
    let (kept, past) = index.live(now, keep);
    let mut head = vec![Record::EpochReset { node_epoch: index.node_epoch }, Record::HighestTime { at: past }];
    if index.fence > Timestamp(0) {
        head.push(Record::Fence { issued_until: index.fence });
    }
    if let Some(receipt_digest) = index.chain.digest.clone() {
        head.push(Record::Chain { sequence: index.chain.sequence, receipt_digest });
    }
    Some((head, kept))
}

/// A journal that is written by compaction.
#[derive(Default)]
struct Fresh {
    index: Index,
    length: u64,
    count: u64,
}

impl Fresh {
    fn push(&mut self, file: &File, base: u64, record: &Record, blob: &[u8]) -> io::Result<()> {
        let encoded = record::encode(record, blob, base + self.count + 1).ok_or_else(|| io::Error::other("record too large"))?;
        let at = Location { offset: FILE_HEADER + self.length, length: u64::try_from(encoded.len()).unwrap_or(u64::MAX) };
        file.write_all_at(&encoded, at.offset)?;
        self.index.apply(record, at);
        self.length += at.length;
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gpuaas_contract::Digest;
    use gpuaas_contract::id::{CorrelationId, TaskId};

    use super::super::TaskNote;
    use super::*;

    #[test]
    fn a_burst_is_not_refused_while_compaction_could_make_room() {
        let folder = tempfile::tempdir().expect("folder");
        let Opening { stored, mut writer, .. } =
            open(&folder.path().join("journal"), 8 << 20, Timestamp(1), false).expect("opens");
        let shared = Shared { state: Mutex::new(stored) };
        let id = |n: u8| TaskId::from_bytes([n; 16]);
        let start_by = Timestamp::now();
        let mut serve = |records: Vec<(Record, Vec<u8>)>| {
            let (mut commands, mut answers) = (Vec::new(), Vec::new());
            for (record, blob) in records {
                let (reply, answer) = oneshot::channel();
                commands.push(Command { record, blob, also: None, reply });
                answers.push(answer);
            }
            writer.serve(&shared, &mut commands);
            answers.into_iter().all(|mut answer| answer.try_recv().expect("answered").is_ok())
        };
        // Four megabytes that are no longer needed.
        for n in 0..4 {
            let digest = Digest::of(&[n]);
            let finished = Record::Finished { task_id: id(n), start_by, sequence: u64::from(n) + 1, receipt_digest: digest };
            assert!(serve(vec![(finished, vec![1; 1_000_000]), (Record::Reported { task_id: id(n) }, vec![])]));
        }
        // Five tasks at once fit only without them.
        let accepted = |n: u8| {
            let digest = Digest::of(&[n]);
            let correlation_id = CorrelationId::generate();
            let task = TaskNote { task_id: id(n), task_type: "diag.ping".to_owned(), digest, correlation_id, start_by };
            (Record::Accepted { task, issued_at: Timestamp(1), deadline: start_by }, vec![1; 1000])
        };
        assert!(serve((10..15).map(accepted).collect()), "a task was refused");
        assert_eq!(shared.lock().index.in_flight, 5);
    }

    #[test]
    fn after_a_failed_write_nothing_is_ever_claimed_again() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let Opening { stored, mut writer, .. } = open(&path, 8 << 20, Timestamp(1), false).expect("opens");
        let shared = Shared { state: Mutex::new(stored) };
        let record = |writer: &mut Writer, n: u8| {
            let (reply, mut answer) = oneshot::channel();
            let record = Record::Remembered { task_id: TaskId::from_bytes([n; 16]), start_by: Timestamp(1) };
            writer.serve(&shared, &mut vec![Command { record, blob: Vec::new(), also: None, reply }]);
            answer.try_recv().expect("answered")
        };
        record(&mut writer, 1).expect("works");
        // A read-only descriptor simulates a disk that cannot be written.
        let good = std::mem::replace(&mut writer.file, Arc::new(File::open(&path).expect("opens")));
        assert!(matches!(record(&mut writer, 2), Err(AppendError::Failed(_))));
        writer.file = good;
        assert!(matches!(record(&mut writer, 3), Err(AppendError::Failed(_))), "the disk came back, the trust did not");
        let known = |n| shared.lock().index.get(TaskId::from_bytes([n; 16])).is_some();
        assert_eq!([known(1), known(2), known(3)], [true, false, false]);
    }
}
