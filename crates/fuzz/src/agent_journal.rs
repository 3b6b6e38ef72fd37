//! Target `agent_journal`: the journal opens after any damage by the disk, keeps every record that it can, and reports what it loses.
//!
//! The agent's own code writes a journal from the input. The journal is then damaged as the input specifies, opened, damaged
//! again and opened again. The state before the damage determines what must still be known after it.

use std::path::Path;

use gpuaas_agent::JournalError;
use gpuaas_agent::journal_fuzz_support::{self as journal, Opened, Place, View, Written};
use gpuaas_contract::Digest;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;
use serde_json::json;

use crate::fixture::NOW;
use crate::input::Input;

/// Size of the header, which precedes the first record.
const HEADER: usize = 4096;
/// Large enough to reserve room for a receipt. A smaller journal accepts only records that need no reservation.
const LARGE: u64 = 9 << 17;

/// Returns true if the journal opened and was not empty.
pub fn agent_journal(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let path = folder.join("journal");
    let mode = input.choose([Mode::Plausible, Mode::Plausible, Mode::Any, Mode::File]);
    let capacity =
        input.choose([8192, 8200, 9000, 10_240, 12_288, 16_384, 20_480, 8192, 8200, 9000, 10_240, 12_288, 16_384, LARGE]);
    let wanted = input.choose([capacity, capacity, capacity, capacity, capacity, 12_288, 16_384]);
    if mode == Mode::File {
        std::fs::write(&path, input.rest()).expect("written");
        let Some(opened) = open_twice(folder, wanted) else { return false };
        return !opened.view.tasks.is_empty();
    }
    let unconfirmed = usize::from(input.byte() % 16).saturating_sub(12);
    let (records, first) = match mode {
        Mode::Plausible => (plausible(&mut input), 1),
        Mode::Any | Mode::File => (any(&mut input), input.u64() / 4),
    };
    let places = journal::write(&path, capacity, &records, first, unconfirmed).expect("written");
    let mut known = journal::open(folder, capacity, NOW, Vec::new()).expect("a journal without damage opens");
    if mode == Mode::Plausible {
        assert_eq!((known.notices.as_slice(), known.damaged), ([].as_slice(), false), "nothing was damaged");
        assert_eq!(places_of(&path), places, "every record was read");
    }
    // Opening has confirmed every record. The journal is damaged twice, because the second damage may hit what the first repair left.
    for round in 0..2 {
        if round > 0 && input.is_empty() {
            break;
        }
        let before = std::fs::read(&path).expect("read");
        damage(&path, &mut input);
        let after = std::fs::read(&path).expect("read");
        let Some(opened) = open_twice(folder, wanted) else { return false };
        if mode == Mode::Plausible {
            check_survival(&before, &after, &known.view, &opened, &path);
        }
        known = opened;
    }
    append(folder, wanted, &known.view, &mut input);
    !known.view.tasks.is_empty()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Records in an order in which an agent may write them.
    Plausible,
    /// Records in any order, with arbitrary numbers.
    Any,
    /// The input is the content of the file.
    File,
}

fn places_of(path: &Path) -> Vec<Place> {
    journal::records(path).expect("read").into_iter().map(|(place, _)| place).collect()
}

/// Returns the notices about damage, leaving out those about the journal's size.
fn repairs(notices: &[String]) -> Vec<&String> {
    let about_size =
        |notice: &&String| ["now has", "is too small for", "could not be resized"].iter().any(|words| notice.contains(words));
    notices.iter().filter(|notice| !about_size(notice)).collect()
}

