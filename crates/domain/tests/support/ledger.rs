//! An in-memory store for allocations. It writes a decision completely or not at all, over the versions it was decided on, and settles the
//! tasks that end in it as the control plane does.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::envelope;
use gpuaas_contract::id::{AllocationId, NodeId, OrgId, ProjectId, SlotId, TaskId};
use gpuaas_contract::task::{Leased, Task};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{self, Advance, Allocation, AllocationStep, Chosen, Signers, StepInputs, Terms};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::decision::Context;
use gpuaas_domain::machine::{self, Machine, MachineState, machine_id};
use gpuaas_domain::maintenance::Window;
use gpuaas_domain::node::Node;
use gpuaas_domain::placement::{Candidate, Fleet, MachineOffer, MachineUse, NoFit, PlacementRequest, Policy, SlotCount, What};
use gpuaas_domain::quota::{Quota, quota_id};
use gpuaas_domain::resource::{Document, Resource, ResourceKind};
use gpuaas_domain::slice::{self, Ending};
use gpuaas_domain::slot::{self, Slot, SlotState};
use gpuaas_domain::task::{self, TaskRecord, TaskState};
use gpuaas_domain::tenancy::{Organization, Project};
use gpuaas_domain::{Actor, AuditEntry, Change, Decision, OutboxEvent, Wakeup};

/// Another writer was faster, or the row already exists: nothing of the decision was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

#[derive(Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) now: Timestamp,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) slots: BTreeMap<SlotId, Slot>,
    pub(crate) tasks: BTreeMap<TaskId, TaskRecord>,
    /// Tasks in order of creation. Their ids are partly random, and a seed must always play the same.
    pub(crate) made: Vec<TaskId>,
    /// The allocation of each task.
    pub(crate) holders: BTreeMap<TaskId, AllocationId>,
    pub(crate) envelopes: BTreeMap<TaskId, Vec<envelope::Signed>>,
    receipts: BTreeSet<TaskId>,
    documents: BTreeMap<(ResourceKind, String), Document>,
    // The parsed documents, so that nothing has to parse them again.
    pub(crate) organizations: BTreeMap<OrgId, Organization>,
    pub(crate) projects: BTreeMap<ProjectId, Project>,
    pub(crate) quotas: BTreeMap<String, Quota>,
    pub(crate) machines: BTreeMap<NodeId, Machine>,
    pub(crate) allocations: BTreeMap<AllocationId, Allocation>,
    pub(crate) windows: BTreeMap<String, Window>,
    pub(crate) events: Vec<OutboxEvent>,
    pub(crate) audit: Vec<AuditEntry>,
    /// Whether guests respond, as nodes report after starting them.
    pub(crate) guest_answers: Option<bool>,
    /// The wake-ups of the last commit.
    pub(crate) wakeups: Vec<Wakeup>,
    /// The view that placement uses, updated node by node like in the control plane.
    pub(crate) picture: Fleet,
}

/// Stands in for the control plane's MAC.
pub(crate) fn seal(slot: &Slot) -> String {
    slot::seal_text(slot)
}

pub(crate) fn intent(task: &TaskRecord) -> String {
    task::intent_text(task)
}

impl Ledger {
    /// Writes a decision as the control plane does: with the effects on the slots and machines of all tasks that end in it.
    pub(crate) fn commit(&mut self, decision: Decision) -> Result<(), Conflict> {
        let settled = self.settled(decision);
        self.write(settled)
    }

    fn settled(&self, mut decision: Decision) -> Decision {
        for ending in std::mem::take(&mut decision.endings) {
            let task = &ending.task;
            let now = task.ended_at.expect("it has ended");
            let context = Context { now, actor: Actor::System, correlation_id: task.correlation_id.clone() };
            let genuine = intent(task) == task.intent;
            let settled = match task.task_type.facts().lease {
                Some(Leased::Host) => self.machine_settled(&ending, genuine, &context),
                Some(Leased::Slots) => self.slots_settled(&ending, genuine, &context),
                None => Decision::default(),
            };
            decision = decision.and(settled);
        }
        decision
    }

