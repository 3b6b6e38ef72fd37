//! The rules of placement, one test each.

use std::collections::BTreeSet;

use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::NodeService;
use gpuaas_domain::placement::{MachineUse, PlacementRequest, Policy, SlotCount, What};
use gpuaas_domain::slot::SlotState;

use crate::rig::{H100, Host, MI300X, chosen, fleet, gpu, machine, node_id, placed, reasons, refused, slots, slots_of};
use crate::support::{NOW, code, later};

fn spread(request: PlacementRequest) -> PlacementRequest {
    PlacementRequest { policy: Policy::Spread, ..request }
}

fn sized(count: usize, min_vcpus_per_slot: u32, min_memory_mib_per_slot: u64) -> PlacementRequest {
    let count = SlotCount::new(count).expect("1 to 16");
    PlacementRequest::new(What::Slots { count, gpu_model: None, min_vcpus_per_slot, min_memory_mib_per_slot })
}

/// Sets the tasks that the host policy allows.
fn allowing(mut host: Host, tasks: &[&str]) -> Host {
    host.node.facts.allowed_tasks = Some(tasks.iter().map(|task| (*task).to_owned()).collect());
    host
}

#[test]
fn a_host_gets_only_what_its_policy_allows() {
    let kinds =
        |host: &Host, request: &PlacementRequest| reasons(host, request).iter().map(|reason| reason.as_str()).collect::<Vec<_>>();
    let guests = ["slice.vm_provision", "slice.vm_release"];
    let users = ["allocation.provision_user", "allocation.deprovision_user"];
    let hosts = [allowing(Host::h100(1, 8), &users), allowing(Host::h100(2, 8), &guests)];
    assert_eq!(chosen(&hosts, &slots(1)).0, 2);
    assert_eq!(fleet(&hosts).how_many(&slots(1)), 8, "of sixteen slots");
    assert_eq!(kinds(&hosts[0], &slots(1)), ["host_policy_denies"]);
    let whole = hosts.map(|host| host.machine(MachineUse::Free));
    assert_eq!(chosen(&whole, &machine(None, None)).0, 1);
    assert_eq!(fleet(&whole).how_many(&machine(None, None)), 1);
    assert_eq!(kinds(&whole[1], &machine(None, None)), ["host_policy_denies"]);
    let reported = refused(&whole[1..], &machine(None, None)).for_operators().join("\n");
    assert!(reported.contains("does not allow allocation.provision_user, allocation.deprovision_user"), "{reported}");
    // The report only restricts: allowing a task does not open a node that is closed for another reason.
    let drained = allowing(Host::h100(3, 8), &guests).service(NodeService::Draining);
    assert_eq!(kinds(&drained, &slots(1)), ["draining"]);
}

#[test]
fn a_gpu_that_no_node_has_reported_is_unknown() {
    let mut gone = Host::new(2, 1, MI300X).service(NodeService::Retired);
    gone.node.session = None;
    let fleet = fleet(&[Host::h100(1, 2), gone]);
    for known in ["10de:2330", "10DE:2330", "nvidia h100 80gb hbm3", "1002:74a1", " AMD Instinct MI300X "] {
        assert_eq!(fleet.check_model(known), Ok(()), "{known}");
    }
    for unknown in ["h100", "10de", "", "10de:2331"] {
        let refusal = fleet.check_model(unknown).expect_err("unknown");
        assert_eq!(refusal.code, "gpu_model_unknown");
        assert!(refusal.message.contains("10de:2330 (NVIDIA H100 80GB HBM3)"), "{}", refusal.message);
    }
    assert_eq!(fleet.model("NVIDIA h100 80GB HBM3"), Some(("10de:2330", "NVIDIA H100 80GB HBM3")));
    assert_eq!(fleet.model("1002:74A1"), Some(("1002:74a1", "AMD Instinct MI300X")));
    assert_eq!(fleet.model("h100"), None);
    let none = crate::rig::fleet(&[] as &[Host]).check_model("10de:2330").expect_err("nothing is known");
    assert!(none.message.contains("no node has reported a GPU yet"), "{}", none.message);
}

#[test]
fn packing_takes_the_tightest_fit() {
    let hosts = [Host::h100(1, 8).leased(0..1), Host::h100(2, 8).leased(0..5), Host::h100(3, 8).leased(0..4)];
    assert_eq!(chosen(&hosts, &slots(2)).0, 2);
    assert_eq!(chosen(&hosts, &slots(4)).0, 3);
    assert_eq!(chosen(&hosts, &slots(5)).0, 1);
}

