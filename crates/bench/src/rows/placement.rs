//! Placement over a large fleet that is nearly full: finding slots, explaining why there are none, and updating the fleet view.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{AgentInstanceId, NodeId, ServerId, SessionId, SlotId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::telemetry::{GpuFact, HostFacts};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::{LinkTransport, LiveSession, Node, NodeService};
use gpuaas_domain::placement::{Candidate, Fleet, Placement, PlacementRequest, Policy, SlotCount, What};
use gpuaas_domain::slot::{Slot, SlotState};

use crate::Result;
use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, interleave};
use crate::times::{TimeUnit, Times};

const NODES: usize = 10_000;
const SLOTS: u32 = 8;
/// Percentage of leased slots.
const FULL: usize = 85;
/// The goal for the time of one placement, in microseconds.
const GOAL: f64 = 5000.0;

/// Vendor, device and name of each GPU model, and the vCPUs and memory in MiB of its slots.
const MODELS: [(&str, &str, &str, u32, u64); 4] = [
    ("10de", "2330", "NVIDIA H100 80GB HBM3", 24, 245_760),
    ("10de", "2335", "NVIDIA H200", 24, 245_760),
    ("10de", "26b9", "NVIDIA L40S", 16, 122_880),
    ("1002", "74a1", "AMD Instinct MI300X", 24, 245_760),
];
const BUSES: [u8; 8] = [0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb];

/// Places one request after the other, and ends as many leases as it places.
struct Placing {
    policy: Policy,
    now: Timestamp,
    hosts: Vec<Host>,
    fleet: Fleet,
    leased: usize,
    chance: Chance,
}

struct Host {
    node: Node,
    slots: Vec<Slot>,
}

/// Pseudo-random numbers that are the same in every run (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap_or(0) % limit.max(1)
    }
}

impl Host {
    fn new(number: usize, chance: &mut Chance, now: Timestamp) -> Result<Self> {
        let (vendor_id, device_id, name, vcpu_count, memory_mib) = MODELS[chance.below(MODELS.len())];
        let address = |bus: u8| format!("0000:{bus:02x}:00.0");
        let gpu = |bus: u8| GpuFact {
            pci_address: address(bus),
            vendor_id: vendor_id.to_owned(),
            device_id: device_id.to_owned(),
            name: name.to_owned(),
            ..GpuFact::default()
        };
        let hostname = format!("node-{number:05}");
        let node = Node {
            id: NodeId::generate(),
            version: 1,
            name: hostname.clone(),
            fingerprint: hostname.clone(),
            epoch: 1,
            receipt_key: SigningKey::from_seed(&[42; 32]).verifying_key(),
            tls_key_digest: Digest::of(b"tls"),
            record: Vec::new(),
            service: if chance.below(100) == 0 { NodeService::Draining } else { NodeService::InService },
            service_reason: String::new(),
            session: (chance.below(100) > 0).then(|| LiveSession {
                id: SessionId::generate(),
                agent_instance_id: AgentInstanceId::generate(),
                boot_id: "boot".to_owned(),
                transport: LinkTransport::Stream,
                since: now,
                server: ServerId::generate(),
            }),
            last_seen_at: Some(now),
            facts: HostFacts { hostname, gpus: BUSES.map(gpu).into(), ..HostFacts::default() },
            rejoins: 0,
            created_at: now,
            enrolled_at: now,
        };
        let mut slots = Vec::new();
        for (slot_index, bus) in (0..SLOTS).zip(BUSES) {
            let spec = SlotSpec {
                slot_index,
                pci_address: Some(address(bus).parse()?),
                companions: Vec::new(),
                fabric_device: None,
                nvme_device: format!("/dev/disk/by-id/nvme-{number}-{slot_index}"),
                nvme_serial: format!("{number}-{slot_index}"),
                numa_node: i32::from(slot_index >= SLOTS / 2),
                vcpu_count,
                memory_mib,
                mac_address: format!("02:00:00:00:00:{slot_index:02x}"),
                private_ip: std::net::Ipv4Addr::new(10, 77, 0, 2),
            };
            slots.push(slot(node.id, spec, now));
        }
        Ok(Self { node, slots })
    }

    fn candidate(&self, now: Timestamp) -> Candidate {
        // Every node has a maintenance window far in the future.
        Candidate::new(&self.node, &self.slots, None, Some(now.plus(Duration::from_secs(30 * 86_400))))
    }
}

fn slot(node_id: NodeId, spec: SlotSpec, now: Timestamp) -> Slot {
    Slot {
        id: SlotId::generate(),
        version: 1,
        node_id,
        spec,
        state: SlotState::Available,
        reason: String::new(),
        quarantine: None,
        allocation_id: None,
        lease_epoch: 0,
        lease_task: None,
        drive_used: false,
        devices_used: false,
        proposed_by: TaskId::generate(),
        approved_by: "bench".to_owned(),
        approved_at: now,
        created_at: now,
        seal: String::new(),
    }
}

impl Placing {
    fn new(policy: Policy) -> Result<Self> {
        let (now, mut chance) = (Timestamp::now(), Chance(42));
        let mut hosts = (0..NODES).map(|number| Host::new(number, &mut chance, now)).collect::<Result<Vec<_>>>()?;
        // Sorted by id, so that the host of a placement can be found by binary search.
        hosts.sort_by_key(|host| host.node.id);
        let mut placing = Self { policy, now, hosts, fleet: Fleet::new(), leased: 0, chance };
        for host in &mut placing.hosts {
            for slot in &mut host.slots {
                if placing.chance.below(100) < FULL {
                    slot.state = SlotState::Leased;
                    placing.leased += 1;
                }
            }
            placing.fleet.upsert(host.candidate(placing.now));
        }
        Ok(placing)
    }