/// Inspects the journal, opens it, and opens it again. Returns `None` if a newer agent wrote it.
fn open_twice(folder: &Path, wanted: u64) -> Option<Opened> {
    let path = folder.join("journal");
    let bytes = std::fs::read(&path).expect("read");
    let inspected = journal::inspect(folder).expect("any file can be looked at");
    assert!(std::fs::read(&path).expect("read") == bytes, "looking has changed the file");
    let opened = match journal::open(folder, wanted, NOW, Vec::new()) {
        Ok(opened) => opened,
        Err(JournalError::Newer { version, .. }) => {
            assert_ne!(version, 1);
            assert!(std::fs::read(&path).expect("read") == bytes, "a newer agent's journal was changed");
            return None;
        }
        Err(error) => panic!("the journal does not open: {}", gpuaas_agent::error_chain::chain(&error)),
    };
    let repaired = !repairs(&opened.notices).is_empty();
    assert!(inspected.damaged || !opened.damaged, "lost records that a look did not miss: {:?}", opened.notices);
    assert_eq!(inspected.damaged, repaired, "{:?}", opened.notices);
    check_counts(&opened.view);

    let inspected = journal::inspect(folder).expect("it can still be looked at");
    assert!(!inspected.damaged, "damaged after the repair: {:?}", opened.notices);
    let again = journal::open(folder, wanted, NOW, Vec::new()).expect("what was opened opens again");
    assert_eq!(again.view, opened.view, "opened twice, it says two things");
    assert_eq!((repairs(&again.notices), again.damaged), (Vec::new(), false), "the repair is done once");
    Some(opened)
}

/// Checks the invariants of any journal, whatever its history.
fn check_counts(view: &View) {
    assert_eq!(view.in_flight, view.tasks.values().filter(|task| task.in_flight).count(), "room is promised to the wrong number");
    assert_eq!(view.unreported_count, view.unreported.len(), "receipts are counted and never sent");
    assert!(view.unreported.is_sorted_by(|one, next| one.0 < next.0));
    for (_, task_id) in &view.unreported {
        let task = &view.tasks[task_id];
        assert!(!task.in_flight && !task.reported && task.blob.is_some());
    }
}

/// Compares the state after the damage with the state before it.
fn check_survival(before: &[u8], after: &[u8], known: &View, opened: &Opened, path: &Path) {
    let view = &opened.view;
    let scratch = path.with_file_name("scratch");
    let records_in = |bytes: &[u8]| {
        std::fs::write(&scratch, bytes).expect("written");
        journal::records(&scratch).expect("read")
    };
    let (originals, readable) = (records_in(before), records_in(after));
    // The damage copied a valid record to another place. It changes the meaning of the other records, so nothing can be compared.
    if readable.iter().any(|found| !originals.contains(found)) {
        return;
    }
    let first_change = first_change(before, after);
    let length = |place: &Place| (usize::try_from(place.offset).expect("fits"), usize::try_from(place.length).expect("fits"));
    let resized = opened.notices.iter().any(|notice| notice.contains("now has"));
    let repaired = journal::records(path).expect("read");
    let mut lost = false;
    for original in &originals {
        let (offset, length) = length(&original.0);
        let intact = after.get(offset..offset + length) == before.get(offset..offset + length);
        let kept = readable.contains(original);
        lost |= !kept;
        assert!(kept || !intact, "a record that nothing happened to cannot be read any more: {original:?}");
        assert!(kept || offset + length > first_change, "a record before the damage is lost: {original:?}");
        assert!(resized || !kept || repaired.contains(original), "the repair lost {original:?}");
    }
    if lost {
        assert!(opened.damaged && !repairs(&opened.notices).is_empty(), "records are lost and nobody is told");
        assert!(view.fence >= NOW, "records are lost and their tasks could run again");
    }
    for (task_id, then) in &known.tasks {
        let Some(now) = view.tasks.get(task_id) else {
            assert!(view.fence >= NOW || (resized && then.reported), "{task_id} is forgotten and could run again");
            continue;
        };
        let ran = !then.in_flight || then.attempt > 0;
        assert!(!ran || !now.in_flight || now.attempt > 0, "{task_id} has run and looks as if it had not: {then:?}, {now:?}");
        if !lost && !resized {
            assert_eq!(now.blob, then.blob);
        }
    }
    if !lost {
        assert_eq!((view.chain.clone(), view.node_epoch), (known.chain.clone(), known.node_epoch));
        assert!(view.highest_time >= known.highest_time && view.fence >= known.fence);
    }
}

