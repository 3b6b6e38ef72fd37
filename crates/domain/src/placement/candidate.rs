//! What placement knows of a node: little, and nothing that it would have to look up.

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

/// Most characters of a model's name that count. A node's word has no limit of its own.
const MAX_LABEL: usize = 128;
/// Most kinds of GPUs of one node that count; of more it is as if the node had said nothing.
const MAX_MODELS: usize = 64;
/// Bits of a bus number that differ behind one switch: see [`near_key`].
const BUS_BITS_BEHIND_A_SWITCH: u32 = 4;

/// What becomes of a machine that is offered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MachineUse {
    /// Nobody has it.
    Free,
    /// An allocation has all of it.
    Leased,
    /// Something of an allocation may be left on it.
    Dirty,
    /// Not given out as a whole for now. Its slots are not concerned.
    HeldBack,
}

/// A machine that is offered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MachineOffer {
    /// What becomes of it.
    pub state: MachineUse,
}

/// A node and its slots, made compact for the [`super::Fleet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub(super) node_id: NodeId,
    pub(super) name: String,
    pub(super) online: bool,
    pub(super) service: NodeService,
    pub(super) machine: Option<MachineUse>,
    pub(super) maintenance: Option<Timestamp>,
    /// The kinds of GPUs that the node says it has.
    pub(super) models: Vec<Model>,
    /// By index; those that were withdrawn are no slots any more.
    pub(super) slots: Vec<SlotView>,
    /// What the host's policy does not allow of what slots need.
    pub(super) denied_to_slots: Vec<TaskType>,
    /// The same for the machine as a whole.
    pub(super) denied_to_machine: Vec<TaskType>,
}

/// What a host must allow to serve slots. One that could not end a guest must not get one.
const SLOT_TASKS: [TaskType; 2] = [TaskType::SliceVmProvision, TaskType::SliceVmRelease];
/// What a host must allow to be leased as a whole.
const MACHINE_TASKS: [TaskType; 2] = [TaskType::AllocationProvisionUser, TaskType::AllocationDeprovisionUser];

/// The tasks that a node's host policy does not allow, of those that slots need.
pub fn denied_to_slots(node: &Node) -> Vec<TaskType> {
    node.facts.denied_tasks(&SLOT_TASKS)
}

/// A kind of GPU on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// `10de:2330`; empty if the node did not say.
    pub(super) device: Arc<str>,
    /// As the node calls it; often empty, since a GPU that rests for guests has no driver that would know.
    pub(super) name: Arc<str>,
    /// The name as it is compared.
    label: Box<str>,
    /// How many of them the node has.
    pub(super) gpus: usize,
}

impl Model {
    fn of(gpu: &GpuFact) -> Self {
        let parts = [&gpu.vendor_id, &gpu.device_id].map(|part| label(part));
        let device = if parts.iter().all(String::is_empty) { String::new() } else { parts.join(":") };
        let name: String = plain(&gpu.name).collect();
        Self { device: device.into(), label: label(&name).into(), name: name.into(), gpus: 1 }
    }

    /// What it can be asked for by.
    fn labels(&self) -> impl Iterator<Item = &str> {
        let same = self.device.as_ref() == self.label.as_ref();
        [Some(self.device.as_ref()), (!same).then_some(self.label.as_ref())].into_iter().flatten().filter(|text| !text.is_empty())
    }

    fn answers_to(&self, wanted: &str) -> bool {
        self.labels().any(|label| label == wanted)
    }

    /// What it is counted under: the device, since not every node knows the name; else the name.
    pub(super) fn key(&self) -> Option<Arc<str>> {
        self.labels().next().map(Arc::from)
    }

    /// For people: its name, or what stands for it.
    pub(super) fn shown(&self) -> Arc<str> {
        let known = if self.name.is_empty() { &self.device } else { &self.name };
        if known.is_empty() { "unknown".into() } else { Arc::clone(known) }
    }
}

/// What a slot is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gpu {
    /// Nothing.
    None,
    /// A GPU of which the node says nothing, such as one that fell off the bus.
    Unknown,
    /// One of [`Candidate::models`].
    Known(u8),
}

/// Which contents are wanted, of those that a node's slots have. Worked out once per node, since names are compared for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedHere {
    none: bool,
    unknown: bool,
    /// A bit for each of [`Candidate::models`].
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

/// What placement knows of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotView {
    pub(super) id: SlotId,
    pub(super) index: u32,
    pub(super) state: SlotState,
    pub(super) quarantined: bool,
    pub(super) gpu: Gpu,
    pub(super) numa: i32,
    /// Slots with the same key are near each other on the bus.
    pub(super) near: Option<u32>,
    pub(super) vcpus: u32,
    pub(super) memory_mib: u64,
}

impl SlotView {
    /// Whether it can be given out, as far as it alone is concerned.
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

/// Which slots or machines are wanted, by what is in them. Also the name of a shelf in the fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// All of them.
    Any,
    /// Only slots without a GPU.
    WithoutGpu,
    /// Those with such a GPU: a name or `vendor:device`, as [`label`] writes it.
    Model(String),
}

