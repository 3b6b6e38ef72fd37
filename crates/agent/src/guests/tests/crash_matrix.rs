//! Every operation of a provision and of a release × before or after its effect × killed, I/O error, disk full.
//!
//! The operations include a point before each phase, one after its journal record and one after its effect, so the matrix covers
//! every phase. Each cell asserts that its fault fired, and ends with nothing left behind and no slot free without proof.

use std::collections::BTreeSet;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::Task;
use gpuaas_contract::task::slice_vm_provision::PHASES;
use gpuaas_host::sim::{Fault, FaultKind, Operation, Target, When};

use super::rig::{Ended, PERMISSIVE, Rig, provision, release};

const KINDS: [FaultKind; 3] = [FaultKind::Kill, FaultKind::IoError, FaultKind::DiskFull];
const WHENS: [When; 2] = [When::Before, When::After];

/// The scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A provision; after a kill it continues.
    Provision,
    /// A provision; after a kill the owner no longer allows it, so it is undone.
    ProvisionRevoked,
    /// A release of a running guest.
    Release,
}

struct Cell {
    /// Phase and point of a checkpoint, if that was hit.
    at: (String, Operation, String),
    fired: bool,
}

async fn operations(scene: Scene) -> u64 {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0, 5]));
    if scene == Scene::Release {
        let made = rig.run(&provision(allocation, 1, slots.clone())).await;
        assert_eq!(made.outcome, Outcome::Succeeded, "{made:?}");
    }
    let before = rig.life.sim.calls().len();
    let ended = rig.run(&task(scene, allocation, slots)).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{ended:?}");
    (rig.life.sim.calls().len() - before) as u64
}

fn task(scene: Scene, allocation: AllocationId, slots: Vec<LeasedSlot>) -> Task {
    match scene {
        Scene::Provision | Scene::ProvisionRevoked => provision(allocation, 1, slots),
        Scene::Release => Task::SliceVmRelease(release(allocation, 1, slots)),
    }
}

async fn cell(scene: Scene, number: u64, when: When, kind: FaultKind) -> Cell {
    let what = format!("{scene:?}, operation {number}, {when:?}, {kind:?}");
    let mut rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0, 5]));
    if scene == Scene::Release {
        rig.run(&provision(allocation, 1, slots.clone())).await;
    }
    let task = task(scene, allocation, slots.clone());
    rig.life.sim.arm(Fault { at: Target::Number(number), when, kind, times: 1 });
    let task_id = rig.give(&task);
    let ended = if kind == FaultKind::Kill {
        rig.life.sim.killed().await;
        rig.kill().await;
        let fired = rig.life.sim.fired();
        assert_eq!(fired.len(), 1, "{what}");
        if scene == Scene::ProvisionRevoked {
            let policy = PERMISSIVE.replace("\"slice.vm_provision\", ", "");
            gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), policy.as_bytes()).expect("policy");
        }
        let before = rig.life.sim.clone();
        rig.revive().await;
        let ended = rig.receipt(task_id, task.task_type()).await;
        check(&rig, &ended, &slots, scene, &what);
        settle(&rig, allocation, &slots, &what).await;
        return hit(&before);
    } else {
        rig.receipt(task_id, task.task_type()).await
    };
    let hit = hit(&rig.life.sim);
    rig.life.sim.disarm();
    check(&rig, &ended, &slots, scene, &what);
    settle(&rig, allocation, &slots, &what).await;
    hit
}

fn hit(sim: &gpuaas_host::SimHost) -> Cell {
    let fired = sim.fired();
    let at = fired.first().map(|call| (call.phase.to_owned(), call.operation, call.subject.clone()));
    Cell { fired: fired.len() == 1, at: at.unwrap_or((String::new(), Operation::Checkpoint, String::new())) }
}

/// Checks that the receipt matches the state.
fn check(rig: &Rig, ended: &Ended, slots: &[LeasedSlot], scene: Scene, what: &str) {
    assert_eq!(rig.life.sim.violations(), [""; 0], "{what}: {ended:?}");
    let left = rig.life.sim.leftovers();
    match (ended.outcome, scene) {
        (Outcome::Succeeded, Scene::Release) => assert!(left.is_empty(), "{what}: {left:?}"),
        (Outcome::Succeeded, Scene::Provision | Scene::ProvisionRevoked) => {
            assert_eq!((left.leases.len(), left.domains.len()), (2, 1), "{what}: {left:?}");
        }
        (Outcome::Failed | Outcome::Cancelled | Outcome::Interrupted | Outcome::Refused, _) => {
            let proven = ended.proof.as_ref().is_some_and(|proof| proof.blockers(slots, true).is_empty());
            // No lease without a reason, and no slot dropped without a proof.
            assert_eq!(left.leases.is_empty(), proven, "{what}: {ended:?} {left:?}");
            assert!(!proven || left.is_empty(), "{what}: {left:?}");
            assert!(proven || scene == Scene::Release || ended.code == "cleanup_blocked", "{what}: {ended:?}");
        }
    }
}

/// Cleans up as an operator, and checks that nothing is left.
async fn settle(rig: &Rig, allocation: AllocationId, slots: &[LeasedSlot], what: &str) {
    let ended = rig.run(&Task::SliceVmRelease(release(allocation, 1, slots.to_vec()))).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{what}: {ended:?}");
    let left = rig.life.sim.leftovers();
    assert!(left.is_empty(), "{what}: {left:?}");
    assert_eq!(rig.life.sim.violations(), [""; 0], "{what}");
    assert_eq!(ended.proof.expect("a proof").blockers(slots, true), [], "{what}");
}

/// Runs the whole matrix of a scenario and returns the points that were hit.
async fn matrix(scene: Scene, kinds: &[FaultKind]) -> BTreeSet<String> {
    let operations = operations(scene).await;
    let mut points = BTreeSet::new();
    for number in 1..=operations {
        for when in WHENS {
            for kind in kinds {
                let cell = cell(scene, number, when, *kind).await;
                assert!(cell.fired, "{scene:?}, operation {number}, {when:?}, {kind:?}: the fault did not fire");
                if cell.at.1 == Operation::Checkpoint {
                    points.insert(format!("{} {kind:?}", cell.at.2));
                }
            }
        }
    }
    println!("{scene:?}: {operations} operations, {} cells", operations * (WHENS.len() * kinds.len()) as u64);
    points
}

fn has_every_point(points: &BTreeSet<String>, phases: &[&str], kinds: &[FaultKind]) {
    for phase in phases {
        for kind in kinds {
            let of_phase =
                points.iter().filter(|point| point.starts_with(*phase) && point.ends_with(&format!("{kind:?}"))).count();
            assert!(of_phase >= 3, "{phase} {kind:?}: {of_phase} points of it were hit: {points:?}");
        }
    }
}

#[tokio::test]
async fn a_provision_that_is_hit_anywhere_leaves_a_guest_or_nothing() {
    let points = matrix(Scene::Provision, &KINDS).await;
    has_every_point(&points, &PHASES, &KINDS);
}

#[tokio::test]
async fn a_provision_that_is_killed_and_may_not_go_on_leaves_nothing() {
    let points = matrix(Scene::ProvisionRevoked, &[FaultKind::Kill]).await;
    has_every_point(&points, &PHASES, &[FaultKind::Kill]);
}

#[tokio::test]
async fn a_release_that_is_hit_anywhere_frees_nothing_without_proof() {
    let points = matrix(Scene::Release, &KINDS).await;
    has_every_point(&points, &["lease", "shutdown", "cleanup"], &KINDS);
}