/// Appends records, and checks that everything confirmed is there the next time the journal is opened.
fn append(folder: &Path, capacity: u64, view: &View, input: &mut Input<'_>) {
    let task = |n: u8| TaskId::from_bytes([0xf0, n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    let mut records = Vec::new();
    for n in 0..=input.byte() % 4 {
        let blob = vec![n; usize::from(input.u16() % 2048)];
        let Some(sequence) = view.chain.0.checked_add(u64::from(n) + 1) else { return };
        records.push(match input.byte() % 2 {
            0 => (finished(task(n), sequence, NOW), blob),
            _ => (accepted(&note(task(n), NOW)), blob),
        });
    }
    let opened = journal::open(folder, capacity, NOW, records.clone()).expect("opens");
    check_counts(&opened.view);
    let again = journal::open(folder, capacity, NOW, Vec::new()).expect("opens");
    assert_eq!((repairs(&again.notices), again.damaged), (Vec::new(), false));
    for (n, ((_, blob), confirmed)) in (0..).zip(records.iter().zip(opened.confirmed)) {
        let found = again.view.tasks.get(&task(n));
        assert_eq!(found.is_some(), confirmed, "confirmed is recorded and recorded is confirmed");
        assert!(found.is_none_or(|task| task.blob.as_ref() == Some(blob)));
    }
}

fn note(task_id: TaskId, start_by: Timestamp) -> serde_json::Value {
    let digest = Digest::of(task_id.as_bytes());
    json!({ "task_id": task_id, "task_type": "diag.ping", "digest": digest, "correlation_id": "corr-fuzz", "start_by": start_by })
}

fn accepted(note: &serde_json::Value) -> serde_json::Value {
    json!({ "kind": "accepted", "task": note, "issued_at": NOW, "deadline": NOW })
}

fn finished(task_id: TaskId, sequence: u64, start_by: Timestamp) -> serde_json::Value {
    let receipt_digest = Digest::of(&sequence.to_le_bytes());
    json!({ "kind": "finished", "task_id": task_id, "start_by": start_by, "sequence": sequence, "receipt_digest": receipt_digest })
}

fn task(n: u8) -> TaskId {
    TaskId::from_bytes([n; 16])
}

/// Returns records as an agent writes them (accepted, started, phases, finished, reported), with up to eight tasks interleaved.
fn plausible(input: &mut Input<'_>) -> Vec<Written> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum State {
        New,
        Accepted,
        Started,
        Finished,
        Reported,
    }
    let mut records: Vec<Written> = Vec::new();
    let mut states = [State::New; 8];
    let (mut sequence, mut epoch) = (0, 0_u64);
    for _ in 0..input.byte() % 16 {
        let step = input.byte();
        let n = step % 8;
        let state = &mut states[usize::from(n)];
        let start_by = Timestamp(NOW.0 - i64::from(input.byte()) * 60_000_000);
        let note = note(task(n), start_by);
        let record = match (step / 8 % 8, *state) {
            (0 | 1, State::New) => {
                *state = State::Accepted;
                accepted(&note)
            }
            (0 | 2, State::Accepted) => {
                *state = State::Started;
                json!({ "kind": "started", "task": note, "attempt": 1, "at": NOW })
            }
            (2, State::Started) => json!({ "kind": "phase", "task_id": task(n), "phase": "mark", "at": NOW }),
            (0 | 3, State::Accepted | State::Started | State::New) => {
                *state = State::Finished;
                sequence += 1;
                finished(task(n), sequence, start_by)
            }
            (0 | 4, State::Finished) => {
                *state = State::Reported;
                json!({ "kind": "reported", "task_id": task(n) })
            }
            (5, _) => json!({ "kind": "highest_time", "at": start_by }),
            (6, _) => {
                epoch += 1;
                sequence = 0;
                states = [State::New; 8];
                json!({ "kind": "epoch_reset", "node_epoch": epoch })
            }
            (7, _) => json!({ "kind": "fence", "issued_until": Timestamp(1) }),
            (0..=4 | 8.., _) => continue,
        };
        let blob =
            if matches!(record["kind"].as_str(), Some("accepted" | "finished")) { input.short().to_vec() } else { Vec::new() };
        records.push((record, blob));
    }
    records
}

/// Returns arbitrary records in arbitrary order. No disk produces such a journal, but it must not cause a panic or a hang either.
fn any(input: &mut Input<'_>) -> Vec<Written> {
    let mut records = Vec::new();
    for _ in 0..input.byte() % 16 {
        let kind = input.byte() % 11;
        let id = task(input.byte() % 8);
        let at = Timestamp(i64::from_le_bytes(input.u64().to_le_bytes()));
        let number = match input.byte() % 4 {
            0 => u64::MAX,
            1 => input.u64(),
            _ => u64::from(input.byte()),
        };
        let record = match kind {
            0 => json!({ "kind": "accepted", "task": note(id, at), "issued_at": at, "deadline": at }),
            1 => {
                json!({ "kind": "started", "task": note(id, at), "attempt": u32::try_from(number).unwrap_or(u32::MAX), "at": at })
            }
            2 => json!({ "kind": "phase", "task_id": id, "phase": input.short_text(), "at": at }),
            3 => finished(id, number.max(1), at),
            4 => json!({ "kind": "reported", "task_id": id }),
            5 => json!({ "kind": "highest_time", "at": at }),
            6 => json!({ "kind": "epoch_reset", "node_epoch": number }),
            7 => json!({ "kind": "epoch_known", "node_epoch": number }),
            8 => json!({ "kind": "chain", "sequence": number, "receipt_digest": Digest::of(&number.to_le_bytes()) }),
            9 => json!({ "kind": "remembered", "task_id": id, "start_by": at }),
            _ => json!({ "kind": "fence", "issued_until": at }),
        };
        records.push((record, input.short().to_vec()));
    }
    records
}

/// Damages a file in ways that a disk or a power failure may.
fn damage(path: &Path, input: &mut Input<'_>) {
    let mut bytes = std::fs::read(path).expect("read");
    let used = used(&bytes);
    let heads = heads(path);
    for _ in 0..input.byte() % 6 {
        let kind = input.byte() % 10;
        let (place, length) = (usize::from(input.u16()), usize::from(input.u16()));
        let head = heads.get(place % heads.len().max(1)).copied().unwrap_or(HEADER);
        // Mostly within the records, and there mostly at the start of one.
        let at = match kind {
            0 => place % 32,
            1 | 2 => head + length % 24,
            _ if used > HEADER => HEADER + place % (used - HEADER + 64),
            _ => HEADER + place % 64,
        };
        let length = if kind.is_multiple_of(2) { length % 64 } else { length % used.max(1) };
        let end = (at + length).min(bytes.len());
        let at = at.min(end);
        match kind {
            0..=3 => {
                let change = input.byte();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= change;
                }
            }
            4 | 5 => bytes[at..end].fill(0),
            6 => {
                let new = input.take(end - at);
                bytes[at..at + new.len()].copy_from_slice(new);
            }
            7 => bytes.truncate(at),
            // A wrong length that still leads to the start of a record, but of another one.
            8 => {
                let to = heads.get(usize::from(input.byte()) % heads.len().max(1)).copied().unwrap_or(HEADER);
                if let (Ok(length), Some(field)) = (u32::try_from(to.saturating_sub(head)), bytes.get_mut(head + 4..head + 8)) {
                    field.copy_from_slice(&length.to_le_bytes());
                }
            }
            _ => {
                let from = usize::from(input.u16()) % bytes.len().max(1);
                let room = (end - at).min(bytes.len() - from);
                bytes.copy_within(from..from + room, at);
            }
        }
    }
    std::fs::write(path, bytes).expect("written");
}

