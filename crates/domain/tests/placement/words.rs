//! Messages for requests that do not fit.

use gpuaas_contract::id::NodeId;
use gpuaas_domain::placement::{Fleet, MAX_LISTED, MachineUse, PlacementRequest, ReasonKind};
use gpuaas_domain::slot::SlotState;

use crate::rig::{Host, MI300X, fleet, machine, node_id, refused, slots, slots_of};
use crate::support::NOW;

#[test]
fn tenants_learn_how_much_is_free_and_nothing_about_nodes() {
    let hosts = [
        Host::h100(1, 8).leased(0..5),
        Host::h100(2, 8).leased(0..6),
        Host::h100(3, 8).leased(0..8),
        Host::new(4, 8, MI300X),
        Host::h100(5, 8).service(gpuaas_domain::node::NodeService::Quarantined),
    ];
    let request = slots_of(4, Some("NVIDIA H100 80GB HBM3"));
    let reported = refused(&hosts, &request).for_tenants();
    assert_eq!(
        reported,
        "no capacity for 4 × NVIDIA H100 80GB HBM3 in one machine right now; 2 nodes have up to 3 free: ask for fewer, or try again later"
    );
    let reported = refused(&hosts[1..], &request).for_tenants();
    assert!(reported.contains("1 node has 2 free"), "{reported}");
    let refusal = refused(&hosts[2..], &request).refusal();
    assert_eq!(refusal.code, "no_capacity");
    assert!(refusal.message.ends_with("right now: try again later, or ask for something else"), "{}", refusal.message);
    for host in &hosts {
        assert!(!reported.contains(&host.node.name) && !reported.contains(&host.node.id.to_string()), "{reported}");
    }
}

#[test]
fn wishes_are_told_back_in_plain_words() {
    let reported = |request: PlacementRequest| Fleet::new().place(&request, NOW).expect_err("nothing is there").for_tenants();
    assert!(reported(slots_of(1, None)).starts_with("no capacity for 1 slot right now"));
    assert!(reported(slots_of(2, None)).starts_with("no capacity for 2 slots in one machine right now"));
    assert!(reported(slots_of(1, Some("H\u{1b}[31m100\n"))).starts_with("no capacity for 1 × H[31m100 right now"));
    assert!(reported(slots_of(1, Some(&"x".repeat(100_000)))).len() < 300);
    assert!(reported(machine(Some("H100"), Some(8))).starts_with("no capacity for a whole machine with 8 × H100 right now"));
    assert!(reported(machine(Some("H100"), None)).starts_with("no capacity for a whole machine with H100 right now"));
    assert!(reported(machine(None, Some(8))).starts_with("no capacity for a whole machine with 8 GPUs right now"));
    assert!(reported(machine(None, None)).starts_with("no capacity for a whole machine right now"));
}

#[test]
fn operators_learn_what_every_node_lacks() {
    let mut dirty = Host::h100(1, 8).leased(0..3).state([3], SlotState::NeedsWipe).state([4], SlotState::CleanupBlocked);
    dirty.slots[5].quarantine = Some("flickers".to_owned());
    let mut offline = Host::new(2, 8, MI300X).service(gpuaas_domain::node::NodeService::Draining);
    offline.node.session = None;
    let no_fit = refused(&[dirty, offline], &slots(4));
    let lines = no_fit.for_operators();
    assert_eq!(lines.len(), 2);
    let id = node_id(1);
    let others = "3 leased, 1 cleanup_blocked, 1 needs_wipe, 1 quarantined";
    assert_eq!(lines[0], format!("rack-1 ({id}): 2 of 4 wanted slots are free ({others})"));
    for part in ["rack-2", "maintenance", "offline", "other GPUs: AMD Instinct MI300X"] {
        assert!(lines[1].contains(part), "{part}: {}", lines[1]);
    }
    let counts =
        [ReasonKind::Offline, ReasonKind::Draining, ReasonKind::WrongModel, ReasonKind::TooFewFree].map(|kind| (kind, 1));
    assert_eq!(no_fit.summary, counts.into());
}

#[test]
fn the_list_is_capped_with_the_nearest_misses_first_and_the_summary_is_not() {
    let mut hosts: Vec<Host> = (1..=70).map(|number| Host::h100(number, 4).leased(0..4)).collect();
    hosts.push(Host::h100(90, 4).leased(0..1));
    hosts.push(Host::h100(91, 4).machine(MachineUse::Dirty));
    let no_fit = refused(&hosts, &slots(4));
    assert_eq!((no_fit.nodes.len(), no_fit.more), (MAX_LISTED, 72 - MAX_LISTED));
    assert_eq!(no_fit.nodes[0].name, "rack-90");
    assert_eq!(no_fit.summary, [(ReasonKind::TooFewFree, 71), (ReasonKind::MachineDirty, 1)].into());
    let last = no_fit.for_operators().pop().expect("lines");
    assert_eq!(last, "and 22 more; of all nodes: 1 machine_dirty, 71 too_few_free");
    assert!(fleet(&hosts).place(&slots(3), NOW).is_ok());
}

#[test]
fn the_nearest_misses_of_a_large_fleet_are_listed_wherever_they_are() {
    let mut fleet = Fleet::new();
    for number in 0..3000_u16 {
        // Every hundredth host has one free slot, and one host has three.
        let free = if number == 1500 { 3 } else { usize::from(number % 100 == 0) };
        let mut host = Host::h100(0, 4).leased(free..4);
        let mut id = [0; 16];
        id[..2].copy_from_slice(&number.to_be_bytes());
        (host.node.id, host.node.name) = (NodeId::from_bytes(id), format!("rack-{number}"));
        host.slots.iter_mut().for_each(|slot| slot.node_id = host.node.id);
        fleet.upsert(host.candidate());
    }
    let no_fit = fleet.place(&slots(4), NOW).expect_err("nothing fits");
    let expected: Vec<String> = std::iter::once(1500)
        .chain((0..30).map(|hundred| hundred * 100).filter(|number| *number != 1500))
        .chain(1..=20)
        .map(|number| format!("rack-{number}"))
        .collect();
    assert_eq!(no_fit.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>(), expected);
    assert_eq!((no_fit.more, no_fit.summary), (2950, [(ReasonKind::TooFewFree, 3000)].into()));
}

#[test]
fn every_kind_of_reason_has_a_code_of_its_own() {
    let codes: std::collections::BTreeSet<&str> = ReasonKind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(codes.len(), ReasonKind::ALL.len());
}
