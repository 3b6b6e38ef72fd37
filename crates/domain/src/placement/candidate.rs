//! What placement knows about a node. Compact and self-contained, so that placement looks nothing up.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_contract::slice::PciAddress;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::telemetry::GpuFact;
use gpuaas_contract::time::Timestamp;

use super::{SlotCount, What};
use crate::node::{Node, NodeService};
use crate::slot::{Slot, SlotState};

/// Maximum length of a model name that is considered; nodes may report longer ones.
const MAX_LABEL: usize = 128;
/// Maximum number of GPU models per node that are considered; further ones are treated as unknown.
const MAX_MODELS: usize = 64;
/// Low bits of the bus number that may differ behind one switch: see [`near_key`].
const BUS_BITS_BEHIND_A_SWITCH: u32 = 4;

/// State of a machine that is offered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MachineUse {
    /// Free to be leased.
    Free,
    /// Leased by an allocation as a whole.
    Leased,
    /// Something of an allocation may be left on it.
    Dirty,
}

/// An operator's offer of a machine as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MachineOffer {
    /// Whether it can be leased.
    pub state: MachineUse,
}

/// A node and its slots, in a compact form for the [`super::Fleet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub(super) node_id: NodeId,
    pub(super) name: String,
    pub(super) online: bool,
    pub(super) service: NodeService,
    pub(super) machine: Option<MachineUse>,
    pub(super) maintenance: Option<Timestamp>,
    /// The GPU models that the node reports.
    pub(super) models: Vec<Model>,
    /// Sorted by index, without withdrawn slots.
    pub(super) slots: Vec<SlotView>,
    /// Tasks that slots need and the host policy does not allow.
    pub(super) denied_to_slots: Vec<TaskType>,
    /// Tasks that the machine as a whole needs and the host policy does not allow.
    pub(super) denied_to_machine: Vec<TaskType>,
}

/// Tasks that a host must allow to serve slots. A host that could not release a guest must not get one.
const SLOT_TASKS: [TaskType; 2] = [TaskType::SliceVmProvision, TaskType::SliceVmRelease];
/// Tasks that a host must allow to be leased as a whole.
const MACHINE_TASKS: [TaskType; 2] = [TaskType::AllocationProvisionUser, TaskType::AllocationDeprovisionUser];

/// The tasks that slots need and that the node's host policy does not allow.
pub fn denied_to_slots(node: &Node) -> Vec<TaskType> {
    node.facts.denied_tasks(&SLOT_TASKS)
}

/// A GPU model on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// `vendor:device`, such as `10de:2330`; empty if the node did not report it.
    pub(super) device: Arc<str>,
    /// Name that the node reports; often empty, because a GPU that waits for a guest is not bound to a driver that knows it.
    pub(super) name: Arc<str>,
    /// The name in the form that is compared.
    label: Box<str>,
    /// How many of these GPUs the node has.
    pub(super) gpus: usize,
}

impl Model {
    fn of(gpu: &GpuFact) -> Self {
        let parts = [&gpu.vendor_id, &gpu.device_id].map(|part| label(part));
        let device = if parts.iter().all(String::is_empty) { String::new() } else { parts.join(":") };
        let name: String = plain(&gpu.name).collect();
        Self { device: device.into(), label: label(&name).into(), name: name.into(), gpus: 1 }
    }

    /// The names by which a request can ask for it.
    fn labels(&self) -> impl Iterator<Item = &str> {
        let same = self.device.as_ref() == self.label.as_ref();
        [Some(self.device.as_ref()), (!same).then_some(self.label.as_ref())].into_iter().flatten().filter(|text| !text.is_empty())
    }

    fn answers_to(&self, wanted: &str) -> bool {
        self.labels().any(|label| label == wanted)
    }

    /// The name under which it is counted: the device, because not every node knows the name, or else the name.
    pub(super) fn key(&self) -> Option<Arc<str>> {
        self.labels().next().map(Arc::from)
    }

