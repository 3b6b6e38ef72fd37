//! The journal's state in memory: small, without receipts and envelopes, which stay in the file.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::envelope::CLOCK_SKEW;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;

use super::record::{Location, Record, TaskNote};

/// How long after its latest start a finished and reported task is remembered, so that a duplicate still gets the stored receipt.
/// Later duplicates are refused as expired.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The approximate size limit of a record without a blob.
const SMALL_RECORD: u64 = 160;

/// The state from the records read so far.
#[derive(Debug, Default)]
pub(super) struct Index {
    tasks: HashMap<TaskId, Entry>,
    /// Unconfirmed receipts, by sequence.
    unreported: BTreeMap<u64, TaskId>,
    pub(super) in_flight: usize,
    pub(super) node_epoch: u64,
    pub(super) highest_time: Timestamp,
    pub(super) fence: Timestamp,
    pub(super) chain: Chain,
}

/// End of the chain of receipts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Sequence of the last receipt; 0 before the first.
    pub(crate) sequence: u64,
    /// Its digest.
    pub(crate) digest: Option<Digest>,
}

#[derive(Clone, Debug)]
pub(super) enum Entry {
    InFlight(Box<InFlight>),
    Finished { start_by: Timestamp, sequence: u64, reported: bool, receipt: Option<Location> },
}

/// A task that is accepted and not finished.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) note: TaskNote,
    /// The position of the envelope; `None` if that record was lost.
    pub(super) envelope: Option<Location>,
    /// Number of starts; 0 while only accepted.
    pub(super) attempt: u32,
    /// A record after its last one was lost, so it may have started without a trace.
    pub(super) maybe_started: bool,
    /// The first start, if known.
    pub(super) started_at: Option<Timestamp>,
    /// Its records in order, to keep at compaction.
    pub(super) records: Vec<Location>,
}

impl Index {
    /// Applies a record.
    pub(super) fn apply(&mut self, record: &Record, at: Location) {
        match record {
            Record::Accepted { task, issued_at, .. } => {
                self.highest_time = self.highest_time.max(*issued_at);
                // Any earlier record of the task is more advanced than its acceptance.
                if !self.tasks.contains_key(&task.task_id) {
                    let entry = InFlight {
                        note: task.clone(),
                        envelope: Some(at),
                        attempt: 0,
                        maybe_started: false,
                        started_at: None,
                        records: vec![at],
                    };
                    self.put(task.task_id, Entry::InFlight(Box::new(entry)));
                }
            }
            Record::Started { task, attempt, at: started } => {
                let lost_accept = || InFlight {
                    note: task.clone(),
                    envelope: None,
                    attempt: 0,
                    maybe_started: true,
                    started_at: None,
                    records: Vec::new(),
                };
                if !self.tasks.contains_key(&task.task_id) {
                    self.put(task.task_id, Entry::InFlight(Box::new(lost_accept())));
                }
                if let Some(Entry::InFlight(entry)) = self.tasks.get_mut(&task.task_id) {
                    entry.attempt = *attempt;
                    entry.started_at = entry.started_at.or(Some(*started));
                    entry.records.push(at);
                }
            }
            Record::Phase { task_id, .. } => {
                if let Some(Entry::InFlight(entry)) = self.tasks.get_mut(task_id) {
                    entry.records.push(at);
                }
            }
            Record::Finished { task_id, start_by, sequence, receipt_digest } => {
                let entry = Entry::Finished { start_by: *start_by, sequence: *sequence, reported: false, receipt: Some(at) };
                self.put(*task_id, entry);
                self.advance_chain(*sequence, receipt_digest);
            }
            Record::Reported { task_id } => match self.tasks.get_mut(task_id) {
                Some(Entry::Finished { reported, sequence, .. }) => {
                    *reported = true;
                    let sequence = *sequence;
                    self.confirm(sequence, *task_id);
                }
                // Its receipt was lost to damage, but the task has ended: there is nothing to recover.
                Some(Entry::InFlight(entry)) => {
                    let start_by = entry.note.start_by;
                    self.put(*task_id, Entry::Finished { start_by, sequence: 0, reported: true, receipt: None });
                }
                None => {}
            },
            Record::HighestTime { at } => self.highest_time = self.highest_time.max(*at),
            Record::EpochReset { node_epoch } => {
                let (highest_time, fence) = (self.highest_time, self.fence);
                *self = Self { node_epoch: *node_epoch, highest_time, fence, ..Self::default() };
            }
            Record::EpochKnown { node_epoch } => self.node_epoch = *node_epoch,
            Record::Chain { sequence, receipt_digest } => self.advance_chain(*sequence, receipt_digest),
            Record::Remembered { task_id, start_by } => {
                self.put(*task_id, Entry::Finished { start_by: *start_by, sequence: 0, reported: true, receipt: None });
            }
            Record::Fence { issued_until } => self.fence = self.fence.max(*issued_until),
        }
    }

    /// Replaces the entry of a task and updates the counts.
    fn put(&mut self, task_id: TaskId, entry: Entry) {
        match self.tasks.remove(&task_id) {
            Some(Entry::InFlight(_)) => self.in_flight -= 1,
            Some(Entry::Finished { sequence, .. }) => self.confirm(sequence, task_id),
            None => {}
        }
        match &entry {
            Entry::InFlight(_) => self.in_flight += 1,
            Entry::Finished { reported: false, sequence, .. } => {
                self.unreported.insert(*sequence, task_id);
            }
            Entry::Finished { reported: true, .. } => {}
        }
        self.tasks.insert(task_id, entry);
    }

