//! Stress tests: torn tails, damage at every record, full journals, and reopening at any point.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::CorrelationId;
use proptest::prelude::*;

use super::*;

const CAPACITY: u64 = 8 << 20;

fn task(n: u8) -> TaskId {
    TaskId::from_bytes([n; 16])
}

fn note(n: u8) -> TaskNote {
    TaskNote {
        task_id: task(n),
        task_type: "diag.ping".to_owned(),
        digest: Digest::of(&[n]),
        correlation_id: CorrelationId::try_from(format!("corr-{n}")).expect("plain"),
        start_by: Timestamp(i64::from(n) * 1_000_000),
    }
}

fn accepted(n: u8) -> Record {
    Record::Accepted { task: note(n), issued_at: Timestamp(i64::from(n)), deadline: Timestamp(i64::MAX) }
}

fn started(n: u8) -> Record {
    Record::Started { task: note(n), attempt: 1, at: Timestamp(5) }
}

fn finished(n: u8, sequence: u64) -> Record {
    Record::Finished { task_id: task(n), start_by: note(n).start_by, sequence, receipt_digest: Digest::of(&[n, n]) }
}

fn open(folder: &Path) -> (Journal, Opened) {
    Journal::open(folder, CAPACITY, Timestamp(1000)).expect("opens")
}

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime").block_on(future)
}

/// Appends, and waits until the writer thread has closed the file: the journal is dropped with its last sender.
fn append_all(folder: &Path, records: &[(Record, Vec<u8>)]) {
    let (journal, _) = open(folder);
    block(async {
        for (record, blob) in records {
            journal.append(record.clone(), blob.clone()).await.expect("recorded");
        }
    });
}

/// Returns everything observable, to compare a reopened journal with the one before.
fn view(journal: &Journal) -> String {
    let receipts: Vec<_> = std::iter::successors(journal.unreported_after(0), |last| journal.unreported_after(last.sequence))
        .map(|u| (u.sequence, u.task_id))
        .collect();
    format!(
        "{:?} {receipts:?} {:?} {:?} {:?} {}",
        journal.in_hand(),
        journal.chain(),
        journal.highest_time(),
        journal.fence(),
        journal.node_epoch()
    )
}

#[test]
fn a_journal_remembers_what_was_recorded_and_what_is_left_to_do() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(
        folder.path(),
        &[
            (Record::EpochReset { node_epoch: 3 }, Vec::new()),
            (accepted(1), b"envelope 1".to_vec()),
            (accepted(2), b"envelope 2".to_vec()),
            (started(2), Vec::new()),
            (accepted(3), b"envelope 3".to_vec()),
            (started(3), Vec::new()),
            (finished(3, 1), b"receipt 3".to_vec()),
            (finished(4, 2), b"receipt 4".to_vec()),
            (Record::Reported { task_id: task(4) }, Vec::new()),
        ],
    );
    let (journal, opened) = open(folder.path());
    assert_eq!(opened.notices, [""; 0]);
    let left: Vec<_> = opened.unfinished.iter().map(|t| (t.note.task_id, t.attempt, t.envelope.clone().expect("kept"))).collect();
    assert_eq!(left, [(task(1), 0, b"envelope 1".to_vec()), (task(2), 1, b"envelope 2".to_vec())]);
    assert_eq!(journal.lookup(task(3)), Some(Known::Finished));
    assert_eq!(journal.lookup(task(9)), None);
    assert_eq!(block(journal.receipt(task(3))).expect("reads").as_deref(), Some(b"receipt 3".as_slice()));
    assert_eq!(journal.unreported_after(0).expect("one").task_id, task(3));
    assert_eq!((journal.chain().sequence, journal.node_epoch(), journal.highest_time()), (2, 3, Timestamp(3)));
}

