//! Tenants of the whole host: who gets a user, who does not, and what is left afterwards.

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_contract::task::{Task, TaskType, allocation_deprovision_user, allocation_provision_user};
use gpuaas_host::sim::{Fault, FaultKind, Operation, Target, When};
use gpuaas_host::users::{SystemUser, comment_of, home_of};

use super::rig::{Ended, PERMISSIVE, Rig, provision, release};

pub(super) fn key(number: u8) -> SshPublicKey {
    use base64::Engine as _;
    let mut bytes = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    bytes.extend([number; 32]);
    format!("ssh-ed25519 {}", base64::engine::general_purpose::STANDARD.encode(bytes)).parse().expect("a key")
}

/// Returns the task that creates a user for a tenant.
pub(super) fn user(allocation_id: AllocationId, lease_epoch: u64, name: &str) -> allocation_provision_user::Params {
    allocation_provision_user::Params {
        allocation_id,
        lease_epoch,
        username: name.parse().expect("a name"),
        ssh_public_keys: vec![key(1), key(2)],
        sudo: true,
    }
}

pub(super) fn come(allocation_id: AllocationId, lease_epoch: u64, name: &str) -> Task {
    Task::AllocationProvisionUser(user(allocation_id, lease_epoch, name))
}

fn end(allocation_id: AllocationId, lease_epoch: u64, name: &str, take_over: bool) -> Task {
    let username = name.parse().expect("a name");
    Task::AllocationDeprovisionUser(allocation_deprovision_user::Params { allocation_id, lease_epoch, username, take_over })
}

/// Returns the task that removes it.
pub(super) fn go(allocation_id: AllocationId, lease_epoch: u64, name: &str) -> Task {
    end(allocation_id, lease_epoch, name, false)
}

fn failed_with(ended: &Ended, code: &str) {
    assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Failed, code), "{ended:?}");
}