    /// For people: its name, else the device, else `unknown`.
    pub(super) fn shown(&self) -> Arc<str> {
        let known = if self.name.is_empty() { &self.device } else { &self.name };
        if known.is_empty() { "unknown".into() } else { Arc::clone(known) }
    }
}

/// The GPU of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gpu {
    /// The slot has no GPU.
    None,
    /// A GPU that the node does not report, such as one that fell off the bus.
    Unknown,
    /// Index into [`Candidate::models`].
    Known(u8),
}

/// Which slots of a node match a request, by GPU. Computed once per node, because it compares names.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedHere {
    none: bool,
    unknown: bool,
    /// One bit for each of [`Candidate::models`].
    known: u64,
}

impl WantedHere {
    pub(super) fn covers(self, slot: &SlotView) -> bool {
        match slot.gpu {
            Gpu::None => self.none,
            Gpu::Unknown => self.unknown,
            Gpu::Known(place) => self.known >> place & 1 == 1,
        }
    }
}

/// What placement knows about a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotView {
    pub(super) id: SlotId,
    pub(super) index: u32,
    pub(super) state: SlotState,
    pub(super) quarantined: bool,
    pub(super) gpu: Gpu,
    pub(super) numa: i32,
    /// Slots with the same key are close to each other on the PCI bus.
    pub(super) near: Option<u32>,
    pub(super) vcpus: u32,
    pub(super) memory_mib: u64,
}

impl SlotView {
    /// Whether the slot itself can be leased, regardless of its node.
    pub(super) fn is_free(&self) -> bool {
        match self.state {
            SlotState::Available => !self.quarantined,
            SlotState::Leased
            | SlotState::Releasing
            | SlotState::CleanupBlocked
            | SlotState::NeedsWipe
            | SlotState::Quarantined
            | SlotState::Withdrawn => false,
        }
    }
}

/// Which slots or machines a request asks for, by GPU. Also the key of a shelf in the fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// All of them.
    Any,
    /// Only slots without a GPU.
    WithoutGpu,
    /// Those with this GPU: a name or `vendor:device`, in the form of [`label`].
    Model(String),
}

impl Wanted {
    /// What a request with this model asks for.
    pub(super) fn of(gpu_model: Option<&String>) -> Self {
        gpu_model.map_or(Self::Any, |model| Self::Model(label(model)))
    }
}

/// The part of a request that slots are compared with.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) wanted: Wanted,
    pub(super) count: usize,
    pub(super) min_vcpus: u32,
    pub(super) min_memory_mib: u64,
}

impl Ask {
    pub(super) fn new(count: SlotCount, gpu_model: Option<&String>, min_vcpus: u32, min_memory_mib: u64) -> Self {
        Self { wanted: Wanted::of(gpu_model), count: count.get(), min_vcpus, min_memory_mib }
    }

    /// Whether a slot is large enough.
    pub(super) fn is_met_by(&self, slot: &SlotView) -> bool {
        slot.vcpus >= self.min_vcpus && slot.memory_mib >= self.min_memory_mib
    }
}

/// The free slots of a node that match the same [`Wanted`]: its entry on a shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Number of free slots; at least one.
    pub(super) free: usize,
    /// Whether all slots of the node are free.
    pub(super) untouched: bool,
    /// Each of them has at least this many vCPUs.
    pub(super) least_vcpus: u32,
    /// Each of them has at least this much memory.
    pub(super) least_memory_mib: u64,
    /// Start of the next announced maintenance.
    pub(super) maintenance: Option<Timestamp>,
}