#[test]
fn a_task_that_starts_at_once_is_accepted_and_started_together_or_not_at_all() {
    let folder = tempfile::tempdir().expect("folder");
    let (journal, _) = open(folder.path());
    block(journal.accept(accepted(1), b"envelope 1".to_vec(), Some(started(1)))).expect("recorded");
    block(journal.accept(accepted(2), b"envelope 2".to_vec(), None)).expect("recorded");
    let too_large = vec![0; usize::try_from(CAPACITY).expect("fits")];
    block(journal.accept(accepted(3), too_large, Some(started(3)))).expect_err("there is no room");
    assert_eq!(journal.lookup(task(1)), Some(Known::InFlight(TaskPhase::Started)));
    assert_eq!(journal.lookup(task(3)), None, "a start without an acceptance");
    let before = view(&journal);
    drop(journal);
    let (journal, opened) = open(folder.path());
    assert_eq!((view(&journal), opened.notices), (before, vec![]));
    let left: Vec<_> = opened.unfinished.iter().map(|t| (t.note.task_id, t.attempt, t.envelope.clone().expect("kept"))).collect();
    assert_eq!(left, [(task(1), 1, b"envelope 1".to_vec()), (task(2), 0, b"envelope 2".to_vec())]);
}

#[test]
fn a_new_epoch_voids_the_tasks_of_the_old_one_and_keeps_the_time() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(
        folder.path(),
        &[(accepted(9), vec![1]), (finished(8, 5), vec![2]), (Record::EpochReset { node_epoch: 2 }, vec![])],
    );
    let (journal, opened) = open(folder.path());
    assert!(opened.unfinished.is_empty() && journal.in_hand().is_empty());
    assert_eq!((journal.chain(), journal.highest_time()), (Chain::default(), Timestamp(9)));
}

#[test]
fn a_torn_tail_is_removed_kept_aside_and_reported() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(folder.path(), &[(accepted(1), vec![7; 100]), (finished(2, 1), vec![8; 100])]);
    let path = folder.path().join("journal");
    let end = used(&path);
    let pristine = std::fs::read(&path).expect("read");
    let whole = record::encode(&started(1), &[], 3).expect("encodes");
    for cut in [1, 7, 8, 23, 24, whole.len() / 2, whole.len() - 9] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
        file.write_all_at(&whole[..cut], end).expect("torn");
        let (journal, opened) = open(folder.path());
        assert_eq!(opened.notices.len(), 1, "cut at {cut}: {:?}", opened.notices);
        assert!(opened.notices[0].contains("cut off"), "{:?}", opened.notices);
        assert_eq!(journal.fence(), Timestamp(0), "nobody relied on what was cut off");
        assert_eq!(journal.lookup(task(2)), Some(Known::Finished));
        // The tail may have been the start of the accepted task, so it counts as started.
        assert_eq!(journal.lookup(task(1)), Some(Known::InFlight(TaskPhase::Started)));
        drop(journal);
        let (_, again) = open(folder.path());
        assert_eq!(again.notices, [""; 0], "the repair is done once");
        std::fs::write(&path, &pristine).expect("as before the repair");
    }
    assert!(folder.path().join("journal.damaged-1").exists());
}

/// Returns the start of the records.
fn first_record() -> usize {
    usize::try_from(file::FILE_HEADER).expect("fits")
}

/// Returns the end of the records.
fn used(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("read");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("records") + 1;
    u64::try_from(last.next_multiple_of(8)).expect("fits")
}

#[test]
fn rot_in_any_record_costs_that_record_only_and_never_a_second_run() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(
        folder.path(),
        &[
            (accepted(1), b"envelope 1".to_vec()),
            (accepted(2), b"envelope 2".to_vec()),
            (started(2), Vec::new()),
            (finished(3, 1), b"receipt 3".to_vec()),
            (finished(4, 2), b"receipt 4".to_vec()),
        ],
    );
    let path = folder.path().join("journal");
    let pristine = std::fs::read(&path).expect("read");
    let mut offsets = Vec::new();
    let file = File::open(&path).expect("opens");
    file::scan(&file, &path, CAPACITY, |found| {
        if let file::Found::Record(at, _) = found {
            offsets.push(at);
        }
    })
    .expect("scans");
    assert_eq!(offsets.len(), 5);
    for (index, at) in offsets.iter().enumerate() {
        for delta in [0, 5, 9, 13, 18, 30, at.length / 2] {
            let mut rotten = pristine.clone();
            rotten[usize::try_from(at.offset + delta).expect("fits")] ^= 0x10;
            std::fs::write(&path, &rotten).expect("written");
            let (journal, opened) = open(folder.path());
            // For the last one, a second notice says that it is missing.
            assert_eq!(opened.notices.len(), 1 + usize::from(index == 4), "record {index} + {delta}: {:?}", opened.notices);
            let known = [1, 2, 3, 4].map(|n| journal.lookup(task(n)));
            let expected = match index {
                0 => [None, Some(true), Some(false), Some(false)],
                // Accepted 2 is lost, but its start is known: it must be answered and not run again.
                _ => [Some(true), Some(true), Some(false), Some(false)],
            };
            for (n, (known, expected)) in known.iter().zip(expected).enumerate() {
                let lost = (index == 3 && n == 2) || (index == 4 && n == 3);
                let fits = match (known, expected) {
                    (None, None) => true,
                    (Some(Known::InFlight(_)), Some(true)) | (Some(Known::Finished), Some(false)) => !lost,
                    (None, Some(_)) => lost,
                    (Some(Known::InFlight(_)), None | Some(false)) | (Some(Known::Finished), None | Some(true)) => false,
                };
                assert!(fits, "record {index} + {delta}, task {}: {known:?}", n + 1);
            }
            // A task that was only accepted before the damage counts as started.
            for unfinished in &opened.unfinished {
                assert!(unfinished.attempt >= 1 || index == 0, "task {:?} would run again", unfinished.note.task_id);
            }
            // Also for the last one: it was confirmed, so it is not an interrupted write.
            assert!(journal.fence() > Timestamp(0), "unknown old tasks are fenced");
            drop(journal);
            assert_eq!(open(folder.path()).1.notices, [""; 0]);
            for n in 1..=16 {
                let _ = std::fs::remove_file(folder.path().join(format!("journal.damaged-{n}")));
            }
        }
    }
}

