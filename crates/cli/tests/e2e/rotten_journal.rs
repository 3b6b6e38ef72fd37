//! The journal is truncated or corrupted: the agent starts, reports what it found, and runs nothing twice.
//!
//! The damage is done to copies of one journal with tasks in every state: reported, finished but not reported, started, accepted.
//! Afterwards, every task is delivered again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use base64::Engine as _;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::receipt::{Outcome, Payload};
use gpuaas_testkit::{PATIENCE, TempDir, eventually, proof_count};

use crate::doubled_agent::{DoubledAgent, Random};
use crate::link_double::LinkDouble;

/// Number of tasks in each of the four states.
const EACH: usize = 3;
/// Size of the header, which precedes the first record.
const HEADER: usize = 4096;

/// A way to damage a journal.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// Truncates the file at this offset.
    Truncate(usize),
    /// Flips these bits.
    Flip { bits: [usize; 4], count: usize },
    /// Overwrites 512 bytes with garbage.
    Garbage { at: usize, seed: u64 },
    /// Overwrites 512 bytes with zeros.
    Zeros { at: usize },
}

impl Damage {
    /// Damages the file. Returns whether its content has changed.
    fn apply(self, path: &Path) -> bool {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let before = std::fs::read(path).unwrap();
        match self {
            Self::Truncate(at) => file.set_len(at as u64).unwrap(),
            Self::Flip { bits, count } => {
                for bit in &bits[..count] {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, (*bit / 8) as u64).unwrap();
                    file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], (*bit / 8) as u64).unwrap();
                }
            }
            Self::Garbage { at, seed } => {
                let mut random = Random(seed);
                let bytes: Vec<u8> = (0..512).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
                file.write_all_at(&bytes, at as u64).unwrap();
            }
            Self::Zeros { at } => file.write_all_at(&[0; 512], at as u64).unwrap(),
        }
        std::fs::read(path).unwrap() != before
    }
}

/// A journal with a history, and what is known about it.
struct History {
    double: LinkDouble,
    agent: DoubledAgent,
    dir: TempDir,
    tasks: Vec<(TaskId, Vec<u8>)>,
    /// Tasks whose receipts were confirmed.
    reported: HashSet<TaskId>,
    /// Tasks that were finished but not confirmed, with their receipts.
    unreported: HashMap<TaskId, Vec<u8>>,
    /// How often each task was started for the first time.
    starts: BTreeMap<TaskId, usize>,
    /// Offsets at which each record starts, and at which the last one ends.
    boundaries: Vec<usize>,
}

impl History {
    fn make() -> Self {
        let (double, dir) = (LinkDouble::start(), TempDir::new());
        let settings = "max_tasks = 3\njournal_bytes = 16777216\nlog_level = \"info\"";
        let mut agent = DoubledAgent::start(&double, &dir, "stream", settings);
        let node = agent.node;
        let mut tasks = Vec::new();
        let mut deliver = |params: serde_json::Value| {
            let signed: Vec<_> = (0..EACH).map(|_| double.sign_ping_with(node, &params)).collect();
            double.deliver(node, signed.clone());
            tasks.extend(signed.clone());
            signed.into_iter().map(|(id, _)| id).collect::<HashSet<_>>()
        };
        let ping = || serde_json::json!({ "message": "once" });
        let has_receipts =
            |wanted: &HashSet<TaskId>| wanted.is_subset(&double.receipts(node).into_keys().collect()).then_some(());
        let logged = |program: &gpuaas_testkit::Program, text: &str| program.stderr().matches(text).count();

        let reported = deliver(ping());
        eventually(PATIENCE, "the first tasks are reported", || has_receipts(&reported));
        eventually(PATIENCE, "the agent knows that", || {
            let status = std::fs::read_to_string(agent.folder.join("state/status.json")).unwrap_or_default();
            serde_json::from_str::<serde_json::Value>(&status).ok().filter(|s| s["unreported"] == 0)
        });
        double.set_deaf(true);
        let finished = deliver(ping());
        eventually(PATIENCE, "the next tasks are finished", || has_receipts(&finished));
        let mut receipts = double.receipt_bytes(node);
        let unreported = finished.iter().map(|id| (*id, receipts.remove(id).unwrap().remove(0))).collect();
        deliver(serde_json::json!({ "message": "held", "hold_ms": 600_000 }));
        eventually(PATIENCE, "the held tasks are started", || (logged(&agent.program, "task started") == 3 * EACH).then_some(()));
        deliver(ping());
        eventually(PATIENCE, "the last tasks are accepted", || {
            (logged(&agent.program, "task accepted") == 4 * EACH).then_some(())
        });
        agent.program.sigkill();
        double.set_deaf(false);
        let starts = first_starts(&agent.program.stderr());
        copy_folder(&agent.folder.join("state"), &dir.join("snapshot"));
        let boundaries = boundaries(&std::fs::read(dir.join("snapshot/journal")).unwrap());
        assert!(boundaries.len() > 3 * EACH, "the journal has {} records", boundaries.len());
        Self { double, agent, dir, tasks, reported, unreported, starts, boundaries }
    }