    fn slots_settled(&self, ending: &Ending, genuine: bool, context: &Context) -> Decision {
        let of_task = |slot: &&Slot| slot.lease_task == Some(ending.task.id);
        let slots: Vec<Slot> = self.slots.values().filter(of_task).cloned().collect();
        slice::settle(&slots, ending, genuine, seal, context)
    }

    fn machine_settled(&self, ending: &Ending, genuine: bool, context: &Context) -> Decision {
        let lookup = Some(ending.task.id.to_string());
        let machine = self.machines.values().find(|machine| machine.keys().lookup == lookup);
        machine.map(|machine| machine::settle(machine, ending, genuine, context)).unwrap_or_default()
    }

    /// The part of the store: writes everything or nothing.
    pub(crate) fn write(&mut self, decision: Decision) -> Result<(), Conflict> {
        assert!(decision.endings.is_empty(), "it does not say what becomes of the slots of {:?}", decision.endings);
        let mut seen = BTreeSet::new();
        for id in decision.changes.iter().filter_map(row_id) {
            assert!(seen.insert(id.clone()), "it writes {id} twice");
        }
        if !decision.changes.iter().all(|change| self.takes(change)) || !self.keys_are_free(&decision, &seen) {
            return Err(Conflict);
        }
        self.check_recorded(&decision);
        for change in decision.changes {
            let node = node_of(&change);
            let window = document_of(&change).is_some_and(|document| document.kind == ResourceKind::Maintenance);
            self.apply(change);
            match node {
                Some(node) => self.look_at(node),
                None if window => self.look_at_all(),
                None => {}
            }
        }
        self.events.extend(decision.events);
        self.audit.extend(decision.audit);
        self.wakeups = decision.wakeups;
        Ok(())
    }

    /// Whether the row still has the version that the change was decided on.
    fn takes(&self, change: &Change) -> bool {
        match change {
            Change::NodeInsert(node) => !self.nodes.contains_key(&node.id),
            Change::NodeUpdate(node) => self.nodes.get(&node.id).is_some_and(|known| known.version == node.version),
            Change::SlotInsert(slot) => !self.slots.contains_key(&slot.id),
            Change::SlotUpdate(slot) => self.slots.get(&slot.id).is_some_and(|known| known.version == slot.version),
            Change::TaskInsert(task) => {
                assert!(self.nodes.contains_key(&task.node_id), "a task for no node");
                !self.tasks.contains_key(&task.id)
            }
            Change::TaskUpdate(task) => self.tasks.get(&task.id).is_some_and(|known| known.version == task.version),
            Change::EnvelopeInsert { .. } | Change::CertificatesRevoke { .. } => true,
            Change::ReceiptInsert { task_id, .. } => !self.receipts.contains(task_id),
            Change::ResourceInsert(document) => !self.documents.contains_key(&key_of(document)),
            Change::ResourceUpdate(document) => {
                self.documents.get(&key_of(document)).is_some_and(|known| known.version == document.version)
            }
            Change::EnrollmentInsert(_)
            | Change::EnrollmentUpdate(_)
            | Change::JoinTokenInsert(_)
            | Change::JoinTokenUpdate(_)
            | Change::CertificateInsert(_)
            | Change::ApiTokenInsert(_)
            | Change::ApiTokenUpdate(_)
            | Change::ResourcesForget { .. }
            | Change::ServerSeen { .. }
            | Change::LogAppend(_) => panic!("no part of an allocation's life: {change:?}"),
        }
    }

    /// Whether the keys are unique: names within their parent, lookups within their kind.
    fn keys_are_free(&self, decision: &Decision, written: &BTreeSet<String>) -> bool {
        let documents = decision.changes.iter().filter_map(document_of);
        documents.filter(|document| document.keys.name.is_some() || document.keys.lookup.is_some()).all(|document| {
            self.documents.values().filter(|known| known.kind == document.kind && !written.contains(&known.id)).all(|known| {
                let same_name = known.keys.name.is_some()
                    && (&known.keys.parent, &known.keys.name) == (&document.keys.parent, &document.keys.name);
                let same_lookup = known.keys.lookup.is_some() && known.keys.lookup == document.keys.lookup;
                !same_name && !same_lookup
            })
        })
    }