#[test]
fn a_journal_that_is_cut_short_anywhere_is_fenced_and_gets_its_size_back() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(folder.path(), &[(finished(1, 1), vec![1; 300]), (accepted(2), vec![2; 100]), (finished(3, 2), vec![3; 50])]);
    let path = folder.path().join("journal");
    let pristine = std::fs::read(&path).expect("read");
    let end = used(&path);
    for cut in [0, 1, 16, 27, 28, 4096].into_iter().chain((4104..end).step_by(56)).chain((4101..end).step_by(31)).chain([end - 1])
    {
        std::fs::write(&path, &pristine[..usize::try_from(cut).expect("fits")]).expect("cut");
        let (journal, opened) = open(folder.path());
        assert!(!opened.notices.is_empty(), "cut at {cut} was not noticed");
        assert_eq!(journal.fence(), Timestamp(1000), "cut at {cut}");
        assert!(opened.unfinished.iter().all(|task| task.attempt == 1), "cut at {cut}: a task may run twice");
        assert_eq!(path.metadata().expect("meta").len(), CAPACITY);
        let before = view(&journal);
        drop(journal);
        let (journal, opened) = open(folder.path());
        assert_eq!((view(&journal), opened.notices), (before, Vec::new()), "cut at {cut}: the repair is done once");
        for n in 1..=16 {
            let _ = std::fs::remove_file(folder.path().join(format!("journal.damaged-{n}")));
        }
    }
    // Unused space is not missed.
    std::fs::write(&path, &pristine[..usize::try_from(end).expect("fits")]).expect("cut");
    assert_eq!(open(folder.path()).0.fence(), Timestamp(0));
}

#[test]
fn a_repair_that_was_cut_off_before_its_fence_is_completed() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(folder.path(), &[(accepted(1), vec![1; 100]), (finished(2, 1), vec![2; 100]), (finished(3, 2), vec![3; 50])]);
    let path = folder.path().join("journal");
    let mut rotten = std::fs::read(&path).expect("read");
    let second = first_record() + record::encode(&accepted(1), &[1; 100], 1).expect("encodes").len();
    rotten[second + 40] ^= 1;
    std::fs::write(&path, &rotten).expect("rot");
    // The scan alone repairs the file; the agent is killed before it records anything.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opens");
    assert!(file::scan(&file, &path, CAPACITY, |_| {}).expect("scans").damaged_inside);
    let (journal, opened) = open(folder.path());
    assert_eq!((journal.fence(), journal.damaged, opened.notices.len()), (Timestamp(1000), true, 1));
    assert!(opened.unfinished.iter().all(|task| task.attempt == 1));
    drop(journal);
    assert!(!open(folder.path()).0.damaged);
}

/// Returns the lengths of these records in the file.
fn lengths(records: &[(Record, Vec<u8>)]) -> Vec<usize> {
    records.iter().map(|(record, blob)| record::encode(record, blob, 1).expect("encodes").len()).collect()
}