#[test]
fn packing_does_not_break_up_a_free_node_while_a_used_one_fits() {
    let hosts = [Host::h100(1, 4), Host::h100(2, 8).leased(0..1)];
    assert_eq!(chosen(&hosts, &slots(4)).0, 2, "although four of four would be tighter");
    assert_eq!(chosen(&hosts, &slots(3)).0, 2);
    assert_eq!(chosen(&hosts[..1], &slots(3)).0, 1, "nothing else is there");
}

#[test]
fn a_node_with_a_slot_that_is_held_back_is_not_entirely_free() {
    let hosts = [Host::h100(1, 8), Host::h100(2, 8).state([7], SlotState::Quarantined)];
    assert_eq!(chosen(&hosts, &slots(1)).0, 2);
}

#[test]
fn spreading_takes_the_node_with_the_most_room() {
    let hosts = [Host::h100(1, 8).leased(0..3), Host::h100(2, 8).leased(0..2), Host::h100(3, 8).leased(0..6)];
    assert_eq!(chosen(&hosts, &spread(slots(2))).0, 2);
    assert_eq!(chosen(&hosts, &spread(slots(1))).0, 2);
}

#[test]
fn what_is_equally_good_is_decided_by_the_id() {
    let hosts = [Host::h100(3, 8), Host::h100(1, 8), Host::h100(2, 8)];
    for policy in Policy::ALL {
        assert_eq!(chosen(&hosts, &PlacementRequest { policy, ..slots(2) }).0, 1, "{}", policy.as_str());
    }
}

#[test]
fn of_nodes_that_fit_equally_well_the_one_that_needs_one_numa_node_is_taken() {
    // Both hosts have four free slots; the first has two on each socket.
    let hosts = [Host::h100(1, 8).leased([0, 1, 4, 5]), Host::h100(2, 8).leased(0..4)];
    for policy in Policy::ALL {
        let placement = placed(&hosts, &PlacementRequest { policy, ..slots(4) });
        assert_eq!((placement.node_id, placement.same_numa), (node_id(2), true));
        assert_eq!(placement.numa, [1, 1, 1, 1]);
    }
    let placement = placed(&hosts[..1], &slots(4));
    assert_eq!((placement.same_numa, placement.numa), (false, vec![0, 0, 1, 1]));
}

#[test]
fn slots_of_one_numa_node_come_before_slots_side_by_side() {
    assert_eq!(chosen(&[Host::h100(1, 8).leased([0, 1, 5])], &slots(3)).1, [4, 6, 7], "not 2, 3, 4");
}

#[test]
fn slots_behind_one_switch_come_before_slots_side_by_side() {
    // Free are 1 | 2 | 4, 5 | 6: only 4 and 5 are behind one switch.
    assert_eq!(chosen(&[Host::h100(1, 8).leased([0, 3, 7])], &slots(2)).1, [4, 5]);
}

#[test]
fn slots_side_by_side_decide_between_the_rest() {
    let mut host = Host::h100(1, 8).leased([1, 7]);
    for (slot, bus) in host.slots.iter_mut().zip([0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb]) {
        slot.spec.pci_address = Some(format!("0000:{bus:02x}:00.0").parse().expect("an address"));
    }
    assert_eq!(chosen(std::slice::from_ref(&host), &slots_of(2, None)).1, [2, 3], "every slot is behind a switch of its own");
}

#[test]
fn the_socket_with_less_room_is_used_up_first() {
    assert_eq!(chosen(&[Host::h100(1, 8).leased([6, 7])], &slots(2)).1, [4, 5], "the four of the other socket stay together");
}

#[test]
fn a_host_with_more_slots_than_can_be_looked_at_one_by_one_still_gives_one_numa_node() {
    let mut host = Host::h100(1, 31).leased([3, 20, 29]);
    for (index, slot) in host.slots.iter_mut().enumerate() {
        slot.spec.numa_node = i32::from(index % 2 == 0);
    }
    let placement = placed(&[host], &slots_of(12, None));
    assert!(placement.same_numa && placement.slots.len() == 12, "{placement:?}");
}