    /// Checks that every state change has an event and an audit entry about the same id in the same commit.
    fn check_recorded(&self, decision: &Decision) {
        let told = |id: &String| decision.events.iter().any(|event| event.subject == *id);
        let noted = |id: &String| decision.audit.iter().any(|entry| entry.target == *id);
        assert_eq!(decision.events.len(), decision.audit.len(), "every event has an audit row");
        for change in &decision.changes {
            let (id, before, after) = match change {
                Change::NodeInsert(node) | Change::NodeUpdate(node) => {
                    let state = |node: &Node| format!("{} {}", node.service.as_str(), node.session.is_some());
                    (node.id.to_string(), self.nodes.get(&node.id).map(state), state(node))
                }
                Change::SlotInsert(slot) | Change::SlotUpdate(slot) => {
                    assert_eq!(slot.seal, seal(slot), "sealed as it is written");
                    let known = self.slots.get(&slot.id).map(|slot| slot.state.as_str().to_owned());
                    (slot.id.to_string(), known, slot.state.as_str().to_owned())
                }
                Change::TaskInsert(task) | Change::TaskUpdate(task) => {
                    let known = self.tasks.get(&task.id).map(|task| task.state.as_str().to_owned());
                    (task.id.to_string(), known, task.state.as_str().to_owned())
                }
                // A quota is written together with what it counts, and has no states.
                Change::ResourceInsert(document) | Change::ResourceUpdate(document) if document.kind == ResourceKind::Quota => {
                    continue;
                }
                Change::ResourceInsert(document) | Change::ResourceUpdate(document) => {
                    let known = self.documents.get(&key_of(document)).map(|known| known.keys.state.to_owned());
                    // The events alone must reveal the state of every allocation.
                    let says = |event: &OutboxEvent| event.subject == document.id && event.data["to"] == document.keys.state;
                    let is_told = document.kind != ResourceKind::Allocation || decision.events.iter().any(says);
                    assert!(is_told, "no event says that {} is {}", document.id, document.keys.state);
                    (document.id.clone(), known, document.keys.state.to_owned())
                }
                _ => continue,
            };
            if before.as_ref() != Some(&after) {
                assert!(told(&id) && noted(&id), "{id} went from {before:?} to {after} and nobody is told");
            }
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::NodeInsert(node) => drop(self.nodes.insert(node.id, *node)),
            Change::NodeUpdate(node) => drop(self.nodes.insert(node.id, Node { version: node.version + 1, ..*node })),
            Change::SlotInsert(slot) => drop(self.slots.insert(slot.id, *slot)),
            Change::SlotUpdate(slot) => drop(self.slots.insert(slot.id, Slot { version: slot.version + 1, ..*slot })),
            Change::TaskInsert(task) => {
                self.made.push(task.id);
                let holder = Task::parse(task.task_type, &task.params).expect("parses").holder();
                self.holders.extend(holder.map(|holder| (task.id, holder.allocation_id)));
                self.tasks.insert(task.id, *task);
            }
            Change::TaskUpdate(task) => drop(self.tasks.insert(task.id, TaskRecord { version: task.version + 1, ..*task })),
            Change::EnvelopeInsert { task_id, digest, envelope, .. } => {
                self.envelopes.entry(task_id).or_default().push(envelope::Signed { envelope, digest });
            }
            Change::ReceiptInsert { task_id, .. } => drop(self.receipts.insert(task_id)),
            Change::ResourceInsert(document) => self.keep(*document),
            Change::ResourceUpdate(document) => self.keep(Document { version: document.version + 1, ..*document }),
            // `takes` has rejected all other changes that would have to be stored.
            _ => {}
        }
    }

    fn keep(&mut self, document: Document) {
        match document.kind {
            ResourceKind::Organization => keep(&mut self.organizations, &document, |organization: &Organization| organization.id),
            ResourceKind::Project => keep(&mut self.projects, &document, |project: &Project| project.id),
            ResourceKind::Quota => keep(&mut self.quotas, &document, |quota: &Quota| quota.id.clone()),
            ResourceKind::Machine => keep(&mut self.machines, &document, |machine: &Machine| machine.node_id),
            ResourceKind::Allocation => keep(&mut self.allocations, &document, |allocation: &Allocation| allocation.id),
            ResourceKind::Maintenance => keep(&mut self.windows, &document, |window: &Window| window.id.to_string()),
            other => panic!("no part of an allocation's life: {other:?}"),
        }
        self.documents.insert(key_of(&document), document);
    }

