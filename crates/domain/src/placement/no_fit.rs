//! Why nothing fits: node by node for operators, in one sentence for tenants.

use std::collections::BTreeMap;

use gpuaas_contract::id::NodeId;

use super::candidate::{Ask, Candidate, MachineUse, Model, Wanted, plain};
use super::reason::{NotFree, Reason, ReasonKind};
use super::{PlacementRequest, What};
use crate::node::NodeService;
use crate::refusal::Refusal;

/// Maximum number of nodes that are listed with their reasons.
pub const MAX_LISTED: usize = 50;

/// Why one node does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReason {
    /// The id of the node.
    pub node_id: NodeId,
    /// The node's name, for people.
    pub name: String,
    /// All reasons; at least one.
    pub reasons: Vec<Reason>,
}

/// Nothing fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.for_tenants())]
pub struct NoFit {
    /// The nodes and their reasons, closest misses first; at most [`MAX_LISTED`].
    pub nodes: Vec<NodeReason>,
    /// How many further nodes are not listed.
    pub more: usize,
    /// How many nodes have a reason of each kind, among all nodes.
    pub summary: BTreeMap<ReasonKind, usize>,
    /// The request as a phrase.
    asked: String,
    /// How many nodes lack nothing but free slots, and the most free slots that one of them has.
    near: (usize, usize),
}

impl NoFit {
    /// Explains why no node fits. Computes the kinds of reasons for all nodes, but the details only for the listed ones.
    pub(super) fn explain<'a>(nodes: impl Iterator<Item = &'a Candidate>, request: &PlacementRequest) -> Self {
        let judge = Judge { request, ask: Asked::of(&request.what) };
        let mut sets: Vec<(Kinds, usize)> = Vec::new();
        let (mut seen, mut near, mut most_free) = (0, 0, 0);
        let mut misses: Vec<Miss<'_>> = Vec::new();
        for candidate in nodes {
            let (kinds, free) = judge.look(candidate);
            // A linear search suffices: nodes have few distinct sets of reasons.
            match sets.iter_mut().find(|(set, _)| *set == kinds) {
                Some((_, count)) => *count += 1,
                None => sets.push((kinds, 1)),
            }
            let lacks_only_free_slots = if kinds == Kinds::NONE.with(ReasonKind::TooFewFree) { free } else { 0 };
            near += usize::from(lacks_only_free_slots > 0);
            most_free = most_free.max(lacks_only_free_slots);
            let far = (kinds.has(ReasonKind::NotPinned), usize::MAX - lacks_only_free_slots, kinds.len());
            misses.push(Miss { far, candidate, kinds });
            seen += 1;
            // Prune now and then, to bound memory.
            if misses.len() == 16 * MAX_LISTED {
                keep_nearest(&mut misses);
            }
        }
        keep_nearest(&mut misses);
        misses.sort_unstable_by_key(Miss::order);
        let more = seen - misses.len();
        let listed = |miss: &Miss<'_>| NodeReason {
            node_id: miss.candidate.node_id,
            name: miss.candidate.name.clone(),
            reasons: judge.reasons(miss.candidate, miss.kinds),
        };
        let of_kind = |kind| sets.iter().filter(|(set, _)| set.has(kind)).map(|(_, count)| count).sum();
        let summary = ReasonKind::ALL.into_iter().map(|kind| (kind, of_kind(kind))).filter(|(_, count)| *count > 0).collect();
        Self { nodes: misses.iter().map(listed).collect(), more, summary, asked: asked(&request.what), near: (near, most_free) }
    }

    /// One sentence that tells a tenant what to do and reveals nothing about any node.
    pub fn for_tenants(&self) -> String {
        let asked = &self.asked;
        match self.near {
            (0, _) => format!("no capacity for {asked} right now: try again later, or ask for something else"),
            (1, free) => format!("no capacity for {asked} right now; 1 node has {free} free: ask for fewer, or try again later"),
            (nodes, free) => {
                format!(
                    "no capacity for {asked} right now; {nodes} nodes have up to {free} free: ask for fewer, or try again later"
                )
            }
        }
    }

    /// One line per node with all its reasons, and the number of nodes left out.
    pub fn for_operators(&self) -> Vec<String> {
        let line = |node: &NodeReason| {
            let reasons: Vec<String> = node.reasons.iter().map(ToString::to_string).collect();
            format!("{} ({}): {}", node.name, node.node_id, reasons.join("; "))
        };
        let more = (self.more > 0).then(|| {
            let counts: Vec<String> = self.summary.iter().map(|(kind, nodes)| format!("{nodes} {}", kind.as_str())).collect();
            format!("and {} more; of all nodes: {}", self.more, counts.join(", "))
        });
        self.nodes.iter().map(line).chain(more).collect()
    }

    /// The refusal that a tenant gets.
    pub fn refusal(&self) -> Refusal {
        Refusal::conflict("no_capacity", self.for_tenants())
    }
}

