//! The life of a guest without faults, and with small ones.

use gpuaas_contract::cleanup::{NOT_WIPED, WipeMethod};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::slice_vm_provision::PHASES;
use gpuaas_contract::task::{Task, TaskType, slice_console_read, slice_vm_power};
use gpuaas_host::guests::DomainState;
use gpuaas_host::sim::{Fault, FaultKind, Operation, Target, When};

use super::rig::{Rig, power, provision, release};

#[tokio::test]
async fn a_guest_is_made_in_seventeen_phases_and_released_with_proof() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[2, 3]));
    let made = rig.run(&provision(allocation, 1, slots.clone())).await;
    assert_eq!(made.outcome, Outcome::Succeeded, "{made:?}");
    assert_eq!(made.phases, PHASES);
    let output = made.output.expect("an output");
    assert_eq!(output["timings"].as_object().expect("timings").len(), PHASES.len());
    for (key, value) in [
        ("raw_vnc", serde_json::json!(false)),
        ("console_model", serde_json::json!("gateway_required")),
        ("ssh_port", serde_json::json!(22)),
        ("slot_count", serde_json::json!(2)),
        ("private_ip", serde_json::json!(slots[0].spec.private_ip)),
    ] {
        assert_eq!(output[key], value, "{key}");
    }
    assert!(output["terminal_key"].as_str().expect("text").starts_with("ssh-ed25519 "));

    let gone = rig.run(&Task::SliceVmRelease(release(allocation, 1, slots.clone()))).await;
    assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    let proof = gone.proof.expect("a proof");
    assert_eq!(proof.blockers(&slots, true), []);
    assert!(proof.slots.iter().all(|slot| slot.drive.method == WipeMethod::Discard), "{proof:?}");
    assert!(rig.life.sim.leftovers().is_empty(), "{:?}", rig.life.sim.leftovers());
    assert_eq!(rig.life.sim.violations(), [""; 0]);
    // A release of a released guest succeeds too.
    let again = rig.run(&Task::SliceVmRelease(release(allocation, 1, slots))).await;
    assert_eq!(again.outcome, Outcome::Succeeded, "{again:?}");
    assert_eq!(again.output.expect("an output")["already_gone"], true);
}

#[tokio::test]
async fn a_release_without_a_wipe_is_no_proof_and_a_later_wipe_is() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[1]));
    rig.run(&provision(allocation, 4, slots.clone())).await;
    let params = release(allocation, 4, slots.clone());
    let gone =
        rig.run(&Task::SliceVmRelease(gpuaas_contract::task::slice_vm_release::Params { wipe: false, ..params.clone() })).await;
    assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    let blockers = gone.proof.expect("a proof").blockers(&slots, true);
    assert_eq!(blockers.iter().map(|blocker| blocker.code.as_str()).collect::<Vec<_>>(), [NOT_WIPED]);
    assert!(!rig.life.sim.leftovers().drives.is_empty(), "the tenant's data is still there");
    let wiped = rig.run(&Task::SliceVmRelease(params)).await;
    assert_eq!(wiped.proof.expect("a proof").blockers(&slots, true), []);
    assert!(rig.life.sim.leftovers().is_empty());
}

#[tokio::test]
async fn a_drive_or_a_device_that_cannot_be_cleaned_keeps_its_lease_until_it_can() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0, 1]));
    rig.run(&provision(allocation, 1, slots.clone())).await;
    let serial = slots[0].spec.nvme_serial.clone();
    rig.life.sim.fail_drive(&serial).expect("set");
    let task = Task::SliceVmRelease(release(allocation, 1, slots.clone()));
    let blocked = rig.run(&task).await;
    assert_eq!((blocked.outcome, blocked.code.as_str()), (Outcome::Failed, "cleanup_blocked"), "{blocked:?}");
    assert!(blocked.message.contains(&serial), "{}", blocked.message);
    let proof = blocked.proof.expect("a proof");
    assert!(!proof.slot_blockers(&slots[0], true).is_empty());
    assert_eq!(rig.life.sim.leftovers().leases.len(), 2, "no lease goes before everything is proven");
    // Another allocation cannot have it in the meantime.
    let other = rig.run(&provision(AllocationId::generate(), 2, rig.slots(&[0]))).await;
    assert_eq!(other.code, "slot_leased", "{other:?}");
    rig.life.sim.repair_drive(&serial).expect("set");
    let done = rig.run(&task).await;
    assert_eq!(done.outcome, Outcome::Succeeded, "{done:?}");
    assert!(rig.life.sim.leftovers().is_empty());
}

