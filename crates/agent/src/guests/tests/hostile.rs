//! Tasks that must be refused: with a code, and without a change.

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::{Holder, LeasedSlot};
use gpuaas_contract::task::{Task, TaskType};

use super::rig::{PERMISSIVE, Rig, provision, release};

fn untouched(rig: &Rig) {
    assert!(rig.life.sim.leftovers().is_empty(), "{:?}", rig.life.sim.leftovers());
    assert_eq!(rig.life.sim.violations(), [""; 0]);
}

#[tokio::test]
async fn devices_that_the_owner_does_not_list_are_not_touched() {
    for (allowed, wanted) in [
        (PERMISSIVE.replace("pci_addresses = [\"*\"]", "pci_addresses = [\"0000:00:00.0\"]"), "pci_addresses"),
        (PERMISSIVE.replace("nvme_serials = [\"*\"]", "nvme_serials = []"), "nvme_serials"),
        (PERMISSIVE.replace("https://images.example/", "https://images.example.evil/"), "image_sources"),
        (PERMISSIVE.replace("\"br-slices\", ", ""), "bridges"),
        (PERMISSIVE.replace("\"qcow2\", ", ""), "image_formats"),
        (PERMISSIVE.replace("usernames = [\"*\"]", "usernames = [\"ubuntu\"]"), "usernames"),
        (PERMISSIVE.replace("destroys_per_hour = 1000000", "destroys_per_hour = 0"), "destroys_per_hour"),
    ] {
        let rig = Rig::new().await;
        gpuaas_host::private_file::write(&rig.folder.path().join("policy.toml"), allowed.as_bytes()).expect("policy");
        let (allocation, slots) = (AllocationId::generate(), rig.slots(&[0]));
        let task = if wanted == "destroys_per_hour" {
            Task::SliceVmRelease(release(allocation, 1, slots))
        } else {
            provision(allocation, 1, slots)
        };
        let ended = rig.run(&task).await;
        assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Refused, "policy_denied"), "{wanted}: {ended:?}");
        assert!(ended.message.contains(wanted), "{}", ended.message);
        assert_eq!(rig.life.sim.calls(), [], "{wanted}");
    }
}

#[tokio::test]
async fn a_drive_that_the_host_uses_or_that_is_another_one_is_not_written() {
    let rig = Rig::new().await;
    let slots = rig.slots(&[0]);
    rig.life.sim.set_mounted(&slots[0].spec.nvme_serial, Some("/srv")).expect("set");
    let ended = rig.run(&provision(AllocationId::generate(), 1, slots.clone())).await;
    assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Failed, "drive_in_use"), "{ended:?}");
    rig.life.sim.set_mounted(&slots[0].spec.nvme_serial, None).expect("set");
    untouched(&rig);

    let mut swapped = slots;
    swapped[0].spec.nvme_serial = rig.slots(&[1])[0].spec.nvme_serial.clone();
    let ended = rig.run(&provision(AllocationId::generate(), 2, swapped)).await;
    assert_eq!(ended.code, "drive_serial_mismatch", "{ended:?}");
    untouched(&rig);
}

#[tokio::test]
async fn a_slot_of_another_allocation_is_not_touched_by_anybody_else() {
    let rig = Rig::new().await;
    let (owner, slots) = (AllocationId::generate(), rig.slots(&[0]));
    rig.run(&provision(owner, 5, slots.clone())).await;
    let before = rig.life.sim.drive_contents(&slots[0].spec.nvme_serial);
    let thief = AllocationId::generate();
    for task in [
        provision(thief, 6, slots.clone()),
        provision(thief, 6, rig.slots(&[1, 0])),
        provision(owner, 4, slots.clone()),
        Task::SliceVmRelease(release(thief, 5, slots.clone())),
        Task::SliceVmRelease(release(thief, 9, slots.clone())),
        Task::SliceVmRelease(release(owner, 4, slots.clone())),
    ] {
        let ended = rig.run(&task).await;
        assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Failed, "slot_leased"), "{ended:?}");
        assert_eq!(rig.life.sim.drive_contents(&slots[0].spec.nvme_serial), before);
    }
    // The same device under another slot's name is the same device.
    let renamed = vec![LeasedSlot { spec: slots[0].spec.clone(), ..rig.slots(&[3])[0].clone() }];
    let ended = rig.run(&provision(thief, 7, renamed)).await;
    assert_eq!(ended.code, "device_leased", "{ended:?}");
    // Even with the owner's own lease, another task cannot start again or use other devices.
    let again = rig.run(&provision(owner, 5, slots.clone())).await;
    assert_eq!(again.code, "slot_leased", "{again:?}");
    let mut altered = slots.clone();
    altered[0].spec.nvme_serial = rig.slots(&[6])[0].spec.nvme_serial.clone();
    altered[0].spec.nvme_device = rig.slots(&[6])[0].spec.nvme_device.clone();
    let ended = rig.run(&Task::SliceVmRelease(release(owner, 5, altered))).await;
    assert_eq!(ended.code, "slot_differs", "{ended:?}");
    assert_eq!(rig.life.sim.boots(owner), 1, "the guest was left alone");
    assert_eq!(rig.life.sim.drive_contents(&slots[0].spec.nvme_serial), before);
    let gone = rig.run(&Task::SliceVmRelease(release(owner, 5, slots))).await;
    assert_eq!(gone.outcome, Outcome::Succeeded, "{gone:?}");
    untouched(&rig);
}

