//! The journal: durable before the first effect.
//!
//! accepted → started → phase… → finished (with the signed receipt) → reported. It is our own file format and not an embedded
//! database, because of two requirements. A full disk leads to a refusal and never to a false success: the space is allocated at
//! creation, and a task is accepted only if its receipt is sure to fit. And a damaged stretch costs at most the records inside
//! it, which are kept beside the journal and reported.
//!
//! There is one writer thread. Callers wait until their record is on disk; records that arrive together share one `fdatasync`. If
//! a write or a sync fails, nothing more is recorded and no success is claimed: the agent ends, and the next start reads what is
//! on disk.

mod birth;
mod file;
#[cfg(feature = "fuzz-support")]
pub mod fuzz_support;
mod index;
mod record;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::TaskPhase;
use gpuaas_contract::receipt;
use gpuaas_contract::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use birth::Birth;
use file::JournalId;
use gpuaas_host::private_file::PrivateFileError;
pub(crate) use index::Chain;
use index::{Entry, Index};
use record::Location;
pub(crate) use record::{Record, TaskNote};

/// Space reserved for every accepted task, so that its receipt and its small records are sure to fit.
pub(crate) const RESERVED_PER_TASK: u64 = receipt::MAX_BYTES as u64 + 8 * 1024;
/// Maximum number of records that wait for the writer.
const QUEUE: usize = 1024;

/// The journal of one agent.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Whether opening found damage.
    damaged: bool,
    shared: Arc<Shared>,
    commands: mpsc::Sender<writer::Command>,
    /// Its record beside the identity.
    birth: Option<Mutex<(Birth, JournalId)>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Stored>,
}

/// The file and its index; they change together at compaction.
#[derive(Debug)]
struct Stored {
    file: Arc<File>,
    index: Index,
    /// Number of the last record.
    sequence: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system error.
    #[error("the journal {path} cannot be {what}", path = .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// There is no space for it.
    #[error("no room for the journal: {path} needs {bytes} bytes; free some space or lower journal_bytes", path = .path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It existed before.
    #[error(
        "the journal {path} is missing, but this node had one: what it was sent before could run twice. Put the whole state folder back; \
         or enroll again with `gpuaas-agent enroll --replace`; or run `gpuaas-agent journal accept-loss`, after which nothing that was made \
         before is run", path = .path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another identity.
    #[error(
        "{path} is not the journal of this identity: the state folder was put together from several. Put the whole folder back; or enroll \
         again with `gpuaas-agent enroll --replace`; or run `gpuaas-agent journal accept-loss`, after which nothing that was made before \
         is run", path = .path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// It has less progress than before.
    #[error(
        "{path} is older than it was: it ends with record {sequence}, and record {known} is known to have been there. Do not restore a \
         journal from a backup; run `gpuaas-agent journal accept-loss`, after which nothing that was made before is run, or enroll again \
         with `gpuaas-agent enroll --replace`", path = .path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its last record.
        sequence: u64,
        /// Its known progress.
        known: u64,
    },
    /// Its record cannot be parsed.
    #[error(
        "{path}, which says which journal belongs to this identity, is damaged ({detail}); run `gpuaas-agent journal accept-loss`, after \
         which nothing that was made before is run", path = .path.display()
    )]
    BirthDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// Its record cannot be trusted or written.
    #[error("the record of the journal beside the identity cannot be used")]
    Birth(#[from] PrivateFileError),
    /// It was written by a newer agent.
    #[error("{path} was written by a newer agent (format {version}); install that version again", path = .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
}

/// Why something was not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AppendError {
    /// There is no space that is not reserved for other tasks.
    #[error("the journal is full of unreported work; connect the node, or raise journal_bytes")]
    Full,
    /// The record is too large.
    #[error("the record is too large for the journal")]
    TooLarge,
    /// The disk failed; the agent must be restarted.
    #[error("the journal can no longer be written: {0}")]
    Failed(String),
}