#[tokio::test]
async fn an_earlier_allocations_remains_are_taken_over_by_a_higher_number_only() {
    let rig = Rig::new().await;
    let (old, slots) = (AllocationId::generate(), rig.slots(&[6]));
    rig.run(&provision(old, 5, slots.clone())).await;
    let forced = |epoch| {
        let params = release(AllocationId::generate(), epoch, rig.slots(&[6]));
        Task::SliceVmRelease(gpuaas_contract::task::slice_vm_release::Params { take_over: true, ..params })
    };
    let late = rig.run(&forced(5)).await;
    assert_eq!(late.code, "slot_leased", "{late:?}");
    assert_eq!(rig.host().domain_state(old).await.expect("known"), DomainState::Running);
    let taken = rig.run(&forced(6)).await;
    assert_eq!(taken.outcome, Outcome::Succeeded, "{taken:?}");
    assert!(rig.life.sim.leftovers().is_empty(), "{:?}", rig.life.sim.leftovers());
    // Late tasks of the earlier holder are refused.
    let stale = rig.run(&Task::SliceVmRelease(release(old, 5, slots.clone()))).await;
    assert_eq!(stale.code, "lease_epoch_stale", "{stale:?}");
    let stale = rig.run(&provision(old, 6, slots)).await;
    assert_eq!(stale.code, "lease_epoch_stale", "{stale:?}");
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn a_start_waits_until_the_guest_answers_and_says_if_it_does_not() {
    let mut rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[4]));
    rig.run(&provision(allocation, 1, slots.clone())).await;
    let within = |action, answer_timeout_seconds| {
        let Task::SliceVmPower(params) = power(allocation, 1, slots.clone(), action) else { unreachable!("just made") };
        Task::SliceVmPower(slice_vm_power::Params { answer_timeout_seconds, ..params })
    };
    rig.life.sim.slow_boot(3).expect("set");
    let slow = rig.run(&within(PowerAction::Reboot, 3600)).await;
    assert_eq!(slow.output.expect("it is up")["answers"], true, "the guest answers the fourth question");
    rig.life.sim.slow_boot(1_000_000).expect("set");
    let silent = rig.run(&within(PowerAction::Reboot, 0)).await;
    let output = silent.output.unwrap_or_else(|| panic!("{} {}", silent.code, silent.message));
    assert_eq!((&output["running"], &output["answers"]), (&true.into(), &false.into()), "it runs, and nobody can sign in");

    // An agent that is restarted while it waits continues to wait, and does not boot the guest again.
    let task = within(PowerAction::Reboot, 3600);
    let asks = |rig: &Rig| rig.life.sim.calls().iter().filter(|call| call.operation == Operation::GuestAsk).count();
    let before = asks(&rig);
    let id = rig.give(&task);
    while asks(&rig) == before {
        tokio::task::yield_now().await;
    }
    let boots = rig.life.sim.boots(allocation);
    rig.kill().await;
    rig.revive().await;
    rig.life.sim.slow_boot(0).expect("set");
    let ended = rig.receipt(id, TaskType::SliceVmPower).await;
    assert_eq!(ended.output.expect("it is up")["answers"], true);
    assert_eq!(rig.life.sim.boots(allocation), boots);
}