#[test]
fn a_repair_that_ends_where_the_journal_ended_before_is_done_once() {
    let folder = tempfile::tempdir().expect("folder");
    // The last record is as long as the fence that the repair writes in its place.
    let records: Vec<_> = [1, 2, 1000].map(|at| (Record::Fence { issued_until: Timestamp(at) }, Vec::new())).into();
    append_all(folder.path(), &records);
    let path = folder.path().join("journal");
    let (mut rotten, end) = (std::fs::read(&path).expect("read"), used(&path));
    let lengths = lengths(&records);
    rotten[first_record() + 30] ^= 1;
    rotten[first_record() + lengths[0] + lengths[1] + 30] ^= 1;
    std::fs::write(&path, &rotten).expect("rot");
    assert!(open(folder.path()).0.damaged);
    assert_eq!(used(&path), end);
    let (journal, opened) = open(folder.path());
    assert_eq!((journal.damaged, opened.notices), (false, Vec::new()), "the repair is done once");
}

#[test]
fn a_journal_that_is_full_to_the_last_byte_can_still_be_repaired() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("journal");
    let finished = (1..=8).map(|n| (finished(n, n.into()), vec![n; 100]));
    let records: Vec<_> = [(accepted(9), vec![9; 100])].into_iter().chain(finished).collect();
    let lengths = lengths(&records);
    let full = u64::try_from(first_record() + lengths.iter().sum::<usize>()).expect("fits");
    let file = file::create(&path, full).expect("made");
    let mut at = file::FILE_HEADER;
    for ((record, blob), sequence) in records.iter().zip(1..) {
        let bytes = record::encode(record, blob, sequence).expect("encodes");
        file.write_all_at(&bytes, at).expect("written");
        at += u64::try_from(bytes.len()).expect("fits");
    }
    file::confirm(&file, full).expect("written");
    let second = u64::try_from(first_record() + lengths[0]).expect("fits");
    file.write_all_at(b"rot", second + 40).expect("rot");
    let (journal, opened) = Journal::open(folder.path(), full, Timestamp(1000)).expect("opens although there is no room");
    assert_eq!((journal.fence(), journal.unreported_count()), (Timestamp(1000), 7));
    assert_eq!(opened.unfinished.iter().map(|task| task.attempt).collect::<Vec<_>>(), [1], "a task may run twice");
    let before = view(&journal);
    drop(journal);
    let (journal, _) = Journal::open(folder.path(), full, Timestamp(1000)).expect("opens");
    assert_eq!((view(&journal), journal.damaged), (before.clone(), false));
    drop(journal);
    // With space, it gets its usual size again.
    assert_eq!(view(&open(folder.path()).0), before);
    assert_eq!(path.metadata().expect("meta").len(), CAPACITY);
}

#[test]
fn rot_in_the_length_of_a_filler_costs_no_record() {
    let folder = tempfile::tempdir().expect("folder");
    let records: Vec<_> = (1..=5).map(|n| (finished(n, n.into()), vec![n; 100])).collect();
    append_all(folder.path(), &records);
    let path = folder.path().join("journal");
    let lengths = lengths(&records);
    let second = first_record() + lengths[0];
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[second + 40] ^= 1;
    std::fs::write(&path, &bytes).expect("rot");
    assert!(open(folder.path()).0.damaged);
    // The filler over the second record now claims the third and the fourth too.
    let mut bytes = std::fs::read(&path).expect("read");
    let claimed = u32::try_from(lengths[1..4].iter().sum::<usize>()).expect("fits");
    assert_eq!(record::word(&bytes, second + 4), u32::try_from(lengths[1]).expect("fits"));
    bytes[second + 4..second + 8].copy_from_slice(&claimed.to_le_bytes());
    // Alone, and together with damage in one of the records that it would hide.
    for third_rots in [false, true] {
        bytes[second + lengths[1] + 40] ^= u8::from(third_rots);
        std::fs::write(&path, &bytes).expect("rot");
        let (journal, opened) = open(folder.path());
        assert_eq!([1, 2, 3, 4, 5].map(|n| journal.lookup(task(n)).is_some()), [true, false, !third_rots, true, true]);
        assert!(journal.damaged && !opened.notices.is_empty(), "the rot was not noticed");
    }
}