/// The journal's state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Accepted or started.
    InFlight(TaskPhase),
    /// It has ended; the receipt is kept.
    Finished,
}

/// A task in the journal at start that has not ended.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) note: TaskNote,
    /// The envelope; `None` if its record was lost to damage.
    pub(crate) envelope: Option<Vec<u8>>,
    /// Number of starts; 0 if it was only accepted.
    pub(crate) attempt: u32,
    /// The first start, if known.
    pub(crate) started_at: Option<Timestamp>,
}

/// An unconfirmed receipt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreported {
    pub(crate) sequence: u64,
    pub(crate) task_id: TaskId,
}

/// The result of opening.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) unfinished: Vec<Unfinished>,
    /// Messages about repairs, for the log and the hello.
    pub(crate) notices: Vec<String>,
}

/// The result of an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) damaged: bool,
    pub(crate) used_percent: u64,
    pub(crate) in_flight: usize,
    pub(crate) unreported: usize,
}

impl Journal {
    /// Opens or creates the journal in `folder` and starts its writer. Blocks; the caller holds the folder's lock.
    #[cfg(test)]
    pub(crate) fn open(folder: &Path, capacity: u64, now: Timestamp) -> Result<(Self, Opened), JournalError> {
        let path = folder.join("journal");
        Self::start(writer::open(&path, capacity, now, false)?, path, None)
    }

    /// Opens the journal in `folder` that belongs to the identity, and starts its writer. Only the first start of an identity
    /// creates one. Blocks; the caller holds the folder's lock.
    pub(crate) fn open_of(identity: &Path, folder: &Path, capacity: u64, now: Timestamp) -> Result<(Self, Opened), JournalError> {
        let path = folder.join("journal");
        let mut birth = Birth::read(identity)?;
        let doubtful = birth.check(&path)?;
        let opening = writer::open(&path, capacity, now, doubtful)?;
        if !opening.damaged {
            birth.check_sequence(&path, opening.writer.sequence())?;
        }
        let id = opening.writer.identify()?;
        match birth.note(id, opening.writer.sequence()) {
            // A full disk must not keep a node down whose journal has its space: only the recorded progress is older.
            Err(error) if birth.knows(id) => {
                tracing::warn!(error = crate::error_chain::chain(&error), "the progress of the journal could not be recorded");
            }
            noted => noted?,
        }
        Self::start(opening, path, Some((birth, id)))
    }

    /// Assigns the journal in `folder`, or a new one, to the identity, for an operator who accepts that it may have lost records:
    /// tasks created before now are not run. Returns messages about it. Blocks; the caller holds the folder's lock.
    pub(crate) fn accept_loss(
        identity: &Path,
        folder: &Path,
        capacity: u64,
        now: Timestamp,
    ) -> Result<Vec<String>, JournalError> {
        let path = folder.join("journal");
        let opening = writer::open(&path, capacity, now, true)?;
        Birth::forgotten(identity).note(opening.writer.identify()?, opening.writer.sequence())?;
        Ok(opening.notices)
    }

    /// Checks whether the journal in `folder` can belong to the identity. Changes nothing.
    pub(crate) fn check_birth(identity: &Path, folder: &Path) -> Result<(), JournalError> {
        Birth::read(identity)?.check(&folder.join("journal")).map(|_| ())
    }

    /// Records the progress of the journal beside the identity: from here on an older copy of it is detected. Blocks.
    pub(crate) fn note_progress(&self) {
        let Some(birth) = &self.birth else { return };
        let sequence = self.shared.lock().sequence;
        let mut birth = birth.lock().unwrap_or_else(PoisonError::into_inner);
        let id = birth.1;
        if let Err(error) = birth.0.note(id, sequence) {
            tracing::warn!(error = crate::error_chain::chain(&error), "the progress of the journal could not be recorded");
        }
    }