/// The request as a phrase, with the tenant's own name for the model.
fn asked(what: &What) -> String {
    let shown = |model: &String| plain(model).collect::<String>();
    match what {
        What::Slots { count, gpu_model, .. } => {
            let count = count.get();
            let things = match gpu_model {
                Some(model) => format!("{count} × {}", shown(model)),
                None if count == 1 => "1 slot".to_owned(),
                None => format!("{count} slots"),
            };
            if count == 1 { things } else { format!("{things} in one machine") }
        }
        What::Machine { gpu_model: Some(model), gpus: Some(gpus) } => format!("a whole machine with {gpus} × {}", shown(model)),
        What::Machine { gpu_model: Some(model), gpus: None } => format!("a whole machine with {}", shown(model)),
        What::Machine { gpu_model: None, gpus: Some(gpus) } => format!("a whole machine with {gpus} GPUs"),
        What::Machine { gpu_model: None, gpus: None } => "a whole machine".to_owned(),
    }
}

/// A node that does not fit.
struct Miss<'a> {
    /// Distance from fitting, for sorting: pinned elsewhere, missing free slots, number of reasons.
    far: (bool, usize, usize),
    candidate: &'a Candidate,
    kinds: Kinds,
}

impl Miss<'_> {
    fn order(&self) -> (bool, usize, usize, NodeId) {
        let (pinned_elsewhere, not_free, reasons) = self.far;
        (pinned_elsewhere, not_free, reasons, self.candidate.node_id)
    }
}

/// Keeps only the misses that will be listed, in any order.
fn keep_nearest(misses: &mut Vec<Miss<'_>>) {
    if misses.len() > MAX_LISTED {
        misses.select_nth_unstable_by_key(MAX_LISTED, Miss::order);
        misses.truncate(MAX_LISTED);
    }
}

/// A set of kinds of reasons, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds(u32);

impl Kinds {
    const NONE: Self = Self(0);

    const fn with(self, kind: ReasonKind) -> Self {
        Self(self.0 | 1 << kind as u32)
    }

    fn with_if(self, holds: bool, kind: ReasonKind) -> Self {
        if holds { self.with(kind) } else { self }
    }

    const fn has(self, kind: ReasonKind) -> bool {
        self.0 >> kind as u32 & 1 == 1
    }

    const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// What the request asks of a node.
enum Asked {
    Slots(Ask),
    Machine { wanted: Wanted, gpus: Option<usize> },
}

impl Asked {
    fn of(what: &What) -> Self {
        match what {
            What::Slots { count, gpu_model, min_vcpus_per_slot, min_memory_mib_per_slot } => {
                Self::Slots(Ask::new(*count, gpu_model.as_ref(), *min_vcpus_per_slot, *min_memory_mib_per_slot))
            }
            What::Machine { gpu_model, gpus } => {
                let gpus = gpus.map(|gpus| usize::try_from(gpus).unwrap_or(usize::MAX));
                Self::Machine { wanted: Wanted::of(gpu_model.as_ref()), gpus }
            }
        }
    }
}

/// Compares nodes with a request one by one, without an index. A node without a reason here would have been taken.
struct Judge<'a> {
    request: &'a PlacementRequest,
    ask: Asked,
}

