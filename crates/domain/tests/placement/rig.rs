//! Hosts for placement tests: rows as the store has them, and fleets built from them.

use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_contract::telemetry::GpuFact;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_domain::placement::{
    Candidate, Fleet, MachineOffer, MachineUse, NoFit, Placement, PlacementRequest, Reason, SlotCount, What,
};
use gpuaas_domain::slot::{Slot, SlotState};

use crate::support::{NOW, node, session, slices};

pub(crate) const H100: (&str, &str, &str) = ("10de", "2330", "NVIDIA H100 80GB HBM3");
pub(crate) const MI300X: (&str, &str, &str) = ("1002", "74a1", "AMD Instinct MI300X");

/// A host with two sockets and two slots behind each switch.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) slots: Vec<Slot>,
    pub(crate) machine: Option<MachineUse>,
    pub(crate) maintenance: Option<Timestamp>,
}

pub(crate) fn node_id(number: u8) -> NodeId {
    NodeId::from_bytes([number; 16])
}

pub(crate) fn slot_id(number: u8, index: u32) -> SlotId {
    let mut bytes = [number; 16];
    bytes[0] = u8::try_from(index).expect("few");
    SlotId::from_bytes(bytes)
}

/// Buses behind the same switch agree in the upper half of their numbers.
pub(crate) fn bus(index: u32) -> u32 {
    index * 8
}

impl Host {
    /// A host that is online and in service, with free slots of this model.
    pub(crate) fn new(number: u8, slots: u32, model: (&str, &str, &str)) -> Self {
        let name = format!("rack-{number}");
        let mut host = Self {
            node: Node { id: node_id(number), name, session: Some(session()), ..node() },
            slots: Vec::new(),
            machine: None,
            maintenance: None,
        };
        for index in 0..slots {
            let address = format!("0000:{:02x}:00.0", bus(index));
            host.node.facts.gpus.push(gpu(&address, model));
            let mut slot = slices::slot(index);
            (slot.id, slot.node_id) = (slot_id(number, index), host.node.id);
            slot.spec.pci_address = Some(address.parse().expect("an address"));
            slot.spec.numa_node = i32::from(index >= slots / 2);
            host.slots.push(slot);
        }
        host
    }

    pub(crate) fn h100(number: u8, slots: u32) -> Self {
        Self::new(number, slots, H100)
    }

    pub(crate) fn state(mut self, indexes: impl IntoIterator<Item = usize>, state: SlotState) -> Self {
        for index in indexes {
            self.slots[index].state = state;
        }
        self
    }

    pub(crate) fn leased(self, indexes: impl IntoIterator<Item = usize>) -> Self {
        self.state(indexes, SlotState::Leased)
    }

    pub(crate) fn service(mut self, service: NodeService) -> Self {
        self.node.service = service;
        self
    }

    pub(crate) fn machine(mut self, state: MachineUse) -> Self {
        self.machine = Some(state);
        self
    }

    pub(crate) fn maintenance(mut self, at: Timestamp) -> Self {
        self.maintenance = Some(at);
        self
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate::new(&self.node, &self.slots, self.machine.map(|state| MachineOffer { state }), self.maintenance)
    }
}

pub(crate) fn gpu(address: &str, (vendor_id, device_id, name): (&str, &str, &str)) -> GpuFact {
    GpuFact {
        pci_address: address.to_owned(),
        vendor_id: vendor_id.to_owned(),
        device_id: device_id.to_owned(),
        name: name.to_owned(),
        ..GpuFact::default()
    }
}

pub(crate) fn fleet<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Fleet {
    let mut fleet = Fleet::new();
    hosts.into_iter().for_each(|host| fleet.upsert(host.candidate()));
    fleet
}

/// A request for slots with an H100, of any size.
pub(crate) fn slots(count: usize) -> PlacementRequest {
    slots_of(count, Some("10de:2330"))
}

pub(crate) fn slots_of(count: usize, model: Option<&str>) -> PlacementRequest {
    PlacementRequest::new(What::Slots {
        count: SlotCount::new(count).expect("1 to 16"),
        gpu_model: model.map(str::to_owned),
        min_vcpus_per_slot: 0,
        min_memory_mib_per_slot: 0,
    })
}

pub(crate) fn machine(model: Option<&str>, gpus: Option<u32>) -> PlacementRequest {
    PlacementRequest::new(What::Machine { gpu_model: model.map(str::to_owned), gpus })
}

pub(crate) fn placed(hosts: &[Host], request: &PlacementRequest) -> Placement {
    fleet(hosts).place(request, NOW).expect("something fits")
}

pub(crate) fn refused(hosts: &[Host], request: &PlacementRequest) -> NoFit {
    fleet(hosts).place(request, NOW).expect_err("nothing fits")
}

/// The host that was chosen, and the indexes of its slots.
pub(crate) fn chosen(hosts: &[Host], request: &PlacementRequest) -> (u8, Vec<u8>) {
    let placement = placed(hosts, request);
    let indexes = placement.slots.iter().map(|slot| slot.as_bytes()[0]).collect();
    (placement.node_id.as_bytes()[0], indexes)
}

/// Why the only host does not fit.
pub(crate) fn reasons(host: &Host, request: &PlacementRequest) -> Vec<Reason> {
    let mut refused = refused(std::slice::from_ref(host), request);
    assert_eq!((refused.nodes.len(), refused.more), (1, 0));
    refused.nodes.remove(0).reasons
}
