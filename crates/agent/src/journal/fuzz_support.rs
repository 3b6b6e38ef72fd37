//! Access to the journal for its fuzz target in `crates/fuzz`: writes journals, opens them and shows all their state.
//!
//! The agent itself does not use it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use gpuaas_contract::Digest;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;
use tokio::sync::oneshot;

use super::file::{self, FILE_HEADER, Found};
use super::index::Entry;
use super::record::{self, Record};
use super::{JournalError, Shared, Stored, Summary, unfinished, writer};

/// A record as JSON, and its blob.
pub type Written = (serde_json::Value, Vec<u8>);

/// The position of a record in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub offset: u64,
    /// Length with header and padding.
    pub length: u64,
    /// Its number.
    pub sequence: u64,
}

/// The journal's state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Whether it is accepted and has not ended.
    pub in_flight: bool,
    /// Number of starts of a task in flight.
    pub attempt: u32,
    /// Whether the control plane has its receipt.
    pub reported: bool,
    /// The envelope of a task in flight, or the receipt of an ended one.
    pub blob: Option<Vec<u8>>,
}

/// All visible state of an open journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// All known tasks.
    pub tasks: BTreeMap<TaskId, Task>,
    /// The counted number of tasks in flight.
    pub in_flight: usize,
    /// Receipts to send, in order.
    pub unreported: Vec<(u64, TaskId)>,
    /// Their counted number.
    pub unreported_count: usize,
    /// The enrollment.
    pub node_epoch: u64,
    /// The latest authenticated time.
    pub highest_time: Timestamp,
    /// Unknown tasks signed until then may have run.
    pub fence: Timestamp,
    /// End of the chain of receipts.
    pub chain: (u64, Option<Digest>),
}

/// An opened journal.
#[derive(Debug)]
pub struct Opened {
    /// Its content.
    pub view: View,
    /// The repairs.
    pub notices: Vec<String>,
    /// Whether records were lost.
    pub damaged: bool,
    /// Which of the appended records were confirmed.
    pub confirmed: Vec<bool>,
}

/// The state that is visible without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Whether it is damaged.
    pub damaged: bool,
    /// Tasks in flight.
    pub in_flight: usize,
    /// Receipts to send.
    pub unreported: usize,
}

/// Creates a journal with these records, numbered from `first`, and returns their positions. Records that do not fit are left
/// out. The last `unconfirmed` of them are not recorded as confirmed.
pub fn write(path: &Path, capacity: u64, records: &[Written], first: u64, unconfirmed: usize) -> std::io::Result<Vec<Place>> {
    let file = file::create(path, capacity)?;
    let mut places: Vec<Place> = Vec::new();
    let mut end = FILE_HEADER;
    for ((json, blob), sequence) in records.iter().zip(first..) {
        let Ok(record) = serde_json::from_value::<Record>(json.clone()) else { continue };
        let Some(bytes) = record::encode(&record, blob, sequence) else { continue };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if end.saturating_add(length) > capacity {
            break;
        }
        file.write_all_at(&bytes, end)?;
        places.push(Place { offset: end, length, sequence });
        end += length;
    }
    let relied_on = places.len().saturating_sub(unconfirmed);
    let confirmed = places[..relied_on].last().map_or(FILE_HEADER, |place| place.offset + place.length);
    file::confirm(&file, confirmed)?;
    Ok(places)
}

/// Reads the records in a file, without opening it as a journal.
pub fn records(path: &Path) -> std::io::Result<Vec<(Place, serde_json::Value)>> {
    let file = File::open(path)?;
    let capacity = file.metadata()?.len() / 8 * 8;
    let mut found = Vec::new();
    file::walk(&file, capacity, |what| {
        if let Found::Record(at, decoded) = what {
            let place = Place { offset: at.offset, length: at.length, sequence: decoded.sequence };
            found.push((place, serde_json::to_value(&decoded.record).unwrap_or_default()));
        }
    })?;
    Ok(found)
}

/// Opens a journal like the agent, appends these records together, and returns its state.
pub fn open(folder: &Path, capacity: u64, now: Timestamp, append: Vec<Written>) -> Result<Opened, JournalError> {
    let path = folder.join("journal");
    let writer::Opening { stored, mut writer, notices, damaged } = writer::open(&path, capacity, now, false)?;
    let shared = Shared { state: std::sync::Mutex::new(stored) };
    unfinished(&shared, &path)?;
    let mut answers = VecDeque::new();
    let mut commands = Vec::new();
    for (json, blob) in append {
        let Ok(record) = serde_json::from_value::<Record>(json) else { continue };
        let (reply, answer) = oneshot::channel();
        commands.push(writer::Command { record, blob, also: None, reply });
        answers.push_back(answer);
    }
    if !commands.is_empty() {
        writer.serve(&shared, &mut commands);
    }
    let confirmed = answers.iter_mut().map(|answer| matches!(answer.try_recv(), Ok(Ok(())))).collect();
    let view = view(&shared.lock()).map_err(|source| JournalError::Io { what: "read", path, source })?;
    Ok(Opened { view, notices, damaged, confirmed })
}

fn view(stored: &Stored) -> std::io::Result<View> {
    let index = &stored.index;
    let mut tasks = BTreeMap::new();
    for (task_id, entry) in index.iter() {
        let (in_flight, attempt, reported, at) = match entry {
            Entry::InFlight(entry) => (true, entry.attempt, false, entry.envelope),
            Entry::Finished { reported, receipt, .. } => (false, 0, *reported, *receipt),
        };
        let blob = at.map(|at| file::read(&stored.file, at)).transpose()?.map(|decoded| decoded.blob);
        tasks.insert(*task_id, Task { in_flight, attempt, reported, blob });
    }
    let next = |sequence| index.unreported_after(sequence).map(|(sequence, task_id, _)| (sequence, task_id));
    let first = next(0);
    // A loop would never end; one more than possible is enough to detect it.
    let unreported = std::iter::successors(first, |(sequence, _)| next(*sequence)).take(tasks.len() + 1).collect();
    Ok(View {
        in_flight: index.in_flight,
        unreported,
        unreported_count: index.unreported_count(),
        node_epoch: index.node_epoch,
        highest_time: index.highest_time,
        fence: index.fence,
        chain: (index.chain.sequence, index.chain.digest.clone()),
        tasks,
    })
}

/// Inspects a journal without changing it.
pub fn inspect(folder: &Path) -> Result<Inspected, JournalError> {
    let Summary { damaged, in_flight, unreported, .. } = writer::inspect(&folder.join("journal"))?;
    Ok(Inspected { damaged, in_flight, unreported })
}