#[tokio::test]
async fn a_guest_is_stopped_started_and_rebooted_and_keeps_everything() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[4]));
    rig.run(&provision(allocation, 1, slots.clone())).await;
    let do_it = |action| power(allocation, 1, slots.clone(), action);
    for (action, running, unchanged, answers) in [
        (PowerAction::Start, true, true, None),
        (PowerAction::Stop, false, false, None),
        (PowerAction::Stop, false, true, None),
        (PowerAction::Start, true, false, Some(true)),
        (PowerAction::Reboot, true, false, Some(true)),
    ] {
        let ended = rig.run(&do_it(action)).await;
        let output = ended.output.unwrap_or_else(|| panic!("{action:?}: {} {}", ended.code, ended.message));
        assert_eq!((&output["running"], &output["unchanged"]), (&running.into(), &unchanged.into()), "{action:?}");
        assert_eq!(output["answers"].as_bool(), answers, "{action:?}");
        assert_eq!(ended.phases.contains(&"readiness".to_owned()), answers.is_some(), "{action:?}: {:?}", ended.phases);
    }
    assert_eq!(rig.life.sim.boots(allocation), 3);
    let stranger = rig.run(&power(AllocationId::generate(), 1, slots.clone(), PowerAction::Stop)).await;
    assert_eq!(stranger.code, "lease_missing");
    let console = Task::SliceConsoleRead(slice_console_read::Params {
        allocation_id: allocation,
        lease_epoch: 1,
        tail_bytes: 65_536,
        follow_seconds: 0,
    });
    let read = rig.run(&console).await;
    assert!(read.output.expect("an output")["lines"].as_u64().expect("a number") > 3);
}

#[tokio::test]
async fn a_guest_that_does_not_listen_is_stopped_the_hard_way() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[4]));
    rig.run(&provision(allocation, 1, slots.clone())).await;
    rig.life.sim.stubborn(allocation).expect("set");
    let task = Task::SliceVmRelease(release(allocation, 1, slots));
    let task_id = rig.give(&task);
    // The guest would have half a minute to shut down; a cancelled release cannot wait that long.
    while !rig.life.sim.calls().iter().any(|call| call.operation == Operation::DomainShutdown) {
        tokio::task::yield_now().await;
    }
    rig.life.pipeline.cancel(task_id, "in a hurry");
    let ended = rig.receipt(task_id, TaskType::SliceVmRelease).await;
    assert_eq!(ended.output.expect("an output")["hard_stopped"], true);
    assert!(rig.life.sim.leftovers().is_empty());
}

#[tokio::test]
async fn a_cancelled_provision_is_undone_with_proof() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0]));
    rig.life.sim.slow_boot(1_000_000).expect("set");
    let task_id = rig.give(&provision(allocation, 1, slots.clone()));
    while !rig.life.sim.calls().iter().any(|call| call.operation == Operation::GuestAsk) {
        tokio::task::yield_now().await;
    }
    rig.life.pipeline.cancel(task_id, "changed my mind");
    let ended = rig.receipt(task_id, TaskType::SliceVmProvision).await;
    assert_eq!((ended.outcome, ended.message.as_str()), (Outcome::Cancelled, "changed my mind"), "{ended:?}");
    assert_eq!(ended.proof.expect("a proof").blockers(&slots, true), []);
    assert!(rig.life.sim.leftovers().is_empty());
}

