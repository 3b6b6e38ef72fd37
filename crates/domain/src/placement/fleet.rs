//! The fleet: all candidates, and shelves that list them in the order in which they are tried.
//!
//! There is one shelf for everything that can be requested: each name of each model, slots without a GPU, and all slots. A node is on a
//! shelf with the number of its matching free slots. The best node is therefore usually among the first, and a lease or a release moves
//! only one node.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;

use super::affinity;
use super::candidate::{Ask, Candidate, Offer, SlotView, Wanted, label, plain};
use super::no_fit::NoFit;
use super::{Placement, PlacementRequest, Policy, What};
use crate::refusal::Refusal;

/// Maximum number of models that a refusal lists.
const MAX_MODELS_LISTED: usize = 20;

const FIRST_NODE: NodeId = NodeId::from_bytes([0; 16]);
const LAST_NODE: NodeId = NodeId::from_bytes([255; 16]);

/// The nodes and their slots as placement sees them. Possibly out of date and never authoritative; see the [`placement`](super) module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    nodes: BTreeMap<NodeId, Candidate>,
    shelves: BTreeMap<Wanted, Shelf>,
}

/// Position of a node on a shelf, best first: whether taking it would break up an untouched node, how well it fits, its id.
type Place = (bool, usize, NodeId);

/// How good a node is for a request, best first.
type Rank = (Disturbed, bool, usize, Split, NodeId);
/// Whether maintenance is announced for the time of the allocation.
type Disturbed = bool;
/// Whether its slots would be on more than one NUMA node.
type Split = bool;

/// The nodes that have something for the same [`Wanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shelf {
    /// Free slots, in the order of [`Policy::Pack`].
    packed: BTreeMap<Place, Offer>,
    /// Free slots, in the order of [`Policy::Spread`].
    spread: BTreeMap<Place, Offer>,
    /// Whole machines by number of GPUs, with the start of their next announced maintenance.
    machines: BTreeMap<(usize, NodeId), Option<Timestamp>>,
}

impl Shelf {
    fn is_empty(&self) -> bool {
        self.packed.is_empty() && self.machines.is_empty()
    }

    /// Nodes with at least `count` free slots, in the order of the policy.
    fn with_free(&self, count: usize, policy: Policy) -> impl Iterator<Item = (&Place, &Offer)> {
        let (shelf, ranges) = match policy {
            Policy::Pack => {
                let from = |untouched| (untouched, count, FIRST_NODE)..=(untouched, usize::MAX, LAST_NODE);
                (&self.packed, [Some(from(false)), Some(from(true))])
            }
            Policy::Spread => (&self.spread, [Some((false, 0, FIRST_NODE)..=(false, fit(policy, count), LAST_NODE)), None]),
        };
        ranges.into_iter().flatten().flat_map(|range| shelf.range(range))
    }
}

/// How well a node with this many free slots fits; lower is better.
const fn fit(policy: Policy, free: usize) -> usize {
    match policy {
        Policy::Pack => free,
        Policy::Spread => usize::MAX - free,
    }
}

/// Position of an offer. Only packing avoids breaking up a node.
const fn place_of(policy: Policy, offer: &Offer, node: NodeId) -> Place {
    let untouched = match policy {
        Policy::Pack => offer.untouched,
        Policy::Spread => false,
    };
    (untouched, fit(policy, offer.free), node)
}

impl Fleet {
    /// An empty fleet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node, or replaces what was known about it.
    pub fn upsert(&mut self, candidate: Candidate) {
        self.remove(candidate.node_id);
        let node = candidate.node_id;
        for (wanted, offer) in candidate.slot_offers() {
            let shelf = self.shelves.entry(wanted).or_default();
            shelf.packed.insert(place_of(Policy::Pack, &offer, node), offer);
            shelf.spread.insert(place_of(Policy::Spread, &offer, node), offer);
        }
        for (wanted, gpus) in candidate.machine_offers() {
            self.shelves.entry(wanted).or_default().machines.insert((gpus, node), candidate.maintenance);
        }
        self.nodes.insert(node, candidate);
    }

    /// Removes a node.
    pub fn remove(&mut self, node: NodeId) {
        let Some(candidate) = self.nodes.remove(&node) else { return };
        for (wanted, offer) in candidate.slot_offers() {
            self.on_shelf(&wanted, |shelf| {
                shelf.packed.remove(&place_of(Policy::Pack, &offer, node));
                shelf.spread.remove(&place_of(Policy::Spread, &offer, node));
            });
        }
        for (wanted, gpus) in candidate.machine_offers() {
            self.on_shelf(&wanted, |shelf| {
                shelf.machines.remove(&(gpus, node));
            });
        }
    }