#[test]
fn nodes_that_take_no_work_are_left_out() {
    let good = Host::h100(9, 8);
    for service in NodeService::ALL.into_iter().filter(|service| *service != NodeService::InService) {
        let bad = Host::h100(1, 8).service(service);
        assert_eq!(reasons(&bad, &slots(1)).iter().map(|reason| reason.as_str()).collect::<Vec<_>>(), [service.as_str()]);
        assert_eq!(chosen(&[bad, good.clone()], &slots(1)).0, 9);
    }
    let mut offline = Host::h100(1, 8);
    offline.node.session = None;
    assert_eq!(reasons(&offline, &slots(1))[0].as_str(), "offline");
    assert_eq!(chosen(&[offline, good], &slots(1)).0, 9);
}

#[test]
fn only_slots_that_are_available_and_not_held_back_are_given_out() {
    for state in SlotState::ALL.into_iter().filter(|state| *state != SlotState::Available) {
        let host = Host::h100(1, 2).state([0], state);
        assert_eq!(chosen(std::slice::from_ref(&host), &slots(1)).1, [1], "{}", state.as_str());
        refused(&[host], &slots(2));
    }
    let mut host = Host::h100(1, 2);
    host.slots[0].quarantine = Some("flickers".to_owned());
    assert_eq!(chosen(std::slice::from_ref(&host), &slots(1)).1, [1]);
    refused(&[host], &slots(2));
}

#[test]
fn slots_that_belong_to_another_node_are_no_slots_of_this_one() {
    let mut host = Host::h100(1, 2);
    host.slots.iter_mut().for_each(|slot| slot.node_id = node_id(2));
    assert_eq!(reasons(&host, &slots(1))[0].as_str(), "no_slots");
}

#[test]
fn a_model_is_known_by_its_name_and_by_its_device_in_any_case() {
    let hosts = [Host::new(1, 2, MI300X), Host::h100(2, 2)];
    for model in ["nvidia h100 80gb hbm3", "10DE:2330", " NVIDIA H100 80GB HBM3 "] {
        assert_eq!(chosen(&hosts, &slots_of(1, Some(model))).0, 2, "{model}");
    }
    for model in ["H100", "", "10de", ":", "1002:2330"] {
        refused(&hosts, &slots_of(1, Some(model)));
    }
}

#[test]
fn a_gpu_without_a_name_is_known_by_its_device_and_by_nothing_else() {
    let nameless = Host::new(1, 2, ("10de", "2330", ""));
    assert_eq!(chosen(std::slice::from_ref(&nameless), &slots(1)).0, 1);
    assert_eq!(reasons(&nameless, &slots_of(1, Some("")))[0].as_str(), "wrong_model");
    let unheard_of = Host::new(1, 2, ("", "", ""));
    assert_eq!(reasons(&unheard_of, &slots_of(1, Some("")))[0].as_str(), "wrong_model");
    assert_eq!(chosen(&[unheard_of], &slots_of(1, None)).0, 1);
}

#[test]
fn a_slot_whose_gpu_the_node_no_longer_has_is_of_no_model() {
    let mut host = Host::h100(1, 2);
    host.node.facts.gpus.remove(0);
    assert_eq!(chosen(std::slice::from_ref(&host), &slots(1)).1, [1]);
    refused(&[host], &slots(2));
}

#[test]
fn models_are_not_mixed_unless_nobody_asked_for_one() {
    let mut host = Host::h100(1, 4);
    host.node.facts.gpus.truncate(2);
    host.node
        .facts
        .gpus
        .extend([2, 3].map(|index: usize| gpu(host.slots[index].spec.pci_address.as_ref().expect("has one").as_str(), MI300X)));
    refused(std::slice::from_ref(&host), &slots(3));
    assert_eq!(chosen(&[host], &slots_of(3, None)).1.len(), 3);
}

#[test]
fn whoever_asks_for_no_gpu_gets_none_while_there_are_slots_without() {
    let mut plain = Host::h100(5, 4);
    plain.slots.iter_mut().for_each(|slot| slot.spec.pci_address = None);
    let hosts = [Host::h100(1, 4).leased(0..3), plain];
    assert_eq!(chosen(&hosts, &slots_of(1, None)).0, 5, "although the other is the tighter fit");
    assert_eq!(chosen(&hosts[..1], &slots_of(1, None)).0, 1);
    refused(&hosts, &slots(2));
}

