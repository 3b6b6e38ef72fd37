//! A site: organizations with projects, products, hosts, and tenants who request allocations.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::BTreeMap;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::id::{AllocationId, ImageId, NodeId, OrgId, ProjectId, SkuId, SlotId};
use gpuaas_contract::money::{Currency, Money};
use gpuaas_contract::slice::VmName;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::telemetry::GpuFact;
use gpuaas_domain::allocation::Allocation;
use gpuaas_domain::allocation::commands::{self, Request};
use gpuaas_domain::catalog::{Image, Product, Sku};
use gpuaas_domain::decision::Context;
use gpuaas_domain::machine;
use gpuaas_domain::node::Node;
use gpuaas_domain::quota::{Limits, Quota, Used};
use gpuaas_domain::{Decision, Refusal, tenancy};

use crate::ledger::{Ledger, seal};
use crate::support::{NOW, at, node, session, slices};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";

pub(crate) const ORGANIZATIONS: u8 = 2;
/// Projects per organization.
pub(crate) const PROJECTS: u8 = 2;

pub(crate) fn organization(number: u8) -> OrgId {
    OrgId::from_bytes([number; 16])
}

pub(crate) fn project(organization: u8, number: u8) -> ProjectId {
    ProjectId::from_bytes([organization * 16 + number; 16])
}

pub(crate) fn node_id(number: u8) -> NodeId {
    NodeId::from_bytes([number; 16])
}

pub(crate) fn slot_id(number: u8, index: u32) -> SlotId {
    let mut bytes = [number; 16];
    bytes[0] = u8::try_from(index).expect("few");
    SlotId::from_bytes(bytes)
}

/// Names, serial numbers and addresses of a host, which its tenants must not see.
pub(crate) fn secrets_of(number: u8) -> [String; 4] {
    [node_name(number), format!("SN{number}X"), format!("10.{number}."), node_id(number).to_string()]
}

fn node_name(number: u8) -> String {
    format!("rack-{number}.site.example")
}

fn image() -> Image {
    Image {
        id: ImageId::from_bytes([1; 16]),
        version: 0,
        organization_id: None,
        name: "ubuntu".to_owned(),
        description: String::new(),
        url: None,
        path: Some("ubuntu.qcow2".to_owned()),
        sha256: Digest::of(b"image"),
        format: ImageFormat::Qcow2,
        driver_strategy: DriverStrategy::None,
        default_username: "ubuntu".parse().expect("a name"),
        created_by: "somebody".to_owned(),
        created_at: NOW,
        deleted_at: None,
    }
}

fn sku(product: Product) -> Sku {
    Sku {
        id: SkuId::from_bytes([1; 16]),
        version: 0,
        name: "h100".to_owned(),
        description: String::new(),
        product,
        gpu_model: match product {
            Product::Slice { .. } => Some("10de:2330".to_owned()),
            Product::BareMetal => None,
        },
        min_vcpus: 0,
        min_memory_mib: 0,
        price_per_hour: Money::of_millionths(2_500_000, Currency::USD),
        created_at: NOW,
        retired_at: None,
    }
}

/// A request that does not wait, for a lease without an end.
pub(crate) fn wanted(product: Product) -> Request {
    Request {
        name: "train-1".parse().expect("a name"),
        tags: BTreeMap::new(),
        sku: sku(product),
        image: match product {
            Product::Slice { .. } => Some(image()),
            Product::BareMetal => None,
        },
        username: None,
        ssh_public_keys: vec![KEY.parse().expect("a key")],
        sudo: false,
        graceful_timeout_seconds: 60,
        spread: false,
        lease: None,
        wait: Duration::ZERO,
    }
}

pub(crate) fn slice(slots: u32) -> Request {
    wanted(Product::Slice { slots })
}

pub(crate) fn bare_metal() -> Request {
    wanted(Product::BareMetal)
}

impl Ledger {
    /// Organizations and projects without limits, and no hosts.
    pub(crate) fn empty_site() -> Self {
        let mut ledger = Self::default();
        ledger.now = NOW;
        for number in 1..=ORGANIZATIONS {
            let (id, name) = (organization(number), format!("org-{number}"));
            let (mut of_number, decision) =
                tenancy::create_organization(id, &name, "", Limits::default(), &at(NOW)).expect("made");
            ledger.commit(decision).expect("new");
            for of in 0..PROJECTS {
                let (id, name) = (project(number, of), format!("project-{of}"));
                let made = tenancy::create_project(id, &of_number, &name, "", Limits::default(), &at(NOW)).expect("made");
                ledger.commit(made.1).expect("new");
                // Creating a project also writes its organization.
                of_number.version += 1;
            }
        }
        ledger
    }

    /// Hosts 1, 2, … with this many slots each.
    pub(crate) fn sliced(hosts: &[u32]) -> Self {
        let mut ledger = Self::empty_site();
        for (number, slots) in (1..).zip(hosts) {
            ledger.add_sliced(number, *slots);
        }
        ledger
    }

    /// Hosts 1, 2, … that are leased as a whole.
    pub(crate) fn whole(hosts: u8) -> Self {
        let mut ledger = Self::empty_site();
        (1..=hosts).for_each(|number| ledger.add_whole(number));
        ledger
    }

    pub(crate) fn add_whole(&mut self, number: u8) {
        self.add_node(number, 0);
        self.offer(node_id(number)).expect("not sliced");
    }

