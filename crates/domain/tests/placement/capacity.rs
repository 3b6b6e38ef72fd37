//! Capacity reports for operators.

use gpuaas_domain::node::NodeService;
use gpuaas_domain::placement::{CapacityRow, MachineUse, SlotModel};
use gpuaas_domain::slot::SlotState;

use crate::rig::{H100, Host, MI300X, fleet};

fn numbers(row: &CapacityRow) -> [usize; 7] {
    let CapacityRow { nodes, delivered, healthy, unhealthy, allocated, free, largest_free_on_one_node, .. } = *row;
    [nodes, delivered, healthy, unhealthy, allocated, free, largest_free_on_one_node]
}

#[test]
fn every_slot_is_counted_once_under_its_model() {
    let mut plain = Host::h100(6, 2);
    plain.slots[0].spec.pci_address = None;
    plain.node.facts.gpus.clear();
    let hosts = [
        Host::h100(1, 8).leased(0..3).state([3], SlotState::Releasing),
        Host::new(2, 8, ("10de", "2330", "")).leased(0..2).state([3], SlotState::NeedsWipe).state([4], SlotState::Quarantined),
        Host::new(3, 4, MI300X),
        Host::h100(4, 8).service(NodeService::Retired),
        Host::h100(5, 8).leased(0..8).state([0], SlotState::Withdrawn),
        plain,
    ];
    let rows = fleet(&hosts).capacity();
    let shown: Vec<(String, &str, [usize; 7])> =
        rows.iter().map(|row| (row.model.to_string(), &*row.name, numbers(row))).collect();
    assert_eq!(
        shown,
        [
            ("1002:74a1".to_owned(), MI300X.2, [1, 4, 4, 0, 0, 4, 4]),
            ("10de:2330".to_owned(), H100.2, [3, 23, 21, 2, 13, 8, 4]),
            ("unknown GPU".to_owned(), "", [1, 1, 1, 0, 0, 1, 1]),
            ("no GPU".to_owned(), "", [1, 1, 1, 0, 0, 1, 1]),
        ]
    );
}

#[test]
fn slots_of_nodes_that_cannot_serve_are_unhealthy() {
    let count = |host: Host| numbers(&fleet([&host.leased(0..3)]).capacity()[0]);
    assert_eq!(count(Host::h100(1, 8)), [1, 8, 8, 0, 3, 5, 5]);
    assert_eq!(count(Host::h100(1, 8).service(NodeService::Draining)), [1, 8, 3, 5, 3, 0, 0], "who is there is still served");
    assert_eq!(count(Host::h100(1, 8).service(NodeService::Quarantined)), [1, 8, 0, 8, 0, 0, 0]);
    assert_eq!(count(Host::h100(1, 8).service(NodeService::Locked)), [1, 8, 0, 8, 0, 0, 0]);
    assert_eq!(count(Host::h100(1, 8).machine(MachineUse::Leased)), [1, 8, 8, 0, 8, 0, 0]);
    assert_eq!(count(Host::h100(1, 8).machine(MachineUse::Dirty)), [1, 8, 0, 8, 0, 0, 0]);
    let mut offline = Host::h100(1, 8);
    offline.node.session = None;
    assert_eq!(count(offline), [1, 8, 0, 8, 0, 0, 0]);
}

#[test]
fn a_host_whose_policy_denies_guests_has_no_free_slots() {
    let count = |allowed: Option<&[&str]>| {
        let mut host = Host::h100(1, 8).leased(0..3);
        host.node.facts.allowed_tasks = allowed.map(|tasks| tasks.iter().map(|task| (*task).to_owned()).collect());
        let fleet = fleet([&host]);
        let denied: Vec<&str> = fleet.capacity_by_node()[0].denied_tasks.iter().map(|task| task.as_str()).collect();
        (numbers(&fleet.capacity()[0]), denied)
    };
    let guests = ["slice.vm_provision", "slice.vm_release"];
    assert_eq!(count(None), ([1, 8, 8, 0, 3, 5, 5], vec![]), "an older agent does not say");
    assert_eq!(count(Some(&guests)), ([1, 8, 8, 0, 3, 5, 5], vec![]));
    // Existing allocations are still served.
    assert_eq!(count(Some(&[])), ([1, 8, 3, 5, 3, 0, 0], guests.to_vec()));
    assert_eq!(count(Some(&guests[..1])), ([1, 8, 3, 5, 3, 0, 0], vec![guests[1]]), "what could not be ended is not begun");
}

#[test]
fn nodes_have_rows_of_their_own() {
    let hosts = [Host::h100(1, 8).leased(0..3), Host::h100(2, 8).service(NodeService::Retired), Host::h100(3, 0)];
    let nodes = fleet(&hosts).capacity_by_node();
    let shown: Vec<(&str, usize)> = nodes.iter().map(|node| (node.name.as_str(), node.rows.len())).collect();
    assert_eq!(shown, [("rack-1", 1), ("rack-3", 0)]);
    assert_eq!(nodes[0].rows[0].model, SlotModel::Gpu("10de:2330".into()));
    assert_eq!(numbers(&nodes[0].rows[0]), [1, 8, 8, 0, 3, 5, 5]);
}