#[test]
fn slots_have_at_least_the_size_that_is_asked_for() {
    let mut host = Host::h100(1, 4);
    (host.slots[1].spec.vcpu_count, host.slots[2].spec.memory_mib) = (4, 1024);
    assert_eq!(chosen(std::slice::from_ref(&host), &sized(2, 12, 65_536)).1, [0, 3]);
    let codes = |request: &PlacementRequest| reasons(&host, request).iter().map(|reason| reason.as_str()).collect::<Vec<_>>();
    assert_eq!(codes(&sized(4, 12, 0)), ["too_few_vcpus"]);
    assert_eq!(codes(&sized(4, 0, 65_536)), ["too_little_memory"]);
    assert_eq!(codes(&sized(3, 12, 65_536)), ["too_few_vcpus", "too_little_memory"]);
    assert_eq!(codes(&sized(5, 64, 0)), ["too_few_free", "too_few_vcpus"], "waiting would not help");
}

#[test]
fn the_tightest_fit_counts_only_slots_that_are_large_enough() {
    let mut roomy = Host::h100(1, 8).leased(0..2);
    roomy.slots[2..6].iter_mut().for_each(|slot| slot.spec.vcpu_count = 4);
    let hosts = [roomy, Host::h100(2, 8).leased(0..4)];
    assert_eq!(chosen(&hosts, &sized(2, 12, 0)).0, 1, "six are free there, but only two are of use");
    assert_eq!(chosen(&hosts, &sized(2, 0, 0)).0, 2);
    assert_eq!(chosen(&hosts, &spread(sized(2, 12, 0))).0, 2);
}

#[test]
fn ties_are_decided_by_the_id_also_where_some_slots_are_too_small() {
    // All have two usable slots. The one with the lowest id has the most free slots, so it is last on the shelf.
    let mut roomy = Host::h100(1, 8).leased(0..2);
    roomy.slots[2..6].iter_mut().for_each(|slot| slot.spec.vcpu_count = 4);
    let hosts = [roomy, Host::h100(2, 8).leased(0..6), Host::h100(3, 8).leased(0..6)];
    assert_eq!(chosen(&hosts, &sized(2, 12, 0)).0, 1);
}

#[test]
fn a_pin_and_a_node_to_avoid_are_obeyed() {
    let hosts = [Host::h100(1, 8), Host::h100(2, 8), Host::h100(3, 8)];
    let pinned = PlacementRequest { only_nodes: Some([node_id(2), node_id(3)].into()), ..slots(2) };
    assert_eq!(chosen(&hosts, &pinned).0, 2);
    assert_eq!(chosen(&hosts, &PlacementRequest { avoid_nodes: [node_id(2)].into(), ..pinned.clone() }).0, 3);
    let nowhere = PlacementRequest { avoid_nodes: [node_id(2), node_id(3)].into(), ..pinned };
    let refused = refused(&hosts, &nowhere);
    let listed: Vec<_> = refused.nodes.iter().map(|node| (node.name.as_str(), node.reasons[0].as_str())).collect();
    assert_eq!(
        listed,
        [("rack-2", "avoided"), ("rack-3", "avoided"), ("rack-1", "not_pinned")],
        "what was asked about comes first"
    );
    assert!(
        fleet(&hosts).place(&PlacementRequest { only_nodes: Some(BTreeSet::new()), ..slots(1) }, NOW).is_err(),
        "pinned to nothing"
    );
}

#[test]
fn a_node_with_maintenance_ahead_is_taken_only_if_nothing_else_fits() {
    let soon = Host::h100(1, 8).leased(0..7).maintenance(later(1800));
    let hosts = [soon.clone(), Host::h100(2, 8)];
    for policy in Policy::ALL {
        let placement = placed(&hosts, &PlacementRequest { policy, ..slots(1) });
        assert_eq!((placement.node_id, placement.maintenance_at, placement.note), (node_id(2), None, None));
    }
    let placement = placed(&[soon], &slots(1));
    assert_eq!((placement.node_id, placement.maintenance_at), (node_id(1), Some(later(1800))));
    let note = placement.note.expect("a note");
    assert!(note.contains(&later(1800).rfc3339()) && !note.contains("rack"), "{note}");
}