impl Judge<'_> {
    /// The kinds of reasons against a node, and how many of its slots would do.
    fn look(&self, candidate: &Candidate) -> (Kinds, usize) {
        // A node that is ruled out needs no further reasons.
        if self.request.is_pinned_elsewhere(candidate.node_id) {
            return (Kinds::NONE.with(ReasonKind::NotPinned), 0);
        }
        let kinds = match candidate.service {
            NodeService::Retired => return (Kinds::NONE.with(ReasonKind::Retired), 0),
            NodeService::InService => Kinds::NONE,
            NodeService::Draining => Kinds::NONE.with(ReasonKind::Draining),
            NodeService::Quarantined => Kinds::NONE.with(ReasonKind::Quarantined),
            NodeService::Locked => Kinds::NONE.with(ReasonKind::Locked),
        };
        let avoided = self.request.avoid_nodes.contains(&candidate.node_id);
        let kinds = kinds.with_if(!candidate.online, ReasonKind::Offline).with_if(avoided, ReasonKind::Avoided);
        match &self.ask {
            Asked::Slots(ask) => missing_slots(candidate, ask, kinds),
            Asked::Machine { wanted, gpus } => (missing_machine(candidate, wanted, *gpus, kinds), 0),
        }
    }

    /// The reasons of these kinds, with details.
    fn reasons(&self, candidate: &Candidate, kinds: Kinds) -> Vec<Reason> {
        let everything = Ask { wanted: Wanted::Any, count: candidate.slots.len(), min_vcpus: 0, min_memory_mib: 0 };
        let (ask, wanted_gpus) = match &self.ask {
            Asked::Slots(ask) => (ask, None),
            Asked::Machine { wanted, gpus } => (&everything, gpus.map(|gpus| (candidate.gpus(wanted), gpus))),
        };
        let here = candidate.wanted_here(&ask.wanted);
        let of_model = || candidate.slots.iter().filter(|slot| here.covers(slot));
        let reason = |kind: ReasonKind| match kind {
            ReasonKind::NotPinned => Reason::NotPinned,
            ReasonKind::Avoided => Reason::Avoided,
            ReasonKind::Offline => Reason::Offline,
            ReasonKind::Draining => Reason::Draining,
            ReasonKind::Quarantined => Reason::Quarantined,
            ReasonKind::Locked => Reason::Locked,
            ReasonKind::Retired => Reason::Retired,
            ReasonKind::HostPolicyDenies => Reason::HostPolicyDenies {
                tasks: match &self.ask {
                    Asked::Slots(_) => candidate.denied_to_slots.clone(),
                    Asked::Machine { .. } => candidate.denied_to_machine.clone(),
                },
            },
            ReasonKind::MachineNotOffered => Reason::MachineNotOffered,
            ReasonKind::MachineLeased => Reason::MachineLeased,
            ReasonKind::MachineDirty => Reason::MachineDirty,
            ReasonKind::NoSlots => Reason::NoSlots,
            ReasonKind::WrongModel => Reason::WrongModel { has: candidate.models.iter().map(Model::shown).collect() },
            ReasonKind::WrongGpuCount => {
                let (has, wanted) = wanted_gpus.unwrap_or_default();
                Reason::WrongGpuCount { has, wanted }
            }
            ReasonKind::TooFewFree => {
                Reason::TooFewFree { free: candidate.fitting(ask).count(), wanted: ask.count, others: NotFree::count(of_model()) }
            }
            ReasonKind::TooFewVcpus => {
                Reason::TooFewVcpus { most: of_model().map(|slot| slot.vcpus).max().unwrap_or(0), wanted: ask.min_vcpus }
            }
            ReasonKind::TooLittleMemory => Reason::TooLittleMemory {
                most_mib: of_model().map(|slot| slot.memory_mib).max().unwrap_or(0),
                wanted_mib: ask.min_memory_mib,
            },
        };
        ReasonKind::ALL.into_iter().filter(|kind| kinds.has(*kind)).map(reason).collect()
    }
}