    /// Returns a request, usually for a few GPUs of an existing model, like a product of the catalog.
    fn request(&mut self) -> Result<PlacementRequest> {
        let (vendor, device, name, vcpus, memory) = MODELS[self.chance.below(MODELS.len())];
        let gpu_model = if self.chance.below(2) == 0 { name.to_owned() } else { format!("{vendor}:{device}") };
        let sized = self.chance.below(4) > 0;
        Ok(PlacementRequest {
            policy: self.policy,
            ..PlacementRequest::new(What::Slots {
                count: SlotCount::new([1, 1, 1, 2, 2, 4, 4, 8][self.chance.below(8)])?,
                gpu_model: Some(gpu_model),
                min_vcpus_per_slot: if sized { vcpus } else { 0 },
                min_memory_mib_per_slot: if sized { memory } else { 0 },
            })
        })
    }

    /// Changes the state of some slots of one host, and updates the fleet. Records the time of the update.
    fn change(&mut self, place: usize, slots: &[SlotId], state: SlotState, times: &mut Times) -> Result<()> {
        let host = &mut self.hosts[place];
        for slot in host.slots.iter_mut().filter(|slot| slots.contains(&slot.id)) {
            if slot.state == state {
                return Err("a slot was given out that was not free".into());
            }
            slot.state = state;
        }
        let started = Instant::now();
        self.fleet.upsert(self.hosts[place].candidate(self.now));
        times.record(started.elapsed())
    }

    /// Leases the placement, and ends as many leases elsewhere, so that the fleet stays equally full.
    fn take(&mut self, placement: &Placement, times: &mut Times) -> Result<()> {
        let place =
            self.hosts.binary_search_by_key(&placement.node_id, |host| host.node.id).map_err(|_| "a node that is not there")?;
        self.change(place, &placement.slots, SlotState::Leased, times)?;
        self.leased += placement.slots.len();
        while self.leased * 100 > NODES * BUSES.len() * FULL {
            let place = self.chance.below(NODES);
            let leased = self.hosts[place].slots.iter().find(|slot| slot.state == SlotState::Leased).map(|slot| slot.id);
            if let Some(slot) = leased {
                self.change(place, &[slot], SlotState::Available, times)?;
                self.leased -= 1;
            }
        }
        Ok(())
    }

    fn work(&mut self, time: Duration) -> Result<Round> {
        let (mut found, mut nothing, mut upserts) = (Times::new()?, Times::new()?, Times::new()?);
        let started = Instant::now();
        while started.elapsed() < time {
            let request = self.request()?;
            let at = Instant::now();
            let placed = std::hint::black_box(self.fleet.place(&request, self.now));
            let took = at.elapsed();
            match placed {
                Ok(placement) => {
                    found.record(took)?;
                    self.take(&placement, &mut upserts)?;
                }
                Err(_) => nothing.record(took)?,
            }
            // No node has this many slots, so the reason of every node is computed.
            if self.chance.below(16) == 0 {
                let too_many = PlacementRequest {
                    what: What::Slots {
                        count: SlotCount::new(16)?,
                        gpu_model: None,
                        min_vcpus_per_slot: 0,
                        min_memory_mib_per_slot: 0,
                    },
                    ..request
                };
                let at = Instant::now();
                let refused = std::hint::black_box(self.fleet.place(&too_many, self.now)).is_err();
                nothing.record(at.elapsed())?;
                if !refused {
                    return Err("16 slots were found on a node with 8".into());
                }
            }
        }
        Ok(Round::times(vec![found, nothing, upserts]))
    }
}

impl Side for Placing {
    fn name(&self) -> String {
        format!("placement, {}", self.policy.as_str())
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        let measured = self.work(time);
        Box::pin(async move { measured })
    }
}

pub(crate) async fn run(effort: Effort) -> Result<Vec<Row>> {
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    for policy in Policy::ALL {
        sides.push(Box::new(Placing::new(policy)?));
    }
    let measured = interleave(&mut sides, effort).await;
    let quantile = |metric, share| Quantile { metric, share, unit: TimeUnit::Microseconds };
    let mut rows = Vec::new();
    for (side, policy) in Policy::ALL.into_iter().enumerate() {
        let path = |what: &str| format!("{what}, 10,000 nodes × 8 slots, {FULL} % full, {}", policy.as_str());
        rows.push(measured.own_time_row(&path("placement p50"), side, quantile(0, 0.5), Goal::Open));
        rows.push(measured.own_time_row(&path("placement p99"), side, quantile(0, 0.99), Goal::AtMost(GOAL)));
        rows.push(measured.own_time_row(&path("why nothing fits p99"), side, quantile(1, 0.99), Goal::AtMost(GOAL)));
        rows.push(measured.own_time_row(&path("a node's news from its rows p50"), side, quantile(2, 0.5), Goal::Open));
        rows.push(measured.own_time_row(&path("a node's news from its rows p99"), side, quantile(2, 0.99), Goal::Open));
    }
    Ok(rows)
}