fn clean(rig: &Rig) {
    assert!(rig.life.sim.leftovers().is_empty(), "{:?}", rig.life.sim.leftovers());
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

fn stranger(name: &str, uid: u32, comment: String) -> SystemUser {
    SystemUser { name: name.to_owned(), uid, gid: uid, comment, home: home_of(name) }
}

#[tokio::test]
async fn a_tenant_comes_and_works_and_goes_without_a_trace() {
    let rig = Rig::new().await;
    let tenant = AllocationId::generate();
    let made = rig.run(&come(tenant, 1, "tenant-1")).await;
    assert_eq!(made.outcome, Outcome::Succeeded, "{made:?}");
    assert_eq!(made.phases, ["lease", "number", "account", "keys", "sudo"]);
    let output = made.output.expect("an output");
    assert_eq!((&output["created"], &output["keys"], &output["home"]), (&true.into(), &2.into(), &home_of("tenant-1").into()));
    let there = rig.life.sim.user("tenant-1").expect("there");
    assert_eq!((there.user.allocation(), there.sudo, there.keys.len()), (Some(tenant), true, 2));

    let gone = rig.run(&go(tenant, 1, "tenant-1")).await;
    assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    assert_eq!(gone.phases, ["lease", "identify", "close", "processes", "files", "account", "proof"]);
    let output = gone.output.expect("an output");
    for (field, value) in [
        ("existed", serde_json::json!(true)),
        ("sessions_ended", serde_json::json!(1)),
        ("processes_ended", serde_json::json!(3)),
        ("files_removed", serde_json::json!(6)),
        ("home_removed", serde_json::json!(true)),
    ] {
        assert_eq!(output[field], value, "{field}");
    }
    clean(&rig);
}

#[tokio::test]
async fn twice_is_once_and_the_second_time_replaces_the_keys() {
    let rig = Rig::new().await;
    let tenant = AllocationId::generate();
    let first = rig.run(&come(tenant, 1, "tenant-1")).await.output.expect("an output");
    let again =
        allocation_provision_user::Params { ssh_public_keys: vec![key(3), key(3)], sudo: false, ..user(tenant, 1, "tenant-1") };
    let second = rig.run(&Task::AllocationProvisionUser(again.clone())).await.output.expect("an output");
    assert_eq!((&second["uid"], &second["created"], &second["keys"]), (&first["uid"], &false.into(), &1.into()));
    let there = rig.life.sim.user("tenant-1").expect("there");
    assert_eq!((there.keys, there.sudo), (vec![key(3).to_string()], false));
    // A failed replacement does not remove a user.
    rig.life.sim.arm(Fault {
        at: Target::Operation(Operation::UserKeys),
        when: When::Before,
        kind: FaultKind::IoError,
        times: 1,
    });
    failed_with(&rig.run(&Task::AllocationProvisionUser(again)).await, "io_error");
    assert!(rig.life.sim.user("tenant-1").is_some());

    let gone = go(tenant, 1, "tenant-1");
    assert_eq!(rig.run(&gone).await.output.expect("an output")["existed"], true);
    let twice = rig.run(&gone).await;
    assert_eq!(twice.outcome, Outcome::Succeeded, "{twice:?}");
    let output = twice.output.expect("an output");
    assert_eq!((&output["existed"], &output["files_removed"]), (&false.into(), &0.into()));
    clean(&rig);
}

#[tokio::test]
async fn a_name_that_is_somebodys_is_not_given_and_the_user_is_not_touched() {
    let rig = Rig::new().await;
    let policy = PERMISSIVE.replace("tenant-*", "*");
    gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), policy.as_bytes()).expect("policy");
    let (tenant, other) = (AllocationId::generate(), AllocationId::generate());
    rig.life.sim.add_user(stranger("tenant-9", 20_009, comment_of(other))).expect("added");
    rig.life.sim.add_user(stranger("tenant-8", 999, comment_of(tenant))).expect("added");
    for name in ["debian", "sshd", "tenant-9", "tenant-8"] {
        let before = rig.life.sim.user(name).expect("there");
        failed_with(&rig.run(&come(tenant, 1, name)).await, "user_exists");
        let code = if name == "tenant-9" { "user_of_another_allocation" } else { "user_not_ours" };
        failed_with(&rig.run(&go(tenant, 1, name)).await, code);
        // A user that no allocation created is never removed, by any takeover.
        if name != "tenant-9" {
            failed_with(&rig.run(&end(tenant, 1, name, true)).await, "user_not_ours");
        }
        assert_eq!(rig.life.sim.user(name), Some(before), "{name}");
    }
    assert_eq!(rig.life.sim.leftovers().leases, [""; 0], "a refusal leases nothing");
    // A file where the home would be belongs to someone too.
    rig.life.sim.add_file(1000, &format!("{}/thesis.tex", home_of("tenant-7"))).expect("added");
    let refused = rig.run(&come(tenant, 1, "tenant-7")).await;
    failed_with(&refused, "user_exists");
    assert!(refused.message.contains(&home_of("tenant-7")), "{}", refused.message);
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn a_number_that_files_belong_to_is_not_given_nor_is_the_last_tenants() {
    let rig = Rig::new().await;
    rig.life.sim.add_file(20_000, "/srv/old/data").expect("added");
    let mut numbers = Vec::new();
    for epoch in 1..=3 {
        let tenant = AllocationId::generate();
        let made = rig.run(&come(tenant, epoch, "tenant-1")).await;
        numbers.push(made.output.expect("an output")["uid"].as_u64().expect("a number"));
        let gone = rig.run(&go(tenant, epoch, "tenant-1")).await;
        assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    }
    assert_eq!(numbers, [20_001, 20_002, 20_003]);
    assert_eq!(rig.life.sim.leftovers().users, ["/srv/old/data of 20000"], "what was there before stays");
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn late_orders_of_earlier_holders_are_refused() {
    let rig = Rig::new().await;
    let (old, new) = (AllocationId::generate(), AllocationId::generate());
    rig.run(&come(old, 5, "tenant-1")).await;
    failed_with(&rig.run(&come(new, 6, "tenant-2")).await, "machine_leased");
    failed_with(&rig.run(&go(new, 6, "tenant-1")).await, "machine_leased");
    failed_with(&rig.run(&go(old, 4, "tenant-1")).await, "machine_leased");
    failed_with(&rig.run(&come(old, 5, "tenant-2")).await, "machine_leased");
    failed_with(&rig.run(&go(old, 5, "tenant-2")).await, "user_differs");
    assert!(rig.life.sim.user("tenant-1").is_some());
    rig.run(&go(old, 5, "tenant-1")).await;
    failed_with(&rig.run(&come(old, 5, "tenant-1")).await, "lease_epoch_stale");
    assert_eq!(rig.run(&come(new, 6, "tenant-1")).await.outcome, Outcome::Succeeded);
    for late in [go(old, 5, "tenant-1"), come(old, 5, "tenant-1"), end(old, 5, "tenant-1", true)] {
        let ended = rig.run(&late).await;
        assert_eq!(ended.outcome, Outcome::Failed, "{ended:?}");
        assert_eq!(rig.life.sim.user("tenant-1").expect("there").user.allocation(), Some(new));
    }
    rig.run(&go(new, 6, "tenant-1")).await;
    failed_with(&rig.run(&go(old, 5, "tenant-1")).await, "lease_epoch_stale");
    clean(&rig);
}

#[tokio::test]
async fn an_earlier_tenants_remains_are_taken_over_by_a_higher_number_only() {
    let rig = Rig::new().await;
    let (old, new) = (AllocationId::generate(), AllocationId::generate());
    rig.run(&come(old, 5, "tenant-1")).await;
    failed_with(&rig.run(&end(new, 5, "tenant-1", true)).await, "machine_leased");
    failed_with(&rig.run(&end(new, 6, "tenant-2", true)).await, "user_differs");
    let taken = rig.run(&end(new, 6, "tenant-1", true)).await;
    assert_eq!(taken.outcome, Outcome::Succeeded, "{taken:?}");
    clean(&rig);
    failed_with(&rig.run(&go(old, 5, "tenant-1")).await, "lease_epoch_stale");
    // Also without a lease, if an allocation created the user.
    rig.life.sim.add_user(stranger("tenant-3", 20_300, comment_of(old))).expect("added");
    failed_with(&rig.run(&go(new, 7, "tenant-3")).await, "user_of_another_allocation");
    let taken = rig.run(&end(new, 7, "tenant-3", true)).await;
    assert_eq!(taken.outcome, Outcome::Succeeded, "{taken:?}");
    clean(&rig);
}

#[tokio::test]
async fn either_the_machine_is_leased_or_its_slots_are() {
    let rig = Rig::new().await;
    let (guest, tenant, slots) = (AllocationId::generate(), AllocationId::generate(), rig.slots(&[0]));
    rig.run(&provision(guest, 1, slots.clone())).await;
    failed_with(&rig.run(&come(tenant, 1, "tenant-1")).await, "slots_leased");
    assert!(rig.life.sim.user("tenant-1").is_none());
    let release = |epoch| Task::SliceVmRelease(release(guest, epoch, slots.clone()));
    assert_eq!(rig.run(&release(1)).await.outcome, Outcome::Succeeded);
    assert_eq!(rig.run(&come(tenant, 1, "tenant-1")).await.outcome, Outcome::Succeeded);
    failed_with(&rig.run(&provision(guest, 2, slots.clone())).await, "machine_leased");
    let refused = rig.run(&release(1)).await;
    assert_eq!(refused.code, "machine_leased", "nothing is reset or wiped under a tenant: {refused:?}");
    // The tenant may use the host's own drivers on every device.
    let function = slots[0].spec.pci_address.clone().expect("a GPU");
    rig.life.sim.unbind_outside(&function).expect("set");
    assert_eq!(rig.life.guests.reconcile(&rig.host(), "boot").await, []);
    assert_ne!(rig.host().function_state(&function).await.expect("known").driver, "vfio-pci");
    assert_eq!(rig.run(&go(tenant, 1, "tenant-1")).await.outcome, Outcome::Succeeded);
    assert_eq!(rig.run(&provision(guest, 3, slots.clone())).await.outcome, Outcome::Succeeded);
    assert_eq!(rig.run(&Task::SliceVmRelease(super::rig::release(guest, 3, slots))).await.outcome, Outcome::Succeeded);
    clean(&rig);
}

#[tokio::test]
async fn a_user_who_does_not_go_keeps_the_machine_and_the_receipt_says_what_is_left() {
    let rig = Rig::new().await;
    let tenant = AllocationId::generate();
    let uid = rig.run(&come(tenant, 1, "tenant-1")).await.output.expect("an output")["uid"].as_u64().expect("a number");
    let uid = u32::try_from(uid).expect("small");
    rig.life.sim.undying(uid, true).expect("set");
    let stuck = rig.run(&go(tenant, 1, "tenant-1")).await;
    failed_with(&stuck, "user_not_gone");
    assert!(stuck.message.contains("used by a process") || stuck.message.contains("process ("), "{}", stuck.message);
    assert_eq!(rig.life.sim.leftovers().leases.len(), 1, "the machine is nobody else's");
    assert!(rig.life.sim.user("tenant-1").expect("there").closed, "and nobody can log in");
    failed_with(&rig.run(&come(tenant, 1, "tenant-1")).await, "machine_leased");
    failed_with(&rig.run(&come(AllocationId::generate(), 2, "tenant-2")).await, "machine_leased");
    rig.life.sim.undying(uid, false).expect("set");
    assert_eq!(rig.run(&go(tenant, 1, "tenant-1")).await.outcome, Outcome::Succeeded);
    clean(&rig);
}

#[tokio::test]
async fn a_number_that_became_somebody_elses_is_not_cleaned() {
    let rig = Rig::new().await;
    let tenant = AllocationId::generate();
    let uid = rig.run(&come(tenant, 1, "tenant-1")).await.output.expect("an output")["uid"].as_u64().expect("a number");
    rig.run(&go(tenant, 1, "tenant-1")).await;
    let uid = u32::try_from(uid).expect("small");
    rig.life.sim.add_user(stranger("jane", uid, "Jane".to_owned())).expect("added");
    rig.life.sim.add_file(uid, "/srv/jane/thesis.tex").expect("added");
    let late = rig.run(&go(tenant, 1, "tenant-1")).await;
    failed_with(&late, "user_not_gone");
    assert!(late.message.contains("jane"), "{}", late.message);
    assert!(rig.life.sim.leftovers().users.iter().any(|left| left.contains("thesis")));
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn what_the_owner_does_not_allow_is_refused_before_anything_is_looked_at() {
    for (policy, wanted) in [
        (
            PERMISSIVE.replace("[bare_metal]\nusernames = [\"tenant-*\"]\nallow_sudo = true\ndestroys_per_hour = 1000000\n", ""),
            "[bare_metal]",
        ),
        (PERMISSIVE.replace("tenant-*", "guest-*"), "usernames"),
        (PERMISSIVE.replace("allow_sudo = true", "allow_sudo = false"), "allow_sudo"),
        (PERMISSIVE.replace("\"allocation.provision_user\", ", ""), "allocation.provision_user"),
    ] {
        let rig = Rig::new().await;
        gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), policy.as_bytes()).expect("policy");
        let ended = rig.run(&come(AllocationId::generate(), 1, "tenant-1")).await;
        assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Refused, "policy_denied"), "{wanted}: {ended:?}");
        assert!(ended.message.contains(wanted), "{}", ended.message);
        assert_eq!(rig.life.sim.calls(), [], "{wanted}");
    }
}

