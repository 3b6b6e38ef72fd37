//! The record of the journal's existence, beside the identity.
//!
//! Without it, a missing journal would count as a first start, and a task that is sent again would run again. From the first
//! start on, the identity's folder records which journal belongs to it and its progress. Another journal, none, or one with less
//! progress is refused.

use std::fs::File;
use std::path::{Path, PathBuf};

use gpuaas_host::private_file::{self, PrivateFileError};

use super::JournalError;
use super::file::{self, JournalId};

/// The file name in the identity's folder.
const FILE: &str = "journal.json";
const MAX_FILE: u64 = 4096;

/// The journal of an identity.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    journal_id: String,
    /// The highest record number that the journal is known to have had.
    sequence: u64,
}

/// The recorded journal of an identity.
#[derive(Clone, Debug)]
pub(super) struct Birth {
    path: PathBuf,
    record: Option<Record>,
}

impl Birth {
    /// Reads the record. An identity that never ran has no journal yet.
    pub(super) fn read(identity: &Path) -> Result<Self, JournalError> {
        let path = identity.join(FILE);
        let record = match private_file::read_secret(&path, MAX_FILE) {
            Ok(bytes) => {
                let parsed = serde_json::from_slice(&bytes);
                Some(parsed.map_err(|error| JournalError::BirthDamaged { path: path.clone(), detail: error.to_string() })?)
            }
            Err(PrivateFileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path, record })
    }

    /// Returns the state without a record, for an operator who accepts the loss.
    pub(super) fn forgotten(identity: &Path) -> Self {
        Self { path: identity.join(FILE), record: None }
    }

