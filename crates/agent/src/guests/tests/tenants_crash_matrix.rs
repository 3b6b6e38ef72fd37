//! Every operation of creating and of removing a tenant's user × before or after its effect × killed, I/O error.
//!
//! Each cell asserts that its fault fired, and ends with a user under a lease or with nothing at all.

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::Task;
use gpuaas_host::sim::{Fault, FaultKind, Target, When};

use super::rig::{Ended, PERMISSIVE, Rig};
use super::tenants::{come, go};

const NAME: &str = "tenant-1";

/// The scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A user is created; after a kill it continues.
    Come,
    /// A user is created; after a kill the owner no longer allows it, so it is undone.
    ComeRevoked,
    /// An active user is removed.
    Go,
}

fn task(scene: Scene, tenant: AllocationId) -> Task {
    match scene {
        Scene::Come | Scene::ComeRevoked => come(tenant, 1, NAME),
        Scene::Go => go(tenant, 1, NAME),
    }
}

async fn ready(scene: Scene, tenant: AllocationId) -> Rig {
    let rig = Rig::new().await;
    if scene == Scene::Go {
        let made = rig.run(&come(tenant, 1, NAME)).await;
        assert_eq!(made.outcome, Outcome::Succeeded, "{made:?}");
    }
    rig
}

async fn operations(scene: Scene) -> u64 {
    let tenant = AllocationId::generate();
    let rig = ready(scene, tenant).await;
    let before = rig.life.sim.calls().len();
    let ended = rig.run(&task(scene, tenant)).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{ended:?}");
    (rig.life.sim.calls().len() - before) as u64
}

async fn cell(scene: Scene, number: u64, when: When, kind: FaultKind) {
    let what = format!("{scene:?}, operation {number}, {when:?}, {kind:?}");
    let tenant = AllocationId::generate();
    let mut rig = ready(scene, tenant).await;
    let task = task(scene, tenant);
    rig.life.sim.arm(Fault { at: Target::Number(number), when, kind, times: 1 });
    let task_id = rig.give(&task);
    if kind == FaultKind::Kill {
        rig.life.sim.killed().await;
        rig.kill().await;
        assert_eq!(rig.life.sim.fired().len(), 1, "{what}");
        if scene == Scene::ComeRevoked {
            let policy = PERMISSIVE.replace("usernames = [\"tenant-*\"]", "usernames = []");
            gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), policy.as_bytes()).expect("policy");
        }
        rig.revive().await;
    }
    let ended = rig.receipt(task_id, task.task_type()).await;
    if kind != FaultKind::Kill {
        assert_eq!(rig.life.sim.fired().len(), 1, "{what}: the fault did not fire");
        rig.life.sim.disarm();
    }
    check(&rig, &ended, scene, &what);
    gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), PERMISSIVE.as_bytes()).expect("policy");
    let settled = rig.run(&go(tenant, 1, NAME)).await;
    assert_eq!(settled.outcome, Outcome::Succeeded, "{what}: {settled:?}");
    assert!(rig.life.sim.leftovers().is_empty(), "{what}: {:?}", rig.life.sim.leftovers());
    assert_eq!(rig.life.sim.violations(), [""; 0], "{what}");
}

/// Checks that the receipt matches the state.
fn check(rig: &Rig, ended: &Ended, scene: Scene, what: &str) {
    assert_eq!(rig.life.sim.violations(), [""; 0], "{what}: {ended:?}");
    let left = rig.life.sim.leftovers();
    match (ended.outcome, scene) {
        (Outcome::Succeeded, Scene::Go) => assert!(left.is_empty(), "{what}: {left:?}"),
        (Outcome::Succeeded, Scene::Come | Scene::ComeRevoked) => {
            assert!(left.leases.len() == 1 && rig.life.sim.user(NAME).is_some(), "{what}: {left:?}");
        }
        // A machine is free only if nothing is left on it.
        _ if left.leases.is_empty() => assert!(left.is_empty(), "{what}: {ended:?} {left:?}"),
        (_, Scene::Go) => {}
        (_, Scene::Come | Scene::ComeRevoked) => assert_eq!(ended.code, "user_not_gone", "{what}: {ended:?} {left:?}"),
    }
}

async fn matrix(scene: Scene, kinds: &[FaultKind]) {
    let operations = operations(scene).await;
    for number in 1..=operations {
        for when in [When::Before, When::After] {
            for kind in kinds {
                cell(scene, number, when, *kind).await;
            }
        }
    }
    println!("{scene:?}: {operations} operations, {} cells", operations * 2 * kinds.len() as u64);
}

#[tokio::test]
async fn making_a_user_that_is_hit_anywhere_leaves_the_user_or_nothing() {
    matrix(Scene::Come, &[FaultKind::Kill, FaultKind::IoError]).await;
}

#[tokio::test]
async fn making_a_user_that_is_killed_and_may_not_go_on_leaves_nothing() {
    matrix(Scene::ComeRevoked, &[FaultKind::Kill]).await;
}

#[tokio::test]
async fn ending_a_user_that_is_hit_anywhere_frees_nothing_without_proof() {
    matrix(Scene::Go, &[FaultKind::Kill, FaultKind::IoError]).await;
}