    fn start(opening: writer::Opening, path: PathBuf, birth: Option<(Birth, JournalId)>) -> Result<(Self, Opened), JournalError> {
        let writer::Opening { stored, writer, notices, damaged } = opening;
        let shared = Arc::new(Shared { state: Mutex::new(stored) });
        let unfinished = unfinished(&shared, &path)?;
        let (commands, queue) = mpsc::channel(QUEUE);
        let for_thread = Arc::clone(&shared);
        gpuaas_runtime::spawn_thread("journal", move || writer.run(&for_thread, queue)).map_err(|source| JournalError::Io {
            what: "served by a thread",
            path,
            source,
        })?;
        let birth = birth.map(Mutex::new);
        Ok((Self { damaged, shared, commands, birth }, Opened { unfinished, notices }))
    }

    /// Inspects the journal in `folder` without changing it. Blocks; the caller holds the folder's lock.
    pub(crate) fn inspect(folder: &Path) -> Result<Summary, JournalError> {
        writer::inspect(&folder.join("journal"))
    }

    /// Appends a record. Returns when it is on disk.
    pub(crate) async fn append(&self, record: Record, blob: Vec<u8>) -> Result<(), AppendError> {
        self.reserve().await?.append(record, blob).wait().await
    }

    /// Records that a task is accepted and, if it starts at once, that it has started: with one sync instead of two.
    pub(crate) async fn accept(&self, accepted: Record, envelope: Vec<u8>, started: Option<Record>) -> Result<(), AppendError> {
        self.reserve().await?.append_both(accepted, envelope, started).wait().await
    }

    /// Reserves a place in the writer's queue, for callers that must fix the order of their records under a lock.
    pub(crate) async fn reserve(&self) -> Result<Slot<'_>, AppendError> {
        self.commands.reserve().await.map(Slot).map_err(|_| ended())
    }

    /// Returns the state of a task.
    pub(crate) fn lookup(&self, task_id: TaskId) -> Option<Known> {
        match self.shared.lock().index.get(task_id)? {
            Entry::InFlight(entry) if entry.attempt == 0 => Some(Known::InFlight(TaskPhase::Accepted)),
            Entry::InFlight(_) => Some(Known::InFlight(TaskPhase::Started)),
            Entry::Finished { .. } => Some(Known::Finished),
        }
    }

    /// Returns every task that is not reported, for the hello.
    pub(crate) fn in_hand(&self) -> Vec<(TaskId, TaskPhase)> {
        let stored = self.shared.lock();
        let phase = |entry: &Entry| match entry {
            Entry::InFlight(entry) if entry.attempt == 0 => Some(TaskPhase::Accepted),
            Entry::InFlight(_) => Some(TaskPhase::Started),
            Entry::Finished { reported: false, .. } => Some(TaskPhase::Finished),
            Entry::Finished { reported: true, .. } => None,
        };
        let mut tasks: Vec<_> = stored.index.iter().filter_map(|(id, entry)| Some((*id, phase(entry)?))).collect();
        tasks.sort_unstable_by_key(|(id, _)| *id);
        tasks
    }

    /// Returns the stored receipt of a finished task, or `None` if it was reported long ago and is no longer kept. Reads the disk
    /// on a blocking thread.
    pub(crate) async fn receipt(&self, task_id: TaskId) -> Result<Option<Vec<u8>>, AppendError> {
        let found = {
            let stored = self.shared.lock();
            match stored.index.get(task_id) {
                Some(Entry::Finished { receipt: Some(receipt), .. }) => Some((Arc::clone(&stored.file), *receipt)),
                Some(Entry::Finished { receipt: None, .. } | Entry::InFlight(_)) | None => None,
            }
        };
        let Some((file, location)) = found else { return Ok(None) };
        read_blob(file, location).await.map(Some)
    }

    /// Returns the first unconfirmed receipt after `sequence`.
    pub(crate) fn unreported_after(&self, sequence: u64) -> Option<Unreported> {
        let (sequence, task_id, _) = self.shared.lock().index.unreported_after(sequence)?;
        Some(Unreported { sequence, task_id })
    }

    /// Returns the number of unconfirmed receipts.
    pub(crate) fn unreported_count(&self) -> usize {
        self.shared.lock().index.unreported_count()
    }

    /// Returns the latest authenticated time ever seen.
    pub(crate) fn highest_time(&self) -> Timestamp {
        self.shared.lock().index.highest_time
    }

    /// Returns the fence: unknown tasks signed until then may have run already.
    pub(crate) fn fence(&self) -> Timestamp {
        self.shared.lock().index.fence
    }

    /// Returns the end of the chain of receipts.
    pub(crate) fn chain(&self) -> Chain {
        self.shared.lock().index.chain.clone()
    }

    /// Returns the enrollment that the journal belongs to; 0 before the first.
    fn node_epoch(&self) -> u64 {
        self.shared.lock().index.node_epoch
    }

    /// Assigns the journal to this enrollment. Tasks of another one are void, because their receipts would be rejected. Returns
    /// whether the content of the journal is still valid.
    pub(crate) async fn belong_to(&self, node_epoch: u64) -> Result<bool, AppendError> {
        let known = self.node_epoch();
        if known == node_epoch {
            return Ok(true);
        }
        // The record of the enrollment may be among the lost ones; that must not cost all the others. If they do belong to an
        // older enrollment, the control plane rejects their receipts, which is harmless.
        let counts = self.damaged || (known == 0 && !self.shared.lock().index.is_blank());
        let record = if counts { Record::EpochKnown { node_epoch } } else { Record::EpochReset { node_epoch } };
        self.append(record, Vec::new()).await?;
        Ok(counts)
    }
}