#[test]
fn maintenance_counts_if_it_starts_before_the_end_or_within_the_hour() {
    let disturbs = |starts: Timestamp, end: Option<Timestamp>| {
        let host = Host::h100(1, 1).maintenance(starts);
        placed(&[host], &PlacementRequest { must_end_by: end, ..slots(1) }).maintenance_at.is_some()
    };
    assert!(disturbs(later(3599), None) && !disturbs(later(3600), None));
    assert!(disturbs(later(7199), Some(later(7200))) && !disturbs(later(7200), Some(later(7200))));
    assert!(!disturbs(later(1800), Some(later(600))), "it has ended by then");
    let at_the_end = [Host::h100(1, 8).leased(0..7).maintenance(later(3600)), Host::h100(2, 8)];
    assert_eq!(chosen(&at_the_end, &slots(1)).0, 1, "the tighter fit: nothing disturbs it");
    assert!(disturbs(NOW.minus(std::time::Duration::from_secs(60)), None), "it has begun already");
}

#[test]
fn a_machine_that_is_leased_or_dirty_gives_out_no_slots() {
    for (state, expected) in [(MachineUse::Leased, "machine_leased"), (MachineUse::Dirty, "machine_dirty")] {
        assert_eq!(reasons(&Host::h100(1, 8).machine(state), &slots(1))[0].as_str(), expected);
    }
    assert_eq!(chosen(&[Host::h100(1, 8).machine(MachineUse::Free)], &slots(1)).0, 1);
}

#[test]
fn a_whole_machine_is_free_offered_and_has_what_is_wanted() {
    let hosts = [
        Host::h100(1, 8),
        Host::h100(2, 8).machine(MachineUse::Leased),
        Host::h100(3, 8).machine(MachineUse::Dirty),
        Host::h100(5, 8).machine(MachineUse::Free).leased([3]),
        Host::h100(6, 8).machine(MachineUse::Free).state([3], SlotState::Quarantined),
        Host::new(7, 8, MI300X).machine(MachineUse::Free),
        Host::h100(8, 4).machine(MachineUse::Free),
    ];
    let request = machine(Some(H100.2), Some(8));
    let no_fit = refused(&hosts, &request);
    let codes = |number: u8| {
        let node = no_fit.nodes.iter().find(|node| node.node_id == node_id(number)).expect("listed");
        node.reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(codes(1), ["machine_not_offered"]);
    assert_eq!(codes(2), ["machine_leased"]);
    assert_eq!(codes(3), ["machine_dirty"]);
    assert_eq!(codes(5), ["too_few_free"]);
    assert_eq!(codes(6), ["too_few_free"]);
    assert_eq!(codes(7), ["wrong_model"]);
    assert_eq!(codes(8), ["wrong_gpu_count"]);
    let fitting = Host::h100(9, 8).machine(MachineUse::Free).state([0], SlotState::Withdrawn);
    let (number, indexes) = chosen(&[&hosts[..], &[fitting]].concat(), &request);
    assert_eq!((number, indexes), (9, vec![1, 2, 3, 4, 5, 6, 7]), "what was withdrawn is no slot any more");
}

#[test]
fn the_machine_with_the_fewest_gpus_that_will_do_is_taken() {
    let hosts =
        [Host::h100(1, 8), Host::h100(2, 4), Host::h100(3, 4).maintenance(later(60))].map(|host| host.machine(MachineUse::Free));
    for policy in Policy::ALL {
        assert_eq!(chosen(&hosts, &PlacementRequest { policy, ..machine(None, None) }).0, 2);
    }
    assert_eq!(chosen(&hosts, &machine(None, Some(8))).0, 1);
    assert_eq!(chosen(&[hosts[0].clone(), hosts[2].clone()], &machine(Some("10de:2330"), None)).0, 1, "maintenance is worse");
    assert_eq!(chosen(&hosts[2..], &machine(Some("10de:2330"), None)).0, 3);
}

#[test]
fn a_machine_needs_no_slots() {
    let mut host = Host::h100(1, 8).machine(MachineUse::Free);
    host.slots.clear();
    let placement = placed(&[host], &machine(Some("10de:2330"), Some(8)));
    assert!(placement.slots.is_empty() && placement.same_numa, "{placement:?}");
}

#[test]
fn a_slice_has_one_to_sixteen_slots() {
    assert_eq!([0, 17].map(|count| code(SlotCount::new(count))), ["slot_count_invalid"; 2]);
    assert_eq!([1, 16].map(|count| SlotCount::new(count).expect("fits").get()), [1, 16]);
}