impl Candidate {
    /// Condenses a node, its slots, its offer as a whole machine and the start of its next announced maintenance. Slots of other nodes are
    /// ignored.
    pub fn new(node: &Node, slots: &[Slot], machine: Option<MachineOffer>, maintenance: Option<Timestamp>) -> Self {
        let mut models: Vec<Model> = Vec::new();
        let mut by_address: BTreeMap<&str, Gpu> = BTreeMap::new();
        for gpu in &node.facts.gpus {
            let model = Model::of(gpu);
            let known = models.iter().position(|known| known.device == model.device && known.name == model.name);
            let place = known.unwrap_or(models.len());
            match models.get_mut(place) {
                Some(known) => known.gpus += 1,
                None if place < MAX_MODELS => models.push(model),
                None => continue,
            }
            by_address.insert(&gpu.pci_address, u8::try_from(place).map_or(Gpu::Unknown, Gpu::Known));
        }
        let view = |slot: &Slot| SlotView {
            id: slot.id,
            index: slot.spec.slot_index,
            state: slot.state,
            quarantined: slot.quarantine.is_some(),
            gpu: match &slot.spec.pci_address {
                None => Gpu::None,
                Some(address) => by_address.get(address.as_str()).copied().unwrap_or(Gpu::Unknown),
            },
            numa: slot.spec.numa_node,
            near: slot.spec.pci_address.as_ref().and_then(near_key),
            vcpus: slot.spec.vcpu_count,
            memory_mib: slot.spec.memory_mib,
        };
        let own = slots.iter().filter(|slot| slot.node_id == node.id && slot.state != SlotState::Withdrawn);
        let mut slots: Vec<SlotView> = own.map(view).collect();
        slots.sort_unstable_by_key(|slot| (slot.index, slot.id));
        Self {
            node_id: node.id,
            name: node.name.clone(),
            online: node.session.is_some(),
            service: node.service,
            machine: machine.map(|offer| offer.state),
            maintenance,
            models,
            slots,
            denied_to_slots: denied_to_slots(node),
            denied_to_machine: node.facts.denied_tasks(&MACHINE_TASKS),
        }
    }

    /// The id of the node.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// Tasks that the host policy does not allow, among those needed for what the node offers.
    pub(super) fn denied_tasks(&self) -> Vec<TaskType> {
        let slots = self.denied_to_slots.iter().filter(|_| !self.slots.is_empty());
        let machine = self.denied_to_machine.iter().filter(|_| self.machine.is_some());
        slots.chain(machine).copied().collect()
    }

    /// Marks a placement as taken.
    pub(super) fn take(&mut self, what: &What, slots: &[SlotId]) {
        match what {
            What::Slots { .. } => {
                let chosen = self.slots.iter_mut().filter(|slot| slots.contains(&slot.id) && slot.is_free());
                chosen.for_each(|slot| slot.state = SlotState::Leased);
            }
            What::Machine { .. } if self.machine == Some(MachineUse::Free) => self.machine = Some(MachineUse::Leased),
            What::Machine { .. } => {}
        }
    }

    /// Whether its slots may be leased.
    fn serves_slots(&self) -> bool {
        let whole = match self.machine {
            None | Some(MachineUse::Free) => true,
            Some(MachineUse::Leased | MachineUse::Dirty) => false,
        };
        self.online && self.service.takes_work() && whole && self.denied_to_slots.is_empty()
    }

    /// Whether it may be leased as a whole. A slot that is in use, dirty or quarantined prevents that.
    fn serves_whole(&self) -> bool {
        let served = self.online && self.service.takes_work() && self.denied_to_machine.is_empty();
        served && self.machine == Some(MachineUse::Free) && self.all_free()
    }

    pub(super) fn all_free(&self) -> bool {
        self.slots.iter().all(SlotView::is_free)
    }

    /// Which of its slots have the wanted GPU.
    pub(super) fn wanted_here(&self, wanted: &Wanted) -> WantedHere {
        match wanted {
            Wanted::Any => WantedHere { none: true, unknown: true, known: u64::MAX },
            Wanted::WithoutGpu => WantedHere { none: true, unknown: false, known: 0 },
            Wanted::Model(label) => {
                let bit = |(place, model): (usize, &Model)| u64::from(model.answers_to(label)) << place;
                let known = self.models.iter().take(MAX_MODELS).enumerate().map(bit).sum();
                WantedHere { none: false, unknown: false, known }
            }
        }
    }

    /// The model of a slot's GPU, if the node reported it.
    pub(super) fn model(&self, slot: &SlotView) -> Option<&Model> {
        match slot.gpu {
            Gpu::None | Gpu::Unknown => None,
            Gpu::Known(place) => self.models.get(usize::from(place)),
        }
    }