    /// The quotas that an allocation of this project counts against.
    pub(crate) fn quotas_of(&self, project: ProjectId, organization: OrgId) -> Vec<Quota> {
        [quota_id(&project), quota_id(&organization)].iter().map(|id| self.quotas[id].clone()).collect()
    }

    /// The slots that an allocation holds, or that it left something on.
    pub(crate) fn slots_of(&self, id: AllocationId) -> Vec<Slot> {
        self.slots.values().filter(|slot| slot.allocation_id == Some(id)).cloned().collect()
    }

    /// The inputs for the next step of this run.
    pub(crate) fn inputs(&self, run: &Allocation) -> StepInputs {
        let slots = self.slots_of(run.id);
        assert!(slots.iter().all(|slot| slot.seal == seal(slot)));
        let machine = match (run.terms.product, run.node_id) {
            (Product::BareMetal, Some(node)) => self.machines.get(&node).cloned(),
            (Product::BareMetal, None) | (Product::Slice { .. }, _) => None,
        };
        let machine = machine.filter(|machine| machine.allocation_id == Some(run.id));
        let node = slots.first().map(|slot| slot.node_id).or(run.node_id).map(|id| self.nodes[&id].clone());
        let task = run.task_id.map(|id| self.tasks[&id].clone());
        let of_slots = slots.iter().filter_map(|slot| slot.lease_task);
        let ids: BTreeSet<TaskId> = of_slots.chain(machine.as_ref().and_then(|machine| machine.lease_task)).collect();
        let lease_tasks = ids.into_iter().map(|id| self.tasks[&id].clone()).collect();
        let looks = run.step == AllocationStep::Place && slots.is_empty() && machine.is_none() && run.release_request.is_none();
        let place = looks.then(|| self.place(run));
        let quotas = self.quotas_of(run.project_id, run.organization_id);
        let guest_answers = task.as_ref().filter(|task| task.state == TaskState::Succeeded).and(self.guest_answers);
        StepInputs { node, slots, lease_tasks, machine, task, guest_answers, place, budget: None, quotas }
    }

    fn place(&self, run: &Allocation) -> Result<Chosen, NoFit> {
        let request = placement_request(&run.terms, &run.avoid, run.expires_at);
        let found = self.picture.place(&request, self.now)?;
        let node = self.nodes[&found.node_id].clone();
        Ok(match run.terms.product {
            Product::Slice { .. } => {
                let slots: Vec<Slot> = found.slots.iter().map(|id| self.slots[id].clone()).collect();
                assert!(slots.iter().all(|slot| slot.state == SlotState::Available && slot.allocation_id.is_none()));
                Chosen { node, slots, machine: None }
            }
            Product::BareMetal => {
                let machine = self.machines[&node.id].clone();
                assert_eq!(machine.state, MachineState::Available);
                Chosen { node, slots: Vec::new(), machine: Some(machine) }
            }
        })
    }

    /// Updates a node in the placement view.
    pub(crate) fn look_at(&mut self, node: NodeId) {
        let candidate = self.candidate(node);
        self.picture.upsert(candidate);
    }

    /// Rebuilds the placement view.
    pub(crate) fn look_at_all(&mut self) {
        self.picture = self.fleet();
    }

    /// A fleet built from the rows.
    pub(crate) fn fleet(&self) -> Fleet {
        let mut fleet = Fleet::new();
        self.nodes.keys().for_each(|node| fleet.upsert(self.candidate(*node)));
        fleet
    }

    fn candidate(&self, node: NodeId) -> Candidate {
        let slots: Vec<Slot> = self.slots.values().filter(|slot| slot.node_id == node).cloned().collect();
        let offer = self.machines.get(&node).and_then(|machine| match machine.state {
            MachineState::Available => Some(MachineUse::Free),
            MachineState::Leased | MachineState::Releasing => Some(MachineUse::Leased),
            MachineState::CleanupBlocked => Some(MachineUse::Dirty),
            MachineState::Withdrawn => None,
        });
        let windows = self.windows.values().filter(|window| window.counts(self.now) && window.nodes.contains(&node));
        let maintenance = windows.map(|window| window.starts_at).min();
        Candidate::new(&self.nodes[&node], &slots, offer.map(|state| MachineOffer { state }), maintenance)
    }