/// Returns the offset of the first changed byte after the header. Compares whole blocks first: most of a file is zeros, and
/// comparing byte by byte is slow under the fuzzer's instrumentation.
fn first_change(before: &[u8], after: &[u8]) -> usize {
    let mut at = HEADER;
    while at < before.len() {
        let end = (at + 4096).min(before.len());
        if after.get(at..end) != before.get(at..end) {
            return (at..end).find(|at| after.get(*at) != before.get(*at)).unwrap_or(end);
        }
        at = end;
    }
    before.len()
}

/// Returns the offset just past the last nonzero byte.
fn used(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    while end > 0 {
        let start = end.saturating_sub(4096);
        if bytes[start..end] != [0; 4096][..end - start] {
            return bytes[start..end].iter().rposition(|byte| *byte != 0).map_or(end, |last| start + last + 1);
        }
        end = start;
    }
    0
}

/// Returns the offsets at which a record starts or ends. What follows a record may be filler.
fn heads(path: &Path) -> Vec<usize> {
    let edges = places_of(path).into_iter().flat_map(|place| [place.offset, place.offset + place.length]);
    let mut heads: Vec<usize> = edges.map(|edge| usize::try_from(edge).expect("fits")).chain([HEADER]).collect();
    heads.sort_unstable();
    heads.dedup();
    heads
}