    /// Checks whether the file is the journal of this identity, before anything is created or repaired. Returns `true` if the
    /// file cannot show that any more and must be treated like one that lost records.
    pub(super) fn check(&self, journal: &Path) -> Result<bool, JournalError> {
        let Some(record) = &self.record else { return Ok(false) };
        let file = match File::open(journal) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(JournalError::Missing { path: journal.to_owned() });
            }
            Err(source) => return Err(JournalError::Io { what: "opened", path: journal.to_owned(), source }),
        };
        let id = file::read_id(&file).map_err(|source| JournalError::Io { what: "read", path: journal.to_owned(), source })?;
        match id {
            Some(id) if id.to_string() == record.journal_id => Ok(false),
            Some(_) => Err(JournalError::Other { path: journal.to_owned() }),
            None => Ok(true),
        }
    }

    /// Checks that the journal has at least its known progress.
    pub(super) fn check_sequence(&self, journal: &Path, sequence: u64) -> Result<(), JournalError> {
        match &self.record {
            Some(record) if sequence < record.sequence => {
                Err(JournalError::Older { path: journal.to_owned(), sequence, known: record.sequence })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether this journal is recorded.
    pub(super) fn knows(&self, id: JournalId) -> bool {
        self.record.as_ref().is_some_and(|record| record.journal_id == id.to_string())
    }

    /// Records this journal and its progress. Durable when it returns.
    pub(super) fn note(&mut self, id: JournalId, sequence: u64) -> Result<(), JournalError> {
        let record = Record { journal_id: id.to_string(), sequence };
        if self.record.as_ref() == Some(&record) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&record)
            .map_err(|error| JournalError::BirthDamaged { path: self.path.clone(), detail: error.to_string() })?;
        private_file::write(&self.path, &bytes)?;
        self.record = Some(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use gpuaas_contract::time::Timestamp;

    use super::super::{Journal, JournalError, Record};

    const CAPACITY: u64 = 4 << 20;

    /// A state folder with an identity that has run once, and its journal at that time.
    struct Node {
        folder: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("folder");
            std::fs::create_dir(folder.path().join("identity")).expect("made");
            Self { folder }
        }

        fn open_with(&self, capacity: u64) -> Result<Journal, JournalError> {
            let folder = self.folder.path();
            Journal::open_of(&folder.join("identity"), folder, capacity, Timestamp(1000)).map(|(journal, _)| journal)
        }

        fn open(&self) -> Result<Journal, JournalError> {
            self.open_with(CAPACITY)
        }

        fn journal(&self) -> std::path::PathBuf {
            self.folder.path().join("journal")
        }

        fn accept_loss(&self) {
            let folder = self.folder.path();
            Journal::accept_loss(&folder.join("identity"), folder, CAPACITY, Timestamp(2000)).expect("accepted");
            let journal = self.open().expect("opens after it");
            assert_eq!(journal.fence(), Timestamp(2000), "what was made before is not run");
        }
    }

    #[tokio::test]
    async fn a_journal_that_is_gone_is_not_taken_for_a_first_start() {
        let node = Node::new();
        assert_eq!(node.open().expect("the first start makes one").fence(), Timestamp(0));
        assert_eq!(node.open().expect("the second one finds it").fence(), Timestamp(0));
        std::fs::remove_file(node.journal()).expect("removed");
        for _ in 0..2 {
            let error = node.open().expect_err("refused");
            assert!(matches!(error, JournalError::Missing { .. }) && error.to_string().contains("accept-loss"), "{error}");
            assert!(!node.journal().exists(), "no journal was made");
        }
        node.accept_loss();
    }

    #[tokio::test]
    async fn a_new_identity_has_no_journal_yet_and_takes_the_one_that_is_there() {
        let node = Node::new();
        drop(node.open().expect("opens"));
        let identity = node.folder.path().join("identity");
        std::fs::remove_dir_all(&identity).expect("removed");
        std::fs::create_dir(&identity).expect("enrolled again");
        assert_eq!(node.open().expect("opens").fence(), Timestamp(0));
        std::fs::remove_file(node.journal()).expect("removed");
        assert!(matches!(node.open(), Err(JournalError::Missing { .. })));
    }

    #[tokio::test]
    async fn a_journal_of_another_identity_is_refused() {
        let (node, other) = (Node::new(), Node::new());
        drop((node.open().expect("opens"), other.open().expect("opens")));
        std::fs::copy(other.journal(), node.journal()).expect("copied");
        assert!(matches!(node.open(), Err(JournalError::Other { .. })));
        node.accept_loss();
    }

    #[tokio::test]
    async fn a_journal_that_knows_less_than_it_once_did_is_refused() {
        let node = Node::new();
        drop(node.open().expect("opens"));
        let backup = std::fs::read(node.journal()).expect("read");
        let journal = node.open().expect("opens");
        journal.append(Record::HighestTime { at: Timestamp(5) }, Vec::new()).await.expect("recorded");
        journal.note_progress();
        drop(journal);
        drop(node.open().expect("opens with what it had"));
        std::fs::write(node.journal(), backup).expect("restored");
        let error = node.open().expect_err("refused");
        assert!(matches!(error, JournalError::Older { sequence: 0, known: 1, .. }), "{error}");
        node.accept_loss();
    }

    #[tokio::test]
    async fn a_disk_without_room_keeps_no_node_down_whose_journal_is_on_record() {
        let node = Node::new();
        let journal = node.open().expect("opens");
        journal.append(Record::HighestTime { at: Timestamp(5) }, Vec::new()).await.expect("recorded");
        drop(journal);
        // A folder in place of the temporary file: nothing can be written there.
        let temporary = format!("identity/.journal.json.{}.tmp", std::process::id());
        std::fs::create_dir_all(node.folder.path().join(temporary).join("x")).expect("made");
        assert_eq!(node.open().expect("opens all the same").fence(), Timestamp(0));
        let record = node.folder.path().join("identity/journal.json");
        std::fs::remove_file(record).expect("removed");
        assert!(matches!(node.open(), Err(JournalError::Birth(_))), "but without a record nothing is begun");
    }

    #[tokio::test]
    async fn a_journal_keeps_its_name_when_it_is_written_anew() {
        let node = Node::new();
        drop(node.open().expect("opens"));
        for capacity in [2 * CAPACITY, CAPACITY] {
            let journal = node.open_with(capacity).expect("opens with another size");
            journal.append(Record::HighestTime { at: Timestamp(5) }, Vec::new()).await.expect("recorded");
        }
        assert_eq!(node.open().expect("opens").fence(), Timestamp(0));
    }

    #[tokio::test]
    async fn a_journal_whose_name_is_damaged_goes_on_and_runs_nothing_that_was_made_before() {
        let node = Node::new();
        drop(node.open().expect("opens"));
        let file = std::fs::OpenOptions::new().read(true).write(true).open(node.journal()).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 30).expect("read");
        file.write_all_at(&[!byte[0]], 30).expect("spoiled");
        assert_eq!(node.open().expect("opens").fence(), Timestamp(1000));
        assert_eq!(node.open().expect("opens again").fence(), Timestamp(1000));
    }
}
