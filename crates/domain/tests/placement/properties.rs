//! Small random fleets, compared with an exhaustive search.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::NodeService;
use gpuaas_domain::placement::{Fleet, MachineUse, Placement, PlacementRequest, Policy, SlotCount, What};
use gpuaas_domain::slot::{Slot, SlotState};
use proptest::prelude::*;

use crate::rig::{H100, Host, MI300X, fleet, gpu, node_id};
use crate::support::{NOW, later};

/// A second device with the same name as the first.
const H100_TOO: (&str, &str, &str) = ("10de", "2331", "nvidia h100 80gb HBM3");

/// What a slot contains.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Gpu((&'static str, &'static str, &'static str)),
    Missing,
    Nothing,
}

fn slot(index: u32) -> impl Strategy<Value = (u32, SlotState, bool, Inside, i32, u32, u64)> {
    let states = prop_oneof![3 => Just(SlotState::Available), 2 => prop::sample::select(SlotState::ALL.to_vec())];
    let inside = prop_oneof![
        4 => Just(Inside::Gpu(H100)),
        2 => Just(Inside::Gpu(H100_TOO)),
        1 => Just(Inside::Gpu(MI300X)),
        1 => Just(Inside::Missing),
        1 => Just(Inside::Nothing),
    ];
    let held = prop::bool::weighted(0.1);
    (Just(index), states, held, inside, -1..2, prop::sample::select(vec![4, 8, 12]), prop::sample::select(vec![1024, 2048]))
}

fn host(number: u8) -> impl Strategy<Value = Host> {
    let slots = (0_u32..7).prop_flat_map(|slots| (0..slots).map(slot).collect::<Vec<_>>());
    let service = prop_oneof![9 => Just(NodeService::InService), 1 => prop::sample::select(NodeService::ALL.to_vec())];
    let uses = vec![None, Some(MachineUse::Free), Some(MachineUse::Leased), Some(MachineUse::Dirty)];
    let machine = prop_oneof![2 => Just(None), 2 => Just(Some(MachineUse::Free)), 1 => prop::sample::select(uses)];
    let maintenance = prop::sample::select(vec![None, None, Some(later(1800)), Some(later(7200))]);
    (slots, service, prop::bool::weighted(0.9), machine, maintenance).prop_map(
        move |(slots, service, online, machine, maintenance)| {
            let mut host = Host::h100(number, u32::try_from(slots.len()).expect("few")).service(service);
            host.node.facts.gpus.clear();
            for (row, (_, state, held, inside, numa, vcpus, memory)) in host.slots.iter_mut().zip(slots) {
                (row.state, row.quarantine) = (state, held.then(|| "held".to_owned()));
                (row.spec.numa_node, row.spec.vcpu_count, row.spec.memory_mib) = (numa, vcpus, memory);
                match inside {
                    Inside::Nothing => row.spec.pci_address = None,
                    Inside::Missing => {}
                    Inside::Gpu(model) => {
                        let address = row.spec.pci_address.as_ref().map_or("", |address| address.as_str());
                        host.node.facts.gpus.push(gpu(address, model));
                    }
                }
            }
            if !online {
                host.node.session = None;
            }
            (host.machine, host.maintenance) = (machine, maintenance);
            host
        },
    )
}

fn hosts() -> impl Strategy<Value = Vec<Host>> {
    (0_u8..6).prop_flat_map(|hosts| (1..=hosts).map(host).collect::<Vec<_>>())
}

fn request() -> impl Strategy<Value = PlacementRequest> {
    let models = [None, Some("10DE:2330"), Some("NVIDIA H100 80GB HBM3"), Some("1002:74a1"), Some("tpu")];
    let model = || prop::sample::select(models.map(|model| model.map(str::to_owned)).to_vec());
    let sizes = (1_usize..5, prop::sample::select(vec![0, 0, 8, 12]), prop::sample::select(vec![0, 0, 2048]));
    let slots = (model(), sizes).prop_map(|(gpu_model, (count, min_vcpus_per_slot, min_memory_mib_per_slot))| What::Slots {
        count: SlotCount::new(count).expect("1 to 16"),
        gpu_model,
        min_vcpus_per_slot,
        min_memory_mib_per_slot,
    });
    let machine = (model(), prop::option::of(0_u32..4)).prop_map(|(gpu_model, gpus)| What::Machine { gpu_model, gpus });
    let nodes = || prop::collection::btree_set((1_u8..6).prop_map(node_id), 0..4);
    let only = prop_oneof![4 => Just(None), 1 => nodes().prop_map(Some)];
    let avoid = prop_oneof![4 => Just(BTreeSet::new()), 1 => nodes()];
    let end = prop::sample::select(vec![None, Some(later(600)), Some(later(10_000))]);
    (prop_oneof![4 => slots, 1 => machine], prop::sample::select(Policy::ALL.to_vec()), only, avoid, end).prop_map(
        |(what, policy, only_nodes, avoid_nodes, must_end_by)| PlacementRequest {
            what,
            policy,
            only_nodes,
            avoid_nodes,
            must_end_by,
        },
    )
}