#[test]
fn the_counts_hold_whatever_follows_whatever() {
    let at = Location { offset: 0, length: 8 };
    let index = |records: &[Record]| {
        let mut index = Index::default();
        records.iter().for_each(|record| index.apply(record, at));
        index
    };
    let remembered = Record::Remembered { task_id: task(1), start_by: Timestamp(1) };
    assert_eq!(index(&[accepted(1), remembered]).in_flight, 0);
    assert_eq!(index(&[accepted(1), started(1), accepted(1)]).doubtful(), [], "it stays started");
    let again = index(&[finished(1, 1), accepted(1), finished(2, 2)]);
    assert_eq!((again.in_flight, again.unreported_count()), (0, 2), "what is over stays over");
    assert_eq!(again.unreported_after(1).map(|found| found.1), Some(task(2)));
    let moved = index(&[finished(1, 1), finished(1, 3)]);
    assert_eq!((moved.unreported_count(), moved.unreported_after(0).map(|found| found.0)), (1, Some(3)));
    assert_eq!(index(&[finished(1, u64::MAX)]).unreported_after(u64::MAX), None);
}

#[test]
fn a_record_with_an_impossible_number_is_damage() {
    assert!(record::decode(&record::encode(&started(1), &[], u64::MAX).expect("encodes")).is_none());
}

#[test]
fn a_lost_record_of_the_enrollment_costs_no_other_record() {
    let folder = tempfile::tempdir().expect("folder");
    let epoch = |node_epoch| (Record::EpochReset { node_epoch }, Vec::new());
    for records in [vec![epoch(2)], vec![epoch(1), epoch(2)]] {
        let _ = std::fs::remove_file(folder.path().join("journal"));
        let skipped: usize =
            records[1..].iter().map(|(record, blob)| record::encode(record, blob, 1).expect("encodes").len()).sum();
        append_all(folder.path(), &records);
        append_all(folder.path(), &[(finished(1, 1), b"receipt".to_vec()), (accepted(2), vec![2; 100])]);
        let path = folder.path().join("journal");
        let mut rotten = std::fs::read(&path).expect("read");
        rotten[first_record() + skipped + 30] ^= 1;
        std::fs::write(&path, &rotten).expect("rot");
        let (journal, opened) = open(folder.path());
        assert!(block(journal.belong_to(2)).expect("recorded"), "the records still count");
        assert_eq!((opened.unfinished.len(), journal.unreported_count(), journal.node_epoch()), (1, 1, 2));
        drop(journal);
        let (journal, _) = open(folder.path());
        assert!(block(journal.belong_to(2)).expect("recorded"));
        assert_eq!(journal.unreported_count(), 1);
        // A new enrollment still voids them all.
        assert!(!block(journal.belong_to(3)).expect("recorded"));
        assert_eq!(journal.in_hand(), []);
    }
}

#[test]
fn a_task_whose_receipt_was_lost_but_was_reported_is_not_recovered() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(
        folder.path(),
        &[(accepted(1), vec![1; 100]), (started(1), vec![]), (Record::Reported { task_id: task(1) }, vec![])],
    );
    let (journal, opened) = open(folder.path());
    assert!(opened.unfinished.is_empty() && journal.in_hand().is_empty());
    assert_eq!(journal.lookup(task(1)), Some(Known::Finished));
}

#[test]
fn a_damaged_file_header_does_not_cost_the_records() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(folder.path(), &[(accepted(1), vec![1])]);
    let path = folder.path().join("journal");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    file.write_all_at(b"rotten", 2).expect("written");
    let (journal, opened) = open(folder.path());
    assert_eq!(opened.notices.len(), 1);
    assert!(journal.lookup(task(1)).is_some());
    drop(journal);
    std::fs::write(&path, b"not a journal at all").expect("written");
    let (journal, opened) = open(folder.path());
    assert!(opened.notices[0].contains("set aside"), "{:?}", opened.notices);
    assert!(journal.in_hand().is_empty());
    assert_eq!(std::fs::read(folder.path().join("journal.damaged-1")).expect("kept"), b"not a journal at all");
}

#[test]
fn a_journal_of_a_newer_agent_is_left_alone() {
    let folder = tempfile::tempdir().expect("folder");
    append_all(folder.path(), &[(accepted(1), vec![1])]);
    let path = folder.path().join("journal");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..12]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, &bytes).expect("written");
    assert!(matches!(Journal::open(folder.path(), CAPACITY, Timestamp(1)), Err(JournalError::Newer { version: 2, .. })));
    assert_eq!(std::fs::read(&path).expect("read"), bytes);
}