    /// Marks a placement as taken, because an allocation is about to lease it. The next update of the node corrects the mark if needed.
    pub fn take(&mut self, what: &What, place: &Placement) {
        if let Some(mut candidate) = self.nodes.get(&place.node_id).cloned() {
            candidate.take(what, &place.slots);
            self.upsert(candidate);
        }
    }

    /// Removes something from a shelf, and the shelf itself once it is empty, so that a model that disappears leaves nothing behind.
    fn on_shelf(&mut self, wanted: &Wanted, take: impl FnOnce(&mut Shelf)) {
        let Some(shelf) = self.shelves.get_mut(wanted) else { return };
        take(shelf);
        if shelf.is_empty() {
            self.shelves.remove(wanted);
        }
    }

    /// All nodes, sorted by id.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.nodes.values()
    }

    /// Refuses the name of a GPU that no node reports: nothing could be placed on it.
    pub fn check_model(&self, model: &str) -> Result<(), Refusal> {
        let wanted = Wanted::of(Some(&model.to_owned()));
        if self.candidates().any(|candidate| candidate.gpus(&wanted) > 0) {
            return Ok(());
        }
        let known: BTreeSet<String> = self.candidates().flat_map(Candidate::model_names).collect();
        let more = known.len().saturating_sub(MAX_MODELS_LISTED);
        let mut listed: Vec<String> = known.into_iter().take(MAX_MODELS_LISTED).collect();
        if more > 0 {
            listed.push(format!("and {more} more"));
        }
        let known = if listed.is_empty() { "no node has reported a GPU yet".to_owned() } else { listed.join(", ") };
        let message = format!(
            "no node has ever reported a GPU `{}`; known are: {known}. Set `allow_unknown_gpu` for hardware that arrives later",
            plain(model).collect::<String>()
        );
        Err(Refusal::invalid("gpu_model_unknown", message).in_body("/gpu_model"))
    }

    /// Returns the PCI id and the name of the GPU that a product calls `model`, from the first node that reports both, or else from a
    /// node that reports one of them. `None` if no node has it.
    pub fn model(&self, model: &str) -> Option<(&str, &str)> {
        let wanted = label(model);
        let mut partly = None;
        for found in self.candidates().filter_map(|candidate| candidate.model_called(&wanted)) {
            if !found.0.is_empty() && !found.1.is_empty() {
                return Some(found);
            }
            partly = partly.or(Some(found));
        }
        partly
    }

    /// Finds a place for an allocation, or explains why there is none.
    pub fn place(&self, request: &PlacementRequest, now: Timestamp) -> Result<Placement, NoFit> {
        let until = request.disturbed_until(now);
        let found = match &request.what {
            What::Slots { count, gpu_model, min_vcpus_per_slot, min_memory_mib_per_slot } => {
                let ask = Ask::new(*count, gpu_model.as_ref(), *min_vcpus_per_slot, *min_memory_mib_per_slot);
                self.place_slots(ask, request, until)
            }
            What::Machine { gpu_model, gpus } => self.place_machine(&Wanted::of(gpu_model.as_ref()), *gpus, request, until),
        };
        found.ok_or_else(|| NoFit::explain(self.candidates(), request))
    }

    /// How many requests like this one could be met now, one after the other.
    pub fn how_many(&self, request: &PlacementRequest) -> usize {
        match &request.what {
            What::Slots { count, gpu_model, min_vcpus_per_slot, min_memory_mib_per_slot } => {
                let ask = Ask::new(*count, gpu_model.as_ref(), *min_vcpus_per_slot, *min_memory_mib_per_slot);
                let shelf = self.shelves.get(&ask.wanted);
                let nodes =
                    shelf.into_iter().flat_map(|shelf| shelf.with_free(ask.count, Policy::Pack).map(|((_, _, node), _)| *node));
                let allowed = nodes.filter(|node| request.allows(*node)).filter_map(|node| self.nodes.get(&node));
                allowed.map(|candidate| candidate.fitting(&ask).count() / ask.count).sum()
            }
            What::Machine { gpu_model, gpus } => {
                let shelf = self.shelves.get(&Wanted::of(gpu_model.as_ref()));
                let machines = shelf.into_iter().flat_map(|shelf| shelf.machines.keys());
                machines
                    .filter(|(has, node)| gpus.is_none_or(|gpus| usize::try_from(gpus) == Ok(*has)) && request.allows(*node))
                    .count()
            }
        }
    }

    fn place_slots(&self, ask: Ask, request: &PlacementRequest, until: Timestamp) -> Option<Placement> {
        // Prefer slots without a GPU for a request that does not ask for one.
        let frugal = (ask.wanted == Wanted::Any).then(|| Ask { wanted: Wanted::WithoutGpu, ..ask.clone() });
        let asks = frugal.into_iter().chain([ask]);
        let found = asks.filter_map(|ask| Some((self.best_node(&ask, request, until)?, ask)));
        // If both are equally disturbed, the first, which spends no GPU.
        let ((_, node), ask) = found.min_by_key(|((disturbed, _), _)| *disturbed)?;
        let candidate = self.nodes.get(&node)?;
        Some(placement(candidate, &affinity::choose(candidate.fitting(&ask), ask.count), until))
    }

    /// The best node for this request. Inspects a node's slots only if its position on the shelf is not enough to decide.
    fn best_node(&self, ask: &Ask, request: &PlacementRequest, until: Timestamp) -> Option<(Disturbed, NodeId)> {
        let shelf = self.shelves.get(&ask.wanted)?;
        let has_minimum = ask.min_vcpus > 0 || ask.min_memory_mib > 0;
        let mut best: Option<Rank> = None;
        for (&(untouched, by_place, node), offer) in shelf.with_free(ask.count, request.policy) {
            // Lower bound for the rank of this node and of all nodes after it.
            let bound = match request.policy {
                Policy::Pack if has_minimum => (false, untouched, fit(Policy::Pack, ask.count), false, FIRST_NODE),
                Policy::Pack | Policy::Spread => (false, untouched, by_place, false, node),
            };
            if best.is_some_and(|best| best <= bound) {
                break;
            }
            let disturbed = offer.maintenance.is_some_and(|starts| starts < until);
            let all_are_large_enough = ask.min_vcpus <= offer.least_vcpus && ask.min_memory_mib <= offer.least_memory_mib;
            // Under packing, a node fits tighter than its position says if some of its free slots are too small.
            let at_best = match request.policy {
                Policy::Pack if !all_are_large_enough => fit(Policy::Pack, ask.count),
                Policy::Pack | Policy::Spread => by_place,
            };
            let hope = (disturbed, untouched, at_best, false, node);
            if best.is_some_and(|best| best <= hope) || !request.allows(node) {
                continue;
            }
            if all_are_large_enough && ask.count == 1 {
                best = Some(hope);
                continue;
            }
            let Some(candidate) = self.nodes.get(&node) else { continue };
            let free = candidate.fitting(ask).count();
            if free >= ask.count {
                let split = !affinity::fits_on_one_numa_node(candidate.fitting(ask), ask.count);
                let rank = (disturbed, untouched, fit(request.policy, free), split, node);
                best = Some(best.map_or(rank, |best| best.min(rank)));
            }
        }
        best.map(|(disturbed, _, _, _, node)| (disturbed, node))
    }

    /// The smallest machine that will do, so that larger ones remain for requests that need them.
    fn place_machine(
        &self,
        wanted: &Wanted,
        gpus: Option<u32>,
        request: &PlacementRequest,
        until: Timestamp,
    ) -> Option<Placement> {
        let shelf = self.shelves.get(wanted)?;
        let (least, most) = match gpus.map(usize::try_from) {
            None => (0, usize::MAX),
            Some(gpus) => (gpus.ok()?, gpus.ok()?),
        };
        let range = (least, FIRST_NODE)..=(most, LAST_NODE);
        let machines = || shelf.machines.range(range.clone()).filter(|((_, node), _)| request.allows(*node));
        let undisturbed = machines().find(|(_, maintenance)| maintenance.is_none_or(|starts| starts >= until));
        let ((_, node), _) = undisturbed.or_else(|| machines().next())?;
        let candidate = self.nodes.get(node)?;
        Some(placement(candidate, &candidate.slots.iter().collect::<Vec<_>>(), until))
    }
}

fn placement(candidate: &Candidate, slots: &[&SlotView], until: Timestamp) -> Placement {
    let maintenance_at = candidate.maintenance.filter(|starts| *starts < until);
    let note = maintenance_at
        .map(|starts| format!("maintenance is announced from {starts}, and nothing else was free; save work before that"));
    let numa: Vec<i32> = slots.iter().map(|slot| slot.numa).collect();
    Placement {
        node_id: candidate.node_id,
        node_name: candidate.name.clone(),
        slots: slots.iter().map(|slot| slot.id).collect(),
        same_numa: numa.windows(2).all(|pair| pair[0] == pair[1]),
        numa,
        maintenance_at,
        note,
    }
}