    fn add_node(&mut self, number: u8, gpus: u32) {
        let mut node = Node { id: node_id(number), name: node_name(number), session: Some(session()), ..node() };
        node.facts.hostname.clone_from(&node.name);
        node.facts.gpus = (0..gpus).map(gpu).collect();
        self.nodes.insert(node.id, node);
        self.look_at(node_id(number));
    }

    pub(crate) fn add_sliced(&mut self, number: u8, slots: u32) {
        self.add_node(number, slots);
        for index in 0..slots {
            let mut slot = slices::slot(index);
            (slot.id, slot.node_id) = (slot_id(number, index), node_id(number));
            slot.spec.nvme_serial = format!("SN{number}X{index}");
            slot.spec.nvme_device = format!("/dev/disk/by-id/nvme-SN{number}X{index}");
            slot.spec.private_ip = std::net::Ipv4Addr::new(10, number, 0, u8::try_from(index).expect("few") + 2);
            slot.seal = seal(&slot);
            self.slots.insert(slot.id, slot);
        }
        self.look_at(node_id(number));
    }

    /// An operator offers a whole host.
    pub(crate) fn offer(&mut self, node: NodeId) -> Result<(), Refusal> {
        let slots: Vec<_> = self.slots.values().filter(|slot| slot.node_id == node).cloned().collect();
        let (_, decision) = machine::offer(&self.nodes[&node], &slots, self.machines.get(&node), None, &at(self.now))?;
        self.commit(decision).expect("nobody else writes");
        Ok(())
    }

    /// A tenant requests an allocation in the first project of the first organization.
    pub(crate) fn request(&mut self, request: &Request) -> Result<AllocationId, Refusal> {
        self.request_in((1, 0), request)
    }

    pub(crate) fn request_in(&mut self, (organization, number): (u8, u8), request: &Request) -> Result<AllocationId, Refusal> {
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&u64::try_from(self.allocations.len() + 1).expect("few").to_be_bytes());
        let id = AllocationId::from_bytes(bytes);
        let project = &self.projects[&project(organization, number)];
        let quotas = self.quotas_of(project.id, project.organization_id);
        // Within a project, a name is unique until its allocation has ended.
        let is_taken =
            |other: &Allocation| !other.state.is_terminal() && other.project_id == project.id && other.name == request.name;
        let name = match self.allocations.values().any(is_taken) {
            true => format!("{}-{}", request.name, self.allocations.len()).parse().expect("a name"),
            false => request.name.clone(),
        };
        let request = Request { name, ..request.clone() };
        let (_, decision) = commands::request(id, project, &quotas, &request, &at(self.now))?;
        self.commit(decision).expect("nobody else writes");
        Ok(id)
    }

    /// Whether another allocation of the project that has not ended has this name.
    fn is_taken(&self, own: AllocationId, project: ProjectId, name: &VmName) -> bool {
        let is_same = |other: &&Allocation| other.id != own && other.project_id == project && other.name == *name;
        self.allocations.values().filter(is_same).any(|other| !other.state.is_terminal())
    }

    /// Carries out a command on an allocation.
    pub(crate) fn say(
        &mut self,
        id: AllocationId,
        say: impl FnOnce(&Allocation, &Context) -> Result<(Allocation, Decision), Refusal>,
    ) -> Result<(), Refusal> {
        let (next, decision) = say(&self.allocations[&id], &at(self.now))?;
        if decision.is_empty() {
            assert_eq!(next, self.allocations[&id], "nothing is written, so nothing has changed");
        } else if !next.state.is_terminal() && self.is_taken(id, next.project_id, &next.name) {
            return Err(Refusal::conflict("name_taken", "another one has the name"));
        }
        self.commit(decision).expect("nobody else writes");
        Ok(())
    }

    pub(crate) fn release(&mut self, id: AllocationId) {
        self.say(id, |run, context| commands::release(run, "done with it", context)).expect("anybody may leave");
    }

    pub(crate) fn power(&mut self, id: AllocationId, action: PowerAction) -> Result<(), Refusal> {
        self.say(id, |run, context| commands::power(run, action, context))
    }

    pub(crate) fn extend(&mut self, id: AllocationId, by: Option<Duration>) -> Result<(), Refusal> {
        self.say(id, |run, context| commands::extend(run, by, context))
    }

    pub(crate) fn retry(&mut self, id: AllocationId, wait: Duration) -> Result<(), Refusal> {
        let run = &self.allocations[&id];
        let quotas = self.quotas_of(run.project_id, run.organization_id);
        self.say(id, |run, context| commands::retry(run, &quotas, wait, context))
    }

    pub(crate) fn quota(&self, of: &impl std::fmt::Display) -> &Quota {
        &self.quotas[&gpuaas_domain::quota::quota_id(of)]
    }

    /// What the first project uses, according to its quota.
    pub(crate) fn used(&self) -> Used {
        self.quota(&project(1, 0)).used
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
        if !self.windows.is_empty() {
            // Some windows may have ended.
            self.look_at_all();
        }
    }
}

fn gpu(index: u32) -> GpuFact {
    GpuFact {
        pci_address: format!("0000:{index:02x}:00.0"),
        vendor_id: "10de".to_owned(),
        device_id: "2330".to_owned(),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        ..GpuFact::default()
    }
}