#[test]
fn a_full_journal_refuses_new_tasks_and_still_takes_every_promised_receipt() {
    let folder = tempfile::tempdir().expect("folder");
    let (journal, _) = open(folder.path());
    block(async {
        let mut taken = Vec::new();
        for n in 1..=20 {
            match journal.append(accepted(n), vec![0; 60_000]).await {
                Ok(()) => taken.push(n),
                Err(error) => {
                    assert_eq!(error, AppendError::Full);
                    break;
                }
            }
        }
        assert!((3..8).contains(&taken.len()), "{} tasks were taken", taken.len());
        for (n, sequence) in taken.iter().zip(1..) {
            journal.append(started(*n), Vec::new()).await.expect("promised");
            journal.append(finished(*n, sequence), vec![b'x'; receipt::MAX_BYTES]).await.expect("promised");
        }
        assert_eq!(journal.append(accepted(30), vec![0; 1000]).await, Err(AppendError::Full));
        // Confirmed receipts free space, once duplicates of their tasks are no longer possible.
        for n in &taken {
            journal.append(Record::Reported { task_id: task(*n) }, Vec::new()).await.expect("small");
        }
        journal.append(accepted(31), vec![0; 1000]).await.expect("room again");
    });
}

#[test]
fn a_disk_without_room_is_named_at_open() {
    let folder = tempfile::tempdir().expect("folder");
    let error = Journal::open(folder.path(), 1 << 50, Timestamp(1)).expect_err("no disk is that large");
    let text = crate::error_chain::chain(&error);
    assert!(text.contains("journal_bytes") || text.contains("File too large"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0, "nothing is left behind");
}

#[test]
fn compaction_keeps_what_matters_and_makes_the_forgotten_past_past() {
    let folder = tempfile::tempdir().expect("folder");
    let now = Timestamp::now();
    let young = now.plus(Duration::from_secs(60));
    let old = now.minus(Duration::from_secs(2 * 3600));
    let at = |n: u8, start_by| TaskNote { start_by, ..note(n) };
    let (journal, _) = open(folder.path());
    block(async {
        for (n, start_by) in [(1, old), (2, young), (3, old), (4, old)] {
            let record = Record::Accepted { task: at(n, start_by), issued_at: Timestamp(n.into()), deadline: young };
            journal.append(record, vec![n; 100]).await.expect("recorded");
        }
        for (n, start_by, sequence) in [(1, old, 1), (2, young, 2), (3, old, 3)] {
            let record = Record::Finished { task_id: task(n), start_by, sequence, receipt_digest: Digest::of(&[n]) };
            journal.append(record, vec![n; 500_000]).await.expect("recorded");
        }
        for n in [1, 2] {
            journal.append(Record::Reported { task_id: task(n) }, Vec::new()).await.expect("recorded");
        }
    });
    drop(journal);
    // Another size makes the next open compact.
    let (journal, opened) = Journal::open(folder.path(), CAPACITY * 2, now).expect("opens");
    assert!(opened.notices.iter().any(|n| n.contains("instead of")), "{:?}", opened.notices);
    assert_eq!(journal.lookup(task(1)), None, "reported and too old for any duplicate");
    assert!(journal.highest_time() > old.plus(gpuaas_contract::envelope::CLOCK_SKEW), "its start is past for ever");
    assert_eq!(journal.lookup(task(2)), Some(Known::Finished), "a duplicate could still come");
    assert_eq!(journal.lookup(task(3)), Some(Known::Finished), "not reported yet");
    assert_eq!(opened.unfinished.len(), 1);
    assert_eq!(journal.unreported_after(0).expect("one").task_id, task(3));
    assert_eq!(journal.chain(), Chain { sequence: 3, digest: Some(Digest::of(&[3])) });
    let receipt = block(journal.receipt(task(2))).expect("reads").expect("kept");
    assert_eq!(receipt, vec![2; 500_000]);
    drop(journal);
    let before = view(&Journal::open(folder.path(), CAPACITY * 2, now).expect("opens").0);
    let after = view(&Journal::open(folder.path(), CAPACITY * 2, now).expect("opens").0);
    assert_eq!(before, after);
}

#[test]
fn a_long_life_never_fills_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    let (journal, _) = open(folder.path());
    block(async {
        for n in 0..60_u64 {
            let mut id = [0_u8; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            let note = TaskNote { task_id: TaskId::from_bytes(id), start_by: Timestamp(1), ..note(1) };
            let task_id = note.task_id;
            let record = Record::Accepted { task: note, issued_at: Timestamp(1), deadline: Timestamp(2) };
            journal.append(record, vec![1; 50_000]).await.expect("there is always room");
            let record = Record::Finished { task_id, start_by: Timestamp(1), sequence: n + 1, receipt_digest: Digest::of(&id) };
            journal.append(record, vec![2; 400_000]).await.expect("there is always room");
            journal.append(Record::Reported { task_id }, Vec::new()).await.expect("there is always room");
        }
        assert_eq!(journal.chain().sequence, 60);
    });
    assert_eq!(folder.path().join("journal").metadata().expect("meta").len(), CAPACITY);
}

#[test]
fn a_busy_journal_forgets_reported_receipts_before_it_refuses_work_and_still_knows_every_task() {
    let folder = tempfile::tempdir().expect("folder");
    let (journal, _) = open(folder.path());
    let start_by = Timestamp::now().plus(Duration::from_secs(600));
    let id = |n: u64| {
        let mut bytes = [0_u8; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        TaskId::from_bytes(bytes)
    };
    block(async {
        for n in 0..60_u64 {
            let note = TaskNote { task_id: id(n), start_by, ..note(1) };
            let record = Record::Accepted { task: note, issued_at: Timestamp(1), deadline: start_by };
            journal.append(record, vec![1; 1000]).await.expect("there is room");
            let record = Record::Finished { task_id: id(n), start_by, sequence: n + 1, receipt_digest: Digest::of(&[1]) };
            journal.append(record, vec![2; 400_000]).await.expect("there is room");
            journal.append(Record::Reported { task_id: id(n) }, Vec::new()).await.expect("there is room");
        }
        for n in 0..60 {
            assert_eq!(journal.lookup(id(n)), Some(Known::Finished), "a duplicate of task {n} would run again");
        }
        assert_eq!(journal.receipt(id(0)).await, Ok(None));
        assert_eq!(journal.receipt(id(59)).await.map(|receipt| receipt.map(|r| r.len())), Ok(Some(400_000)));
    });
    let before = view(&journal);
    drop(journal);
    assert_eq!(view(&open(folder.path()).0), before);
}

#[derive(Clone, Debug)]
enum Step {
    Accept(u8),
    Start(u8),
    Finish(u8),
    Report(u8),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1_u8..12).prop_map(Step::Accept),
        3 => (1_u8..12).prop_map(Step::Start),
        3 => (1_u8..12).prop_map(Step::Finish),
        2 => (1_u8..12).prop_map(Step::Report),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_killed_and_reopened_anywhere_is_the_same_journal(steps in steps()) {
        let folder = tempfile::tempdir().expect("folder");
        let mut journal = Journal::open(folder.path(), 64 << 20, Timestamp(1)).expect("opens").0;
        let mut sequence = 0;
        for step in steps {
            let record = match step {
                Step::Accept(n) if journal.lookup(task(n)).is_none() => accepted(n),
                Step::Start(n) if matches!(journal.lookup(task(n)), Some(Known::InFlight(TaskPhase::Accepted))) => started(n),
                Step::Finish(n) if matches!(journal.lookup(task(n)), Some(Known::InFlight(_)) | None) => {
                    sequence += 1;
                    finished(n, sequence)
                }
                Step::Report(n) if matches!(journal.lookup(task(n)), Some(Known::Finished)) => Record::Reported { task_id: task(n) },
                Step::Reopen => {
                    let before = view(&journal);
                    // Not dropped first, like in a killed process.
                    let reopened = Journal::open(folder.path(), 64 << 20, Timestamp(1)).expect("opens");
                    prop_assert_eq!(reopened.1.notices.len(), 0);
                    prop_assert_eq!(view(&reopened.0), before);
                    journal = reopened.0;
                    continue;
                }
                Step::Accept(_) | Step::Start(_) | Step::Finish(_) | Step::Report(_) => continue,
            };
            block(journal.append(record, vec![1, 2, 3])).expect("recorded");
        }
    }
}