impl Wanted {
    /// What a request means.
    pub(super) fn of(gpu_model: Option<&String>) -> Self {
        gpu_model.map_or(Self::Any, |model| Self::Model(label(model)))
    }
}

/// The part of a request for slots that a node's slots are held against.
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

/// What a node has for those who want the same: the entry on a shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Free slots; at least one.
    pub(super) free: usize,
    /// All slots of the node are free.
    pub(super) untouched: bool,
    /// Every one of them has at least this many vCPUs.
    pub(super) least_vcpus: u32,
    /// And at least this much memory.
    pub(super) least_memory_mib: u64,
    /// The next announced maintenance.
    pub(super) maintenance: Option<Timestamp>,
}

impl Candidate {
    /// What placement has to know of a node, its slots, its offer as a whole machine and the start of its next announced maintenance.
    /// Slots of other nodes are left out.
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

    /// The node.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// What the host's policy does not allow of what it is offered for.
    pub(super) fn denied_tasks(&self) -> Vec<TaskType> {
        let slots = self.denied_to_slots.iter().filter(|_| !self.slots.is_empty());
        let machine = self.denied_to_machine.iter().filter(|_| self.machine.is_some());
        slots.chain(machine).copied().collect()
    }

    /// Shows what was chosen for somebody as taken.
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

    /// Whether new slots may be given out on it.
    fn serves_slots(&self) -> bool {
        let whole = match self.machine {
            None | Some(MachineUse::Free | MachineUse::HeldBack) => true,
            Some(MachineUse::Leased | MachineUse::Dirty) => false,
        };
        self.online && self.service.takes_work() && whole && self.denied_to_slots.is_empty()
    }

    /// Whether it may be given out as a whole. A slot that is in use, dirty or held back keeps the machine from it.
    fn serves_whole(&self) -> bool {
        let served = self.online && self.service.takes_work() && self.denied_to_machine.is_empty();
        served && self.machine == Some(MachineUse::Free) && self.all_free()
    }

    pub(super) fn all_free(&self) -> bool {
        self.slots.iter().all(SlotView::is_free)
    }

    /// Which of its slots have what is wanted in them.
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

    /// What its slot has in it, if the node said what that is.
    pub(super) fn model(&self, slot: &SlotView) -> Option<&Model> {
        match slot.gpu {
            Gpu::None | Gpu::Unknown => None,
            Gpu::Known(place) => self.models.get(usize::from(place)),
        }
    }

    /// The slots that could be given to this request now, if the node may give out any.
    pub(super) fn fitting<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a SlotView> {
        let here = self.wanted_here(&ask.wanted);
        self.slots.iter().filter(move |slot| slot.is_free() && ask.is_met_by(slot) && here.covers(slot))
    }

    /// The GPUs that the node says it has, each as it can be asked for: `vendor:device`, and what the node calls it.
    pub(super) fn model_names(&self) -> impl Iterator<Item = String> {
        self.models.iter().filter_map(|model| {
            let key = model.key()?;
            let named = !model.name.is_empty() && *model.label != *key;
            Some(if named { format!("{key} ({})", model.name) } else { key.to_string() })
        })
    }

    /// How many GPUs of this kind the machine has.
    pub(super) fn gpus(&self, wanted: &Wanted) -> usize {
        let counts = |model: &&Model| match wanted {
            Wanted::Any => true,
            Wanted::WithoutGpu => false,
            Wanted::Model(label) => model.answers_to(label),
        };
        self.models.iter().filter(counts).map(|model| model.gpus).sum()
    }

    /// Its free slots, for everyone who could want them; none if it may not give out any.
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

    /// How many GPUs it has as a whole machine, for everyone who could want it; nothing if it may not be given out.
    pub(super) fn machine_offers(&self) -> BTreeMap<Wanted, usize> {
        if !self.serves_whole() {
            return BTreeMap::new();
        }
        let labels = self.models.iter().flat_map(Model::labels).map(|label| Wanted::Model(label.to_owned()));
        let wanted: Vec<Wanted> = labels.chain([Wanted::Any]).collect();
        wanted.into_iter().map(|wanted| (wanted.clone(), self.gpus(&wanted))).collect()
    }
}

/// Domain and upper bits of the bus. Firmware numbers the buses behind a root port or a switch one after the other, so functions that agree
/// in them are most likely behind the same one. That is an approximation: the tree of bridges itself is not among the facts of a slot.
fn near_key(address: &PciAddress) -> Option<u32> {
    let mut parts = address.as_str().split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (domain, bus) = (parts.next()??, parts.next()??);
    Some((domain << 8 | bus) >> BUS_BITS_BEHIND_A_SWITCH)
}

/// A name as it is compared: without case, and without what surrounds it.
fn label(text: &str) -> String {
    plain(text).flat_map(char::to_lowercase).collect()
}

/// A node's or a tenant's word for a model, fit to be shown.
pub(super) fn plain(text: &str) -> impl Iterator<Item = char> {
    text.trim().chars().filter(|c| !c.is_control()).take(MAX_LABEL)
}