    /// Decides the next step of a run without writing it.
    pub(crate) fn decide(&self, id: AllocationId) -> Advance {
        let run = &self.allocations[&id];
        self.decide_on(run, &self.inputs(run))
    }

    /// Decides a step on inputs that may be outdated.
    pub(crate) fn decide_on(&self, run: &Allocation, inputs: &StepInputs) -> Advance {
        let context = Context { now: self.now, actor: Actor::System, correlation_id: run.correlation_id.clone() };
        allocation::advance(run, inputs, &Signers { seal: &seal, intent: &intent }, &context)
    }

    /// Takes the next step of a run.
    pub(crate) fn advance(&mut self, id: AllocationId) -> Advance {
        let advance = self.decide(id);
        self.commit(advance.decision.clone()).expect("nobody else writes");
        let written = &self.allocations[&id];
        let decided = Allocation { version: written.version, ..advance.allocation.clone() };
        assert_eq!(*written, decided, "it says what it writes");
        advance
    }

    /// The short kinds of all events about a subject, in order.
    pub(crate) fn told(&self, subject: &impl ToString) -> Vec<&'static str> {
        let subject = subject.to_string();
        self.events.iter().filter(|event| event.subject == subject).map(|event| event.kind.short()).collect()
    }

    pub(crate) fn machine(&self, node: NodeId) -> &Machine {
        assert_eq!(self.machines[&node].id, machine_id(node));
        &self.machines[&node]
    }
}

fn key_of(document: &Document) -> (ResourceKind, String) {
    (document.kind, document.id.clone())
}

fn document_of(change: &Change) -> Option<&Document> {
    match change {
        Change::ResourceInsert(document) | Change::ResourceUpdate(document) => Some(document),
        _ => None,
    }
}

/// The node that a change affects in the placement view.
fn node_of(change: &Change) -> Option<NodeId> {
    match change {
        Change::NodeInsert(node) | Change::NodeUpdate(node) => Some(node.id),
        Change::SlotInsert(slot) | Change::SlotUpdate(slot) => Some(slot.node_id),
        other => {
            let machine = document_of(other).filter(|document| document.kind == ResourceKind::Machine)?;
            Some(machine.read::<Machine>().expect("reads back").node_id)
        }
    }
}

fn row_id(change: &Change) -> Option<String> {
    match change {
        Change::NodeInsert(node) | Change::NodeUpdate(node) => Some(node.id.to_string()),
        Change::SlotInsert(slot) | Change::SlotUpdate(slot) => Some(slot.id.to_string()),
        Change::TaskInsert(task) | Change::TaskUpdate(task) => Some(task.id.to_string()),
        other => document_of(other).map(|document| document.id.clone()),
    }
}

fn keep<K: Ord, R: Resource>(rows: &mut BTreeMap<K, R>, document: &Document, key: impl Fn(&R) -> K) {
    let resource: R = document.read().expect("a document reads back");
    rows.insert(key(&resource), resource);
}

/// The placement request of an allocation.
fn placement_request(terms: &Terms, avoid: &[NodeId], end: Option<Timestamp>) -> PlacementRequest {
    let what = match terms.product {
        Product::Slice { slots } => What::Slots {
            count: usize::try_from(slots).ok().and_then(|slots| SlotCount::new(slots).ok()).expect("a product has 1 to 16 slots"),
            gpu_model: terms.gpu_model.clone(),
            min_vcpus_per_slot: terms.min_vcpus,
            min_memory_mib_per_slot: terms.min_memory_mib,
        },
        Product::BareMetal => What::Machine { gpu_model: terms.gpu_model.clone(), gpus: None },
    };
    PlacementRequest {
        what,
        policy: if terms.spread { Policy::Spread } else { Policy::Pack },
        only_nodes: None,
        avoid_nodes: avoid.iter().copied().collect(),
        must_end_by: end,
    }
}