    /// Restarts the agent on a damaged copy, and delivers every task again.
    fn try_out(&mut self, damage: Damage, random: &mut Random) {
        let state = self.agent.folder.join("state");
        std::fs::remove_dir_all(&state).unwrap();
        copy_folder(&self.dir.join("snapshot"), &state);
        let changed = damage.apply(&state.join("journal"));
        let node = self.agent.node;
        self.double.forget(node);
        self.agent.restart(&self.double);
        let mut again = self.tasks.clone();
        random.shuffle(&mut again);
        self.double.deliver(node, again);
        eventually(PATIENCE, &format!("every task is answered after {damage:?}"), || {
            let answered = self.double.receipts(node);
            // The journal may have dropped receipts that were confirmed.
            let owed = |id: &TaskId| !self.reported.contains(id);
            self.tasks.iter().all(|(id, _)| !owed(id) || answered.contains_key(id)).then_some(())
        });
        // The agent keeps working. Once this task has run, every earlier task that was due to start has been started as well.
        let fresh = self.double.sign_ping(node);
        self.double.deliver(node, [fresh.clone()]);
        let receipt = eventually(PATIENCE, &format!("a new task runs after {damage:?}"), || {
            self.double.receipt_bytes(node).remove(&fresh.0).map(|mut receipts| receipts.remove(0))
        });
        assert_eq!(payload(&receipt).outcome, Outcome::Succeeded, "{damage:?}");
        self.agent.program.sigkill();
        self.check(damage, changed);
    }

    fn check(&self, damage: Damage, changed: bool) {
        let log = self.agent.program.stderr();
        assert_eq!(log.contains("local state was repaired"), changed, "{damage:?} and what was said of it");
        let (effects, starts) = (self.agent.effects(), first_starts(&log));
        let receipts = self.double.receipt_bytes(self.agent.node);
        for (id, _) in &self.tasks {
            let started = self.starts.get(id).unwrap_or(&0) + starts.get(id).unwrap_or(&0);
            assert!(started <= 1, "{damage:?}: {id} was started {started} times");
            let marks = effects.get(id).copied().unwrap_or(0);
            assert!(marks <= 1, "{damage:?}: {id} left {marks} marks");
            for receipt in receipts.get(id).into_iter().flatten() {
                let report = payload(receipt);
                match report.outcome {
                    Outcome::Succeeded => assert_eq!(marks, 1, "{damage:?}: a false success of {id}"),
                    Outcome::Refused => {
                        assert_eq!(marks, 0, "{damage:?}: {id} is said to be refused ({}) and ran", report.code);
                    }
                    Outcome::Interrupted => {}
                    Outcome::Failed | Outcome::Cancelled => panic!("{damage:?}: {id} is {} ({})", report.code, report.message),
                }
            }
        }
        for id in &self.reported {
            assert_eq!(effects.get(id), Some(&1), "{damage:?}: the mark of {id}");
        }
        // A single flipped bit costs only the record that it is in.
        let lost = self.unreported.iter().filter(|(id, receipt)| !receipts[id].contains(receipt)).count();
        if matches!(damage, Damage::Flip { count: 1, .. }) || !changed {
            assert!(lost <= usize::from(changed), "{damage:?} cost {lost} receipts");
        }
    }
}

/// Returns the offsets of the records: `magic u32 | body length u32 | …`, 24 bytes in total before the body, padded to 8.
fn boundaries(journal: &[u8]) -> Vec<usize> {
    let word = |at: usize| u32::from_le_bytes(journal[at..at + 4].try_into().unwrap());
    let mut found = vec![HEADER];
    while word(found[found.len() - 1]) == 0x4a52_4543 {
        let at = found[found.len() - 1];
        found.push((at + 24 + usize::try_from(word(at + 4)).unwrap()).next_multiple_of(8));
    }
    found
}

/// Returns the number of starts per task that are not recoveries, from the agent's log.
fn first_starts(log: &str) -> BTreeMap<TaskId, usize> {
    let mut counts = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("task started")) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if line["recovering"] == false {
            let id = line["span"]["task_id"].as_str().and_then(|id| id.parse().ok());
            *counts.entry(id.unwrap_or_else(|| panic!("no task id in {line}"))).or_default() += 1;
        }
    }
    counts
}

pub(crate) fn payload(receipt: &[u8]) -> Payload {
    let wire: serde_json::Value = serde_json::from_slice(receipt).unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(wire["payload"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_truncated_journal_runs_nothing_twice() {
    let mut history = History::make();
    let mut random = Random(11);
    let end = history.boundaries[history.boundaries.len() - 1];
    let edges = [0, 1, 16, HEADER, end - 1, end, end + 8];
    for case in 0..proof_count(14, 400) {
        let at = match edges.get(case) {
            Some(edge) => *edge,
            // Every other time exactly between two records, where nothing looks torn.
            None if case % 2 == 0 => history.boundaries[random.below(history.boundaries.len())],
            None => random.below(end),
        };
        history.try_out(Damage::Truncate(at), &mut random);
    }
}

#[test]
fn a_rotten_journal_runs_nothing_twice_and_a_flipped_bit_costs_one_record() {
    let mut history = History::make();
    let mut random = Random(13);
    let end = history.boundaries[history.boundaries.len() - 1];
    let data = |random: &mut Random| HEADER + random.below(end - HEADER);
    // The start of the first records, where the agent writes which enrollment the journal belongs to.
    let firsts: Vec<usize> = history.boundaries.iter().take(3).map(|at| (at + 30) * 8).collect();
    for case in 0..proof_count(18, 600) {
        let damage = match (case, firsts.get(case)) {
            (_, Some(bit)) => Damage::Flip { bits: [*bit; 4], count: 1 },
            // The header of the file.
            (3..6, None) => Damage::Flip { bits: [random.below(28 * 8); 4], count: 1 },
            _ if case % 4 == 0 => Damage::Garbage { at: data(&mut random) / 512 * 512, seed: random.0 },
            _ if case % 4 == 1 => Damage::Zeros { at: data(&mut random) / 512 * 512 },
            _ if case % 4 == 2 => {
                let bits = [0; 4].map(|_: usize| data(&mut random) * 8 + random.below(8));
                Damage::Flip { bits, count: 4 }
            }
            _ => Damage::Flip { bits: [data(&mut random) * 8 + random.below(8); 4], count: 1 },
        };
        history.try_out(damage, &mut random);
    }
}