/// A place in the writer's queue.
pub(crate) struct Slot<'a>(mpsc::Permit<'a, writer::Command>);

impl Slot<'_> {
    /// Queues the record. Records are written in the order of the queue.
    pub(crate) fn append(self, record: Record, blob: Vec<u8>) -> Pending {
        let (reply, answer) = oneshot::channel();
        self.0.send(writer::Command { record, blob, also: None, reply });
        Pending(answer)
    }

    /// Queues two records that are written together or not at all; the second is a small one of the same task.
    fn append_both(self, record: Record, blob: Vec<u8>, also: Option<Record>) -> Pending {
        let (reply, answer) = oneshot::channel();
        self.0.send(writer::Command { record, blob, also, reply });
        Pending(answer)
    }
}

/// A queued record.
pub(crate) struct Pending(oneshot::Receiver<Result<(), AppendError>>);

impl Pending {
    /// Waits until the record is on disk.
    pub(crate) async fn wait(self) -> Result<(), AppendError> {
        gpuaas_runtime::recorded(self.0).await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> AppendError {
    AppendError::Failed("its writer has ended".to_owned())
}

async fn read_blob(file: Arc<File>, location: Location) -> Result<Vec<u8>, AppendError> {
    let read = gpuaas_runtime::blocking(move || file::read(&file, location)).await;
    match read {
        Ok(Ok(decoded)) => Ok(decoded.blob),
        Ok(Err(error)) => Err(AppendError::Failed(error.to_string())),
        Err(error) => Err(AppendError::Failed(error.to_string())),
    }
}

fn unfinished(shared: &Shared, path: &Path) -> Result<Vec<Unfinished>, JournalError> {
    let stored = shared.lock();
    let mut found = Vec::new();
    for (_, entry) in stored.index.iter() {
        let Entry::InFlight(entry) = entry else { continue };
        let envelope = match entry.envelope {
            Some(location) => {
                let read = file::read(&stored.file, location);
                Some(read.map_err(|source| JournalError::Io { what: "read", path: path.to_owned(), source })?.blob)
            }
            None => None,
        };
        found.push(Unfinished { note: entry.note.clone(), envelope, attempt: entry.attempt, started_at: entry.started_at });
    }
    // Ids sort by their creation time.
    found.sort_unstable_by_key(|task| task.note.task_id);
    Ok(found)
}

#[cfg(test)]
mod tests;