#[tokio::test]
async fn an_order_for_another_allocation_than_its_envelope_names_is_refused() {
    let rig = Rig::new().await;
    let task = come(AllocationId::generate(), 1, "tenant-1");
    for holder in [None, come(AllocationId::generate(), 1, "tenant-1").holder()] {
        let (task_id, envelope) = rig.sign(&task, holder);
        rig.offer(task_id, envelope);
        let ended = rig.receipt(task_id, TaskType::AllocationProvisionUser).await;
        assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Refused, "lease_mismatch"), "{ended:?}");
    }
    assert_eq!(rig.life.sim.calls(), []);
}

#[tokio::test]
async fn a_cancelled_task_begins_nothing_more() {
    let rig = Rig::new().await;
    let tenant = AllocationId::generate();
    let cancelled = async |task: &Task| {
        // It waits for the task that works on the machine, and is cancelled in the meantime.
        let machine = rig.life.guests.claim_machine().await;
        let mut running = rig.life.pipeline.running();
        running.wait_for(|count| *count == 0).await.expect("the pipeline lives");
        let task_id = rig.give(task);
        running.wait_for(|count| *count > 0).await.expect("the pipeline lives");
        rig.life.pipeline.cancel(task_id, "changed my mind");
        drop(machine);
        rig.receipt(task_id, task.task_type()).await
    };
    let ended = cancelled(&come(tenant, 1, "tenant-1")).await;
    assert_eq!(ended.outcome, Outcome::Cancelled, "{ended:?}");
    clean(&rig);
    rig.run(&come(tenant, 1, "tenant-1")).await;
    let ended = cancelled(&go(tenant, 1, "tenant-1")).await;
    assert_eq!(ended.outcome, Outcome::Cancelled, "{ended:?}");
    let there = rig.life.sim.user("tenant-1").expect("there");
    assert!(!there.closed && rig.life.sim.leftovers().leases.len() == 1, "{there:?}");
}