/// Counts of the slots with the right GPU.
#[derive(Default)]
struct Counts {
    /// All of them, and those with enough vCPUs or memory.
    all: usize,
    enough_vcpus: usize,
    enough_memory: usize,
    /// The same among the free ones.
    free: usize,
    free_enough_vcpus: usize,
    free_enough_memory: usize,
    /// Free, with enough vCPUs and memory.
    fitting: usize,
}

impl Counts {
    fn of(candidate: &Candidate, ask: &Ask) -> Self {
        let here = candidate.wanted_here(&ask.wanted);
        let mut counts = Self::default();
        for slot in candidate.slots.iter().filter(|slot| here.covers(slot)) {
            let (free, vcpus, memory) = (slot.is_free(), slot.vcpus >= ask.min_vcpus, slot.memory_mib >= ask.min_memory_mib);
            counts.all += 1;
            counts.enough_vcpus += usize::from(vcpus);
            counts.enough_memory += usize::from(memory);
            counts.free += usize::from(free);
            counts.free_enough_vcpus += usize::from(free && vcpus);
            counts.free_enough_memory += usize::from(free && memory);
            counts.fitting += usize::from(free && vcpus && memory);
        }
        counts
    }
}

fn missing_slots(candidate: &Candidate, ask: &Ask, kinds: Kinds) -> (Kinds, usize) {
    match candidate.machine {
        None | Some(MachineUse::Free) => {}
        Some(MachineUse::Leased) => return (kinds.with(ReasonKind::MachineLeased), 0),
        Some(MachineUse::Dirty) => return (kinds.with(ReasonKind::MachineDirty), 0),
    }
    if candidate.slots.is_empty() {
        return (kinds.with(ReasonKind::NoSlots), 0);
    }
    let counts = Counts::of(candidate, ask);
    let kinds = kinds.with_if(!candidate.denied_to_slots.is_empty(), ReasonKind::HostPolicyDenies);
    let kinds = match counts {
        Counts { all: 0, .. } => kinds.with(ReasonKind::WrongModel),
        Counts { fitting, .. } if fitting >= ask.count => kinds,
        // If no slot is large enough, waiting does not help, so report that, too.
        Counts { free, .. } if free < ask.count => kinds
            .with(ReasonKind::TooFewFree)
            .with_if(counts.enough_vcpus == 0, ReasonKind::TooFewVcpus)
            .with_if(counts.enough_memory == 0, ReasonKind::TooLittleMemory),
        Counts { free_enough_vcpus, free_enough_memory, .. } => {
            let (few, little) = (free_enough_vcpus < ask.count, free_enough_memory < ask.count);
            // Some slots lack vCPUs and others lack memory.
            let mixed = !few && !little;
            kinds.with_if(few || mixed, ReasonKind::TooFewVcpus).with_if(little || mixed, ReasonKind::TooLittleMemory)
        }
    };
    (kinds, counts.fitting)
}

fn missing_machine(candidate: &Candidate, wanted: &Wanted, gpus: Option<usize>, kinds: Kinds) -> Kinds {
    let kinds = match candidate.machine {
        Some(MachineUse::Free) => kinds,
        None => return kinds.with(ReasonKind::MachineNotOffered),
        Some(MachineUse::Leased) => kinds.with(ReasonKind::MachineLeased),
        Some(MachineUse::Dirty) => kinds.with(ReasonKind::MachineDirty),
    };
    let kinds = kinds.with_if(!candidate.denied_to_machine.is_empty(), ReasonKind::HostPolicyDenies);
    let has = candidate.gpus(wanted);
    let wrong_model = has == 0 && *wanted != Wanted::Any;
    let wrong_count = !wrong_model && gpus.is_some_and(|wanted| wanted != has);
    kinds
        .with_if(wrong_model, ReasonKind::WrongModel)
        .with_if(wrong_count, ReasonKind::WrongGpuCount)
        .with_if(!candidate.all_free(), ReasonKind::TooFewFree)
}