/// The exhaustive search: the placement rules written a second time, directly on the rows and without an index.
struct Oracle<'a> {
    hosts: &'a [Host],
    request: &'a PlacementRequest,
}

/// Lower is better; the node id makes all ranks distinct.
type Rank = (bool, bool, bool, usize, bool, NodeId);

impl Oracle<'_> {
    fn until(&self) -> Timestamp {
        self.request.must_end_by.unwrap_or(later(3600))
    }

    fn is_free(slot: &Slot) -> bool {
        slot.state == SlotState::Available && slot.quarantine.is_none()
    }

    fn is_model(host: &Host, address: &str, model: &str) -> bool {
        let of = |gpu: &&gpuaas_contract::telemetry::GpuFact| gpu.pci_address == address;
        host.node.facts.gpus.iter().find(of).is_some_and(|gpu| {
            gpu.name.eq_ignore_ascii_case(model) || format!("{}:{}", gpu.vendor_id, gpu.device_id).eq_ignore_ascii_case(model)
        })
    }

    fn is_open(&self, host: &Host) -> bool {
        let id = host.node.id;
        host.node.session.is_some()
            && host.node.service == NodeService::InService
            && self.request.only_nodes.as_ref().is_none_or(|only| only.contains(&id))
            && !self.request.avoid_nodes.contains(&id)
    }

    /// The slots that the request could get.
    fn usable<'h>(&self, host: &'h Host) -> Vec<&'h Slot> {
        let What::Slots { gpu_model, min_vcpus_per_slot, min_memory_mib_per_slot, .. } = &self.request.what else {
            return Vec::new();
        };
        let closed = matches!(host.machine, Some(MachineUse::Leased | MachineUse::Dirty));
        let fits = |slot: &&Slot| {
            let address = slot.spec.pci_address.as_ref().map_or("", |address| address.as_str());
            Self::is_free(slot)
                && slot.spec.vcpu_count >= *min_vcpus_per_slot
                && slot.spec.memory_mib >= *min_memory_mib_per_slot
                && gpu_model.as_ref().is_none_or(|model| Self::is_model(host, address, model))
        };
        if closed || !self.is_open(host) { Vec::new() } else { host.slots.iter().filter(fits).collect() }
    }

    fn disturbed(&self, host: &Host) -> bool {
        host.maintenance.is_some_and(|starts| starts < self.until())
    }

    fn live(host: &Host) -> impl Iterator<Item = &Slot> {
        host.slots.iter().filter(|slot| slot.state != SlotState::Withdrawn)
    }

    /// How good a node is if the request gets these slots.
    fn rank(&self, host: &Host, usable: &[&Slot], spends_gpus: bool, count: usize) -> Option<Rank> {
        let per_numa = |numa: i32| usable.iter().filter(|slot| slot.spec.numa_node == numa).count();
        let split = !usable.iter().any(|slot| per_numa(slot.spec.numa_node) >= count);
        let untouched = Self::live(host).all(Self::is_free);
        let (broken_up, fit) = match self.request.policy {
            Policy::Pack => (untouched, usable.len()),
            Policy::Spread => (false, usize::MAX - usable.len()),
        };
        (usable.len() >= count).then_some((self.disturbed(host), spends_gpus, broken_up, fit, split, host.node.id))
    }

    fn best_slots(&self, count: usize, any_model: bool) -> Option<NodeId> {
        let ranks = self.hosts.iter().flat_map(|host| {
            let usable = self.usable(host);
            let without: Vec<&Slot> = usable.iter().copied().filter(|slot| slot.spec.pci_address.is_none()).collect();
            let frugal = if any_model { self.rank(host, &without, false, count) } else { None };
            [frugal, self.rank(host, &usable, true, count)]
        });
        ranks.flatten().min().map(|(.., node)| node)
    }

    fn best_machine(&self, gpu_model: Option<&String>, gpus: Option<u32>) -> Option<NodeId> {
        let fitting = self.hosts.iter().filter_map(|host| {
            let is_wanted = |address: &str| gpu_model.is_none_or(|model| Self::is_model(host, address, model));
            let has = host.node.facts.gpus.iter().filter(|gpu| is_wanted(&gpu.pci_address)).count();
            let enough = gpus.map_or(gpu_model.is_none() || has > 0, |gpus| has == usize::try_from(gpus).expect("few"));
            let some = gpu_model.is_none() || has > 0;
            let free = host.machine == Some(MachineUse::Free) && Self::live(host).all(Self::is_free);
            (self.is_open(host) && free && enough && some).then_some((self.disturbed(host), has, host.node.id))
        });
        fitting.min().map(|(.., node)| node)
    }

    fn best(&self) -> Option<NodeId> {
        match &self.request.what {
            What::Slots { count, gpu_model, .. } => self.best_slots(count.get(), gpu_model.is_none()),
            What::Machine { gpu_model, gpus } => self.best_machine(gpu_model.as_ref(), *gpus),
        }
    }

    /// How far apart slots are: NUMA nodes, then switches.
    fn distance(slots: &[&Slot]) -> (usize, usize) {
        let switch = |slot: &Slot| slot.spec.pci_address.as_ref().map(|address| address.as_str()[..6].to_owned());
        let numa: BTreeSet<i32> = slots.iter().map(|slot| slot.spec.numa_node).collect();
        let switches: BTreeSet<_> = slots.iter().map(|slot| (slot.spec.numa_node, switch(slot))).collect();
        (numa.len(), switches.len())
    }

    /// The smallest distance among all combinations.
    fn least_distance(usable: &[&Slot], count: usize) -> Option<(usize, usize)> {
        let choices = (0_u32..1 << usable.len()).filter(|bits| usize::try_from(bits.count_ones()) == Ok(count));
        let taken = |bits: u32| usable.iter().enumerate().filter(move |(place, _)| bits >> place & 1 == 1).map(|(_, slot)| *slot);
        choices.map(|bits| Self::distance(&taken(bits).collect::<Vec<_>>())).min()
    }

    fn check_slots(&self, placement: &Placement) -> Result<(), TestCaseError> {
        let host = self.hosts.iter().find(|host| host.node.id == placement.node_id).expect("one of them");
        let of = |id| host.slots.iter().find(|slot| slot.id == id);
        let taken: Vec<&Slot> = placement.slots.iter().filter_map(|id| of(*id)).collect();
        prop_assert_eq!(taken.len(), placement.slots.len(), "all on one node");
        prop_assert!(taken.iter().all(|slot| Self::is_free(slot)), "free");
        prop_assert!(taken.is_sorted_by_key(|slot| slot.spec.slot_index));
        prop_assert_eq!(placement.slots.iter().collect::<BTreeSet<_>>().len(), taken.len(), "none twice");
        prop_assert_eq!(&placement.numa, &taken.iter().map(|slot| slot.spec.numa_node).collect::<Vec<_>>());
        prop_assert_eq!(placement.same_numa, placement.numa.iter().collect::<BTreeSet<_>>().len() <= 1);
        prop_assert_eq!(placement.maintenance_at, host.maintenance.filter(|_| self.disturbed(host)));
        prop_assert_eq!(placement.note.is_some(), placement.maintenance_at.is_some());
        match &self.request.what {
            What::Machine { .. } => prop_assert_eq!(taken.len(), Self::live(host).count()),
            What::Slots { count, gpu_model, .. } => {
                prop_assert_eq!(taken.len(), count.get());
                let mut usable = self.usable(host);
                prop_assert!(taken.iter().all(|slot| usable.iter().any(|usable| usable.id == slot.id)));
                let gpu_is_spent = |slots: &[&Slot]| slots.iter().any(|slot| slot.spec.pci_address.is_some());
                if gpu_model.is_none() && !gpu_is_spent(&taken) {
                    usable.retain(|slot| slot.spec.pci_address.is_none());
                }
                prop_assert_eq!(Some(Self::distance(&taken)), Self::least_distance(&usable, count.get()));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn the_best_node_is_found_exactly_if_there_is_one(hosts in hosts(), request in request()) {
        let fleet = fleet(&hosts);
        let oracle = Oracle { hosts: &hosts, request: &request };
        match fleet.place(&request, NOW) {
            Ok(placement) => {
                prop_assert_eq!(Some(placement.node_id), oracle.best());
                oracle.check_slots(&placement)?;
                prop_assert_eq!(fleet.place(&request, NOW), Ok(placement), "the same again");
            }
            Err(no_fit) => {
                prop_assert_eq!(oracle.best(), None);
                prop_assert_eq!(no_fit.nodes.len() + no_fit.more, hosts.len());
                prop_assert!(no_fit.nodes.iter().all(|node| !node.reasons.is_empty()), "every node has a reason: {:?}", no_fit);
                let mut counts = BTreeMap::new();
                for reason in no_fit.nodes.iter().flat_map(|node| &node.reasons) {
                    *counts.entry(reason.kind()).or_insert(0) += 1;
                }
                prop_assert_eq!(&no_fit.summary, &counts);
                let reported = no_fit.for_tenants();
                prop_assert!(hosts.iter().all(|host| !reported.contains(&host.node.name)), "{}", reported);
            }
        }
    }

    #[test]
    fn a_fleet_that_was_changed_step_by_step_equals_one_made_anew(
        steps in prop::collection::vec((1_u8..6).prop_flat_map(|number| (Just(number), prop::option::weighted(0.8, host(number)))), 0..24),
    ) {
        let (mut stepwise, mut now) = (Fleet::new(), BTreeMap::new());
        for (number, host) in steps {
            match host {
                Some(host) => {
                    stepwise.upsert(host.candidate());
                    now.insert(number, host);
                }
                None => {
                    stepwise.remove(node_id(number));
                    now.remove(&number);
                }
            }
            prop_assert_eq!(&stepwise, &fleet(now.values()));
            prop_assert_eq!(stepwise.len(), now.len());
        }
        now.keys().for_each(|number| stepwise.remove(node_id(*number)));
        prop_assert_eq!(stepwise, Fleet::new(), "nothing is left behind");
    }

    #[test]
    fn what_is_taken_is_not_found_again_until_the_rows_say_otherwise(hosts in hosts(), request in request()) {
        let before = fleet(&hosts);
        let (mut taken, mut places) = (before.clone(), Vec::new());
        while let Ok(place) = taken.place(&request, NOW) {
            taken.take(&request.what, &place);
            places.push(place);
            prop_assert!(places.len() <= before.how_many(&request), "{:?}", places);
        }
        prop_assert_eq!(places.len(), before.how_many(&request), "everything that fits was found once");
        hosts.iter().for_each(|host| taken.upsert(host.candidate()));
        prop_assert_eq!(taken, before);
    }

    #[test]
    fn capacity_adds_up(hosts in hosts()) {
        let fleet = fleet(&hosts);
        let (rows, nodes) = (fleet.capacity(), fleet.capacity_by_node());
        for row in rows.iter().chain(nodes.iter().flat_map(|node| &node.rows)) {
            prop_assert_eq!(row.delivered, row.healthy + row.unhealthy);
            prop_assert_eq!(row.healthy, row.allocated + row.free);
            prop_assert!(row.largest_free_on_one_node <= row.free && (row.free == 0) == (row.largest_free_on_one_node == 0));
        }
        let kept = hosts.iter().filter(|host| host.node.service != NodeService::Retired);
        prop_assert_eq!(rows.iter().map(|row| row.delivered).sum::<usize>(), kept.flat_map(Oracle::live).count());
        for row in &rows {
            let own = || nodes.iter().flat_map(|node| &node.rows).filter(|of| of.model == row.model);
            prop_assert_eq!(row.nodes, own().count());
            prop_assert_eq!(row.delivered, own().map(|of| of.delivered).sum::<usize>());
            prop_assert_eq!(row.allocated, own().map(|of| of.allocated).sum::<usize>());
            prop_assert_eq!(row.free, own().map(|of| of.free).sum::<usize>());
            prop_assert_eq!(Some(row.largest_free_on_one_node), own().map(|of| of.free).max());
        }
        // Whatever is reported as free can be leased, one slot at a time.
        let free: usize = rows.iter().map(|row| row.free).sum();
        let count = SlotCount::new(1).expect("1 to 16");
        let one = What::Slots { count, gpu_model: None, min_vcpus_per_slot: 0, min_memory_mib_per_slot: 0 };
        prop_assert_eq!(fleet.place(&PlacementRequest::new(one), NOW).is_ok(), free > 0);
    }
}