#[tokio::test]
async fn guests_survive_the_agent_and_come_back_after_a_reboot() {
    let mut rig = Rig::new().await;
    let (running, stopped) = (AllocationId::generate(), AllocationId::generate());
    let (one, other) = (rig.slots(&[0]), rig.slots(&[1]));
    rig.run(&provision(running, 1, one.clone())).await;
    rig.run(&provision(stopped, 1, other.clone())).await;
    rig.run(&power(stopped, 1, other.clone(), PowerAction::Stop)).await;

    rig.kill().await;
    rig.revive().await;
    let host = rig.host();
    assert_eq!(rig.life.guests.reconcile(&host, &host.boot_id()).await, [], "a restart of the agent changes nothing");

    rig.reboot().await;
    let host = rig.host();
    assert_eq!(host.domain_state(running).await.expect("known"), DomainState::Off);
    let found = rig.life.guests.reconcile(&host, &host.boot_id()).await;
    let codes: Vec<_> = found.iter().map(|drift| (drift.code.as_str(), drift.repaired)).collect();
    assert!(codes.contains(&("guest_off_after_reboot", true)), "{found:?}");
    assert_eq!(host.domain_state(running).await.expect("known"), DomainState::Running);
    assert_eq!(host.domain_state(stopped).await.expect("known"), DomainState::Off, "its owner had stopped it");
    assert_eq!(rig.life.guests.reconcile(&host, &host.boot_id()).await, []);
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn a_function_that_somebody_took_away_is_bound_again_and_reported() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[3]));
    rig.run(&provision(allocation, 1, slots.clone())).await;
    rig.run(&Task::SliceVmRelease(release(allocation, 1, slots.clone()))).await;
    let gpu = slots[0].spec.pci_address.clone().expect("a GPU");
    rig.life.sim.unbind_outside(&gpu).expect("set");
    let host = rig.host();
    let found = rig.life.guests.reconcile(&host, &host.boot_id()).await;
    assert_eq!(
        found.iter().map(|drift| (drift.code.as_str(), drift.repaired)).collect::<Vec<_>>(),
        [("function_off_vfio", true)]
    );
    assert_eq!(host.function_state(&gpu).await.expect("known").driver, "vfio-pci");
    assert_eq!(rig.life.guests.reconcile(&host, &host.boot_id()).await, []);
    assert_eq!(rig.life.guests.drift().len(), 1, "what was put right is still shown");
    // A function that this host never served is ignored.
    let strange = rig.slots(&[7])[0].spec.pci_address.clone().expect("a GPU");
    assert_ne!(host.function_state(&strange).await.expect("known").driver, "vfio-pci");
}

/// Returns the externally visible state of a host, without the numbers that differ each time.
async fn picture(rig: &Rig, allocation: AllocationId, slots: &[LeasedSlot]) -> String {
    let host = rig.host();
    let leases: Vec<_> = host.leases().await.expect("readable").iter().map(|l| (l.slot_id, l.drive, l.guest, l.power)).collect();
    let folder = rig.folder.path().join(format!("host/slices/{allocation}"));
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().into_string().expect("text"))
        .collect();
    files.sort();
    let mut drivers = Vec::new();
    for address in slots.iter().flat_map(|slot| slot.spec.functions()) {
        drivers.push(host.function_state(address).await.expect("known").driver);
    }
    // Contents name the allocation, which differs between two runs.
    let contents: Vec<_> = slots.iter().map(|slot| rig.life.sim.drive_contents(&slot.spec.nvme_serial).len()).collect();
    let state = host.domain_state(allocation).await.expect("known");
    let reserved = host.reservations().await.expect("known").len();
    format!("{leases:?} {state:?} {reserved} {files:?} {drivers:?} {contents:?}")
}

#[tokio::test]
async fn every_phase_run_twice_leaves_the_same_host_and_so_does_every_undo() {
    let reference = {
        let rig = Rig::new().await;
        let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0, 5]));
        rig.run(&provision(allocation, 1, slots.clone())).await;
        picture(&rig, allocation, &slots).await
    };
    for phase in PHASES {
        let mut rig = Rig::new().await;
        let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0, 5]));
        // Killed when the phase has done its work: after the restart it runs again, with all earlier phases.
        let at = Target::Checkpoint { phase, point: gpuaas_host::guests::Point::Done };
        rig.life.sim.arm(Fault { at, when: When::After, kind: FaultKind::Kill, times: 1 });
        let task_id = rig.give(&provision(allocation, 1, slots.clone()));
        rig.life.sim.killed().await;
        rig.kill().await;
        rig.revive().await;
        let ended = rig.receipt(task_id, TaskType::SliceVmProvision).await;
        assert_eq!(ended.outcome, Outcome::Succeeded, "{phase}: {ended:?}");
        assert_eq!(picture(&rig, allocation, &slots).await, reference, "{phase}");
        assert_eq!(rig.life.sim.boots(allocation), 1, "{phase}: a guest that runs is left alone");

        let undo = Task::SliceVmRelease(release(allocation, 1, slots.clone()));
        let mut after = Vec::new();
        for _ in 0..2 {
            let ended = rig.run(&undo).await;
            assert_eq!(ended.proof.expect("a proof").blockers(&slots, true), [], "{phase}");
            after.push(picture(&rig, allocation, &slots).await);
            assert!(rig.life.sim.leftovers().is_empty(), "{phase}");
        }
        assert_eq!(after[0], after[1], "{phase}");
        assert_eq!(rig.life.sim.violations(), [""; 0], "{phase}");
    }
}