#[tokio::test]
async fn an_envelope_for_another_lease_than_its_params_is_refused() {
    let rig = Rig::new().await;
    let allocation = AllocationId::generate();
    let task = provision(allocation, 2, rig.slots(&[0]));
    for holder in [
        None,
        Some(Holder { allocation_id: allocation, lease_epoch: 3 }),
        Some(Holder { allocation_id: AllocationId::generate(), lease_epoch: 2 }),
    ] {
        let (task_id, envelope) = rig.sign(&task, holder);
        rig.offer(task_id, envelope);
        let ended = rig.receipt(task_id, TaskType::SliceVmProvision).await;
        assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Refused, "lease_mismatch"), "{ended:?}");
    }
    assert_eq!(rig.life.sim.calls(), []);
}

#[tokio::test]
async fn texts_that_mean_something_to_a_program_never_reach_one() {
    let rig = Rig::new().await;
    let good: serde_json::Value =
        serde_json::from_str(provision(AllocationId::generate(), 1, rig.slots(&[0])).params_json().get()).expect("JSON");
    let nasty = [
        "../../etc/shadow",
        "/etc/shadow",
        "a\nb: c",
        "<x/>",
        "a'b",
        "a\"b",
        "${x}",
        "$(reboot)",
        "`reboot`",
        "a;b",
        "--help",
        "",
        "a\u{0}b",
        "ä",
    ];
    let at = |pointer: &str, text: &str| {
        let mut params = good.clone();
        *params.pointer_mut(pointer).expect("is there") = text.into();
        params
    };
    for pointer in [
        "/guest/vm_name",
        "/guest/default_username",
        "/guest/ovs_bridge",
        "/guest/image/sha256",
        "/guest/image/url",
        "/slots/0/spec/nvme_device",
        "/slots/0/spec/mac_address",
        "/slots/0/spec/pci_address",
        "/slots/0/spec/private_ip",
        "/slots/0/slot_id",
        "/allocation_id",
    ] {
        for text in nasty {
            let parsed = Task::parse(TaskType::SliceVmProvision, &at(pointer, text).to_string());
            assert!(parsed.is_err(), "{pointer} = {text:?} was taken");
        }
    }
    for text in nasty.iter().filter(|text| !text.contains(';')) {
        let mut params = good.clone();
        params["guest"]["image"]["path"] = (*text).into();
        assert!(Task::parse(TaskType::SliceVmProvision, &params.to_string()).is_err(), "a path {text:?} was taken");
        params = good.clone();
        params["guest"]["ssh_public_keys"] = serde_json::json!([text]);
        assert!(Task::parse(TaskType::SliceVmProvision, &params.to_string()).is_err(), "a key {text:?} was taken");
    }
    let key = "command=\"reboot\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGd0aW1lcm9uZXNlY29uZHRocmVlZm91cmZpdmVz";
    let mut params = good;
    params["guest"]["ssh_public_keys"] = serde_json::json!([key]);
    assert!(Task::parse(TaskType::SliceVmProvision, &params.to_string()).is_err(), "options of a key were taken");
}

#[tokio::test]
async fn a_spoiled_image_is_refused_whoever_vouches_for_it() {
    let rig = Rig::new().await;
    let task = provision(AllocationId::generate(), 1, rig.slots(&[0]));
    let Task::SliceVmProvision(mut params) = task else { unreachable!("just made") };
    params.guest.image.trusted = true;
    rig.life.sim.spoil_image(&params.guest.image.sha256).expect("set");
    let ended = rig.run(&Task::SliceVmProvision(params)).await;
    assert_eq!((ended.outcome, ended.code.as_str()), (Outcome::Failed, "image_digest_mismatch"), "{ended:?}");
    untouched(&rig);
}