    /// The slots that this request could get now, if the node may lease any.
    pub(super) fn fitting<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a SlotView> {
        let here = self.wanted_here(&ask.wanted);
        self.slots.iter().filter(move |slot| slot.is_free() && ask.is_met_by(slot) && here.covers(slot))
    }

    /// The GPUs that the node reports, each with the names by which it can be requested: `vendor:device`, and the node's own name for it.
    pub(super) fn model_names(&self) -> impl Iterator<Item = String> {
        self.models.iter().filter_map(|model| {
            let key = model.key()?;
            let named = !model.name.is_empty() && *model.label != *key;
            Some(if named { format!("{key} ({})", model.name) } else { key.to_string() })
        })
    }

    /// Returns the PCI id and the name of the GPU that goes by `wanted`; either is empty if the node does not report it.
    pub(super) fn model_called(&self, wanted: &str) -> Option<(&str, &str)> {
        self.models.iter().find(|model| model.answers_to(wanted)).map(|model| (model.device.as_ref(), model.name.as_ref()))
    }

    /// How many matching GPUs the machine has.
    pub(super) fn gpus(&self, wanted: &Wanted) -> usize {
        let counts = |model: &&Model| match wanted {
            Wanted::Any => true,
            Wanted::WithoutGpu => false,
            Wanted::Model(label) => model.answers_to(label),
        };
        self.models.iter().filter(counts).map(|model| model.gpus).sum()
    }

    /// Its free slots, under each [`Wanted`] that they match; none if it may not lease any.
    pub(super) fn slot_offers(&self) -> BTreeMap<Wanted, Offer> {
        let mut offers = BTreeMap::new();
        if !self.serves_slots() {
            return offers;
        }
        let untouched = self.all_free();
        for slot in self.slots.iter().filter(|slot| slot.is_free()) {
            let labels = self.model(slot).into_iter().flat_map(Model::labels);
            let own =
                labels.map(|label| Wanted::Model(label.to_owned())).chain((slot.gpu == Gpu::None).then_some(Wanted::WithoutGpu));
            for wanted in own.chain([Wanted::Any]) {
                let (least_vcpus, least_memory_mib) = (slot.vcpus, slot.memory_mib);
                let first = Offer { free: 0, untouched, least_vcpus, least_memory_mib, maintenance: self.maintenance };
                let offer = offers.entry(wanted).or_insert(first);
                offer.free += 1;
                offer.least_vcpus = offer.least_vcpus.min(least_vcpus);
                offer.least_memory_mib = offer.least_memory_mib.min(least_memory_mib);
            }
        }
        offers
    }

    /// How many GPUs it has as a whole machine, under each [`Wanted`] that it matches; none if it may not be leased as a whole.
    pub(super) fn machine_offers(&self) -> BTreeMap<Wanted, usize> {
        if !self.serves_whole() {
            return BTreeMap::new();
        }
        let labels = self.models.iter().flat_map(Model::labels).map(|label| Wanted::Model(label.to_owned()));
        let wanted: Vec<Wanted> = labels.chain([Wanted::Any]).collect();
        wanted.into_iter().map(|wanted| (wanted.clone(), self.gpus(&wanted))).collect()
    }
}

/// PCI domain and upper bits of the bus number. Firmware numbers the buses behind a root port or a switch consecutively, so functions that
/// agree in these bits are most likely behind the same one. This is an approximation: a slot's facts do not include the tree of bridges.
fn near_key(address: &PciAddress) -> Option<u32> {
    let mut parts = address.as_str().split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (domain, bus) = (parts.next()??, parts.next()??);
    Some((domain << 8 | bus) >> BUS_BITS_BEHIND_A_SWITCH)
}

/// A model name in the form that is compared: trimmed and in lower case.
pub(super) fn label(text: &str) -> String {
    plain(text).flat_map(char::to_lowercase).collect()
}

/// A node's or a tenant's name for a model, made safe to display.
pub(super) fn plain(text: &str) -> impl Iterator<Item = char> {
    text.trim().chars().filter(|c| !c.is_control()).take(MAX_LABEL)
}