#[tokio::test]
async fn a_guest_that_does_not_fit_is_refused_before_anything_is_written() {
    let rig = Rig::new().await;
    let mut slots = rig.slots(&[0]);
    slots[0].spec.memory_mib = 8 * 1024 * 1024;
    let ended = rig.run(&provision(AllocationId::generate(), 1, slots.clone())).await;
    assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Failed, "memory_short"), "{ended:?}");
    let proof = ended.proof.expect("a proof");
    assert_eq!(proof.slots[0].drive.method, WipeMethod::Untouched);
    assert_eq!(proof.blockers(&slots, true), []);
    assert!(rig.life.sim.leftovers().is_empty());
}

#[tokio::test]
async fn a_console_is_followed_while_the_guest_writes() {
    let rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[4]));
    rig.run(&provision(allocation, 1, slots)).await;
    let params = slice_console_read::Params { allocation_id: allocation, lease_epoch: 1, tail_bytes: 0, follow_seconds: 3600 };
    let task_id = rig.give(&Task::SliceConsoleRead(params));
    while !rig.life.sim.calls().iter().any(|call| call.operation == Operation::ConsoleRead) {
        tokio::task::yield_now().await;
    }
    let console = rig.folder.path().join(format!("host/slices/{allocation}/console.log"));
    let mut file = std::fs::OpenOptions::new().append(true).open(console).expect("a console");
    std::io::Write::write_all(&mut file, b"one\ntwo\nthree").expect("written");
    let reads = || rig.life.sim.calls().iter().filter(|call| call.operation == Operation::ConsoleRead).count();
    let before = reads();
    while reads() < before + 2 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    rig.life.pipeline.cancel(task_id, "seen enough");
    let ended = rig.receipt(task_id, TaskType::SliceConsoleRead).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{ended:?}");
    assert_eq!(ended.output.expect("an output")["lines"], 3);
}

#[tokio::test]
async fn every_phase_run_again_finds_what_it_did() {
    let mut rig = Rig::new().await;
    let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0]));
    // Killed after the effect of the last phase: everything runs again, up to a guest that runs and is left alone.
    let at = Target::Checkpoint { phase: "image_write_convert", point: gpuaas_host::guests::Point::Done };
    rig.life.sim.arm(Fault { at, when: When::After, kind: FaultKind::Kill, times: 1 });
    let task_id = rig.give(&provision(allocation, 1, slots.clone()));
    rig.life.sim.killed().await;
    let contents = rig.life.sim.drive_contents(&slots[0].spec.nvme_serial);
    let key =
        |rig: &Rig| std::fs::read(rig.folder.path().join(format!("host/slices/{allocation}/terminal_ed25519"))).expect("a key");
    let first_key = key(&rig);
    rig.kill().await;
    rig.revive().await;
    let ended = rig.receipt(task_id, TaskType::SliceVmProvision).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{ended:?}");
    assert_eq!(ended.output.expect("an output")["recovered"], true);
    assert_eq!(key(&rig), first_key, "the guest's keys are made once");
    assert!(rig.life.sim.drive_contents(&slots[0].spec.nvme_serial).len() >= contents.len());
    assert_eq!(rig.life.sim.boots(allocation), 1);
}