    /// Removes a receipt from those to send, if it still belongs to this task.
    fn confirm(&mut self, sequence: u64, task_id: TaskId) {
        if self.unreported.get(&sequence) == Some(&task_id) {
            self.unreported.remove(&sequence);
        }
    }

    fn advance_chain(&mut self, sequence: u64, digest: &Digest) {
        if sequence > self.chain.sequence {
            self.chain = Chain { sequence, digest: Some(digest.clone()) };
        }
    }

    /// Handles lost records: a task that is only accepted may have been started.
    pub(super) fn note_damage(&mut self) {
        for entry in self.tasks.values_mut() {
            if let Entry::InFlight(entry) = entry {
                entry.maybe_started = true;
            }
        }
    }

    /// Returns whether nothing was ever recorded for an enrollment.
    pub(super) fn is_blank(&self) -> bool {
        self.node_epoch == 0 && self.tasks.is_empty() && self.chain.sequence == 0
    }

    pub(super) fn get(&self, task_id: TaskId) -> Option<&Entry> {
        self.tasks.get(&task_id)
    }

    /// Returns tasks that are accepted, without a record of a start, and may have started anyway.
    pub(super) fn doubtful(&self) -> Vec<TaskNote> {
        let doubtful = |entry: &Entry| match entry {
            Entry::InFlight(entry) if entry.maybe_started && entry.attempt == 0 => Some(entry.note.clone()),
            Entry::InFlight(_) | Entry::Finished { .. } => None,
        };
        self.tasks.values().filter_map(doubtful).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TaskId, &Entry)> {
        self.tasks.iter()
    }

    /// Returns the first unconfirmed receipt with a sequence above `sequence`.
    pub(super) fn unreported_after(&self, sequence: u64) -> Option<(u64, TaskId, Location)> {
        let (sequence, task_id) = self.unreported.range((Bound::Excluded(sequence), Bound::Unbounded)).next()?;
        match self.tasks.get(task_id) {
            Some(Entry::Finished { receipt: Some(receipt), .. }) => Some((*sequence, *task_id, *receipt)),
            Some(Entry::Finished { receipt: None, .. } | Entry::InFlight(_)) | None => None,
        }
    }

    pub(super) fn unreported_count(&self) -> usize {
        self.unreported.len()
    }

    /// Returns the bytes that a compaction at `now` would keep.
    pub(super) fn live_bytes(&self, now: Timestamp) -> u64 {
        let of = |entry: &Entry| match entry {
            Entry::InFlight(entry) => entry.records.iter().map(|at| at.length).sum(),
            Entry::Finished { receipt, .. } if !is_forgettable(entry, now) => receipt.map_or(0, |at| at.length) + SMALL_RECORD,
            Entry::Finished { .. } => 0,
        };
        self.tasks.values().map(of).sum()
    }

    /// Returns the bytes that a compaction at `now` would keep without reported receipts.
    pub(super) fn essential_bytes(&self, now: Timestamp) -> u64 {
        let of = |entry: &Entry| match entry {
            Entry::InFlight(entry) => entry.records.iter().map(|at| at.length).sum(),
            Entry::Finished { .. } if is_forgettable(entry, now) => 0,
            Entry::Finished { reported: true, .. } | Entry::Finished { receipt: None, .. } => SMALL_RECORD,
            Entry::Finished { receipt: Some(at), .. } => at.length,
        };
        self.tasks.values().map(of).sum()
    }

    /// Returns what a compaction at `now` keeps, in file order, and the time until which forgotten tasks could start. That time
    /// must count as past from now on, or a clock that is set back could revive one of them.
    pub(super) fn live(&self, now: Timestamp, keep: Keep) -> (Vec<Kept>, Timestamp) {
        let mut kept = Vec::new();
        let mut past = self.highest_time;
        for (task_id, entry) in &self.tasks {
            match entry {
                Entry::InFlight(entry) => kept.extend(entry.records.iter().map(|at| Kept::Copy(*at))),
                Entry::Finished { start_by, .. } if is_forgettable(entry, now) => {
                    past = past.max(start_by.plus(CLOCK_SKEW).plus(Duration::from_micros(1)));
                }
                Entry::Finished { start_by, reported, receipt, .. } => match (receipt, reported, keep) {
                    (Some(receipt), false, _) => kept.push(Kept::Copy(*receipt)),
                    (Some(receipt), true, Keep::Receipts) => {
                        kept.push(Kept::Copy(*receipt));
                        kept.push(Kept::Reported(*receipt, *task_id));
                    }
                    (Some(_), true, Keep::Essentials) | (None, _, _) => kept.push(Kept::Remembered(*task_id, *start_by)),
                },
            }
        }
        kept.sort_by_key(|kept| match kept {
            Kept::Remembered(..) => (0, 0),
            Kept::Copy(at) => (at.offset, 1),
            Kept::Reported(at, _) => (at.offset, 2),
        });
        (kept, past)
    }
}

/// How much a compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Also the receipts of reported tasks, so that a duplicate gets its receipt again.
    Receipts,
    /// Only the fact that tasks were reported: otherwise a busy node would fill its journal.
    Essentials,
}

/// An item that survives compaction.
pub(super) enum Kept {
    /// The record at this position.
    Copy(Location),
    /// The fact that a task is finished and reported.
    Remembered(TaskId, Timestamp),
    /// The fact that the receipt at this position is confirmed.
    Reported(Location, TaskId),
}

fn is_forgettable(entry: &Entry, now: Timestamp) -> bool {
    match entry {
        Entry::InFlight(_) => false,
        Entry::Finished { start_by, reported, .. } => *reported && now > start_by.plus(REMEMBERED),
    }
}
