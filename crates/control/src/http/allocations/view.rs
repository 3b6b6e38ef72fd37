//! An allocation as callers see it: tenants see what they lease, and callers with a platform role also see where it is.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use gpuaas_api::dto;
use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_contract::ssh_address::SshAddress;
use gpuaas_domain::allocation::{Allocation, AllocationState, AllocationStep};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::machine::{Machine, machine_id};
use gpuaas_domain::placement::NodeReason;

use crate::Control;
use crate::app::allocations::{Outcome, Plan};
use crate::app::{catalog, etag_of};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::http::catalog::{gpu_of, product_to_dto};
use crate::resources;

/// The result of a dry run as the caller sees it. Only callers with a platform role see where the allocation would be placed.
pub(super) fn plan_to_dto(audience: Audience, plan: Plan) -> dto::AllocationPlan {
    let mut shown = dto::AllocationPlan {
        sku: plan.sku.name,
        price_per_hour: plan.sku.price_per_hour,
        fits: false,
        code: None,
        reason: None,
        same_numa: None,
        note: None,
        node_name: None,
        slots: None,
        reasons_by_node: None,
    };
    match plan.outcome {
        Outcome::Fits(place) => {
            shown.fits = true;
            shown.same_numa = Some(place.same_numa);
            shown.note = place.note;
            shown.node_name = audience.is_platform().then_some(place.node_name);
            shown.slots = audience.is_platform().then_some(place.slots);
        }
        Outcome::OverQuota(refusal) => {
            shown.code = Some(refusal.code.to_owned());
            shown.reason = Some(refusal.message);
        }
        Outcome::NoCapacity(no_fit) => {
            shown.code = Some("no_capacity".to_owned());
            shown.reason = Some(no_fit.for_tenants());
            let of_node = |node: &NodeReason| dto::NodeReasons {
                node_id: node.node_id,
                node_name: node.name.clone(),
                reasons: node.reasons.iter().map(ToString::to_string).collect(),
            };
            shown.reasons_by_node = audience.is_platform().then(|| no_fit.nodes.iter().map(of_node).collect());
        }
    }
    shown
}

pub(super) async fn to_dto(
    control: &Control,
    audience: Audience,
    allocation: Allocation,
) -> Result<dto::Allocation, ControlError> {
    let mut shown = to_dtos(control, audience, vec![allocation]).await?;
    shown.pop().ok_or_else(|| ControlError::Internal("an allocation to show was lost".to_owned()))
}

pub(super) async fn to_dtos(
    control: &Control,
    audience: Audience,
    allocations: Vec<Allocation>,
) -> Result<Vec<dto::Allocation>, ControlError> {
    let nodes: BTreeSet<NodeId> = allocations.iter().filter_map(|one| one.node_id).filter(|_| audience.is_platform()).collect();
    let slots: Vec<SlotId> = allocations.iter().filter_map(first_slot).collect();
    let known = Known {
        names: if nodes.is_empty() { HashMap::new() } else { control.store.node_names(&Vec::from_iter(nodes)).await? },
        addresses: match slots.is_empty() {
            true => HashMap::new(),
            false => control.store.slot_many(&slots).await?.into_iter().map(|slot| (slot.id, slot.spec.private_ip)).collect(),
        },
        machines: machines(control, &allocations).await?,
        gpus: catalog::gpus(control, allocations.iter().filter_map(|one| one.terms.gpu_model.as_deref()).collect()).await?,
    };
    let mut items = Vec::with_capacity(allocations.len());
    for allocation in allocations {
        items.push(one(control, audience, allocation, &known).await?);
    }
    Ok(items)
}

/// What is read once for a whole page of allocations.
struct Known {
    names: HashMap<NodeId, String>,
    addresses: HashMap<SlotId, Ipv4Addr>,
    machines: HashMap<NodeId, SshAddress>,
    gpus: HashMap<String, dto::Gpu>,
}

/// SSH addresses of the machines among these allocations.
async fn machines(control: &Control, allocations: &[Allocation]) -> Result<HashMap<NodeId, SshAddress>, ControlError> {
    let is_whole = |one: &&Allocation| one.terms.product == Product::BareMetal && one.state.is_held();
    let ids: Vec<String> = allocations.iter().filter(is_whole).filter_map(|one| one.node_id).map(machine_id).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let found: Vec<Machine> = resources::many(control, &ids).await?;
    Ok(found.into_iter().filter_map(|machine| Some((machine.node_id, machine.ssh_address?))).collect())
}

/// The slot whose address a guest is reached at. `None` for machines and for allocations that have ended.
fn first_slot(allocation: &Allocation) -> Option<SlotId> {
    match allocation.terms.product {
        Product::Slice { .. } => allocation.slots.first().copied().filter(|_| !allocation.state.is_terminal()),
        Product::BareMetal => None,
    }
}

async fn one(
    control: &Control,
    audience: Audience,
    allocation: Allocation,
    known: &Known,
) -> Result<dto::Allocation, ControlError> {
    let node = allocation.node_id.filter(|_| audience.is_platform());
    let held = !allocation.state.is_terminal();
    let private_ip = first_slot(&allocation).and_then(|slot| known.addresses.get(&slot).copied());
    let maintenance = match allocation.node_id.filter(|_| held) {
        Some(node) => control.fleet.windows_of(control, node).await?,
        None => Vec::new(),
    };
    let works =
        matches!(allocation.step, AllocationStep::AwaitProvision | AllocationStep::AwaitPower | AllocationStep::AwaitRelease);
    let phase = allocation.task_id.filter(|_| works).and_then(|task| control.progress.get(task));
    let terms = &allocation.terms;
    let last_error = allocation.last_error.as_ref();
    let address = match (allocation.state, terms.product) {
        (AllocationState::Active, Product::Slice { .. }) => private_ip.map(|address| (address.to_string(), 22)),
        (AllocationState::Active, Product::BareMetal) => {
            let known = allocation.node_id.and_then(|node| known.machines.get(&node));
            known.map(|address| (address.host().to_owned(), address.port()))
        }
        (
            AllocationState::Requested
            | AllocationState::Placing
            | AllocationState::Provisioning
            | AllocationState::Stopped
            | AllocationState::Releasing
            | AllocationState::Released
            | AllocationState::Failed
            | AllocationState::ReleaseBlocked,
            _,
        ) => None,
    };
    Ok(dto::Allocation {
        id: allocation.id,
        organization_id: allocation.organization_id,
        project_id: allocation.project_id,
        name: allocation.name.to_string(),
        tags: allocation.tags.clone(),
        state: allocation.state.into(),
        step: allocation.step.into(),
        sku_id: terms.sku_id,
        sku: terms.sku_name.clone(),
        product: product_to_dto(terms.product),
        gpu_model: terms.gpu_model.clone(),
        gpu: gpu_of(&known.gpus, terms.gpu_model.as_deref()),
        price_per_hour: terms.price_per_hour,
        image_id: terms.image.as_ref().map(|image| image.image_id),
        image: terms.image.as_ref().map(|image| image.name.clone()),
        username: terms.username.to_string(),
        node_id: node,
        node_name: node.and_then(|node| known.names.get(&node).cloned()),
        slots: u32::try_from(allocation.slots.len()).unwrap_or(u32::MAX),
        private_ip,
        ssh_port: address.as_ref().map(|(_, port)| *port),
        ssh_host: address.map(|(host, _)| host),
        ssh_public_keys: terms.ssh_public_keys.iter().map(ToString::to_string).collect(),
        pending_power_action: allocation.pending_power_action.map(Into::into),
        guest: allocation.guest.map(Into::into),
        release_requested: allocation.release_request.is_some(),
        attempts: allocation.attempts,
        code: last_error.map(|last_error| last_error.code.clone()),
        reason: last_error.map(|last_error| last_error.reason.clone()),
        detail: last_error.filter(|_| audience.is_platform()).map(|last_error| last_error.detail.clone()),
        task: allocation.task_id,
        phase: phase.map(|phase| {
            let phase = audience.progress(phase);
            dto::AllocationPhase { phase: phase.phase, message: phase.message }
        }),
        requested_by: allocation.requested_by.clone(),
        created_at: allocation.created_at,
        place_until: Some(allocation.place_until),
        active_at: allocation.active_at,
        expires_at: allocation.expires_at,
        ended_at: allocation.ended_at,
        maintenance: maintenance
            .into_iter()
            .map(|window| dto::AllocationMaintenance {
                summary: window.summary,
                starts_at: window.starts_at,
                ends_at: window.ends_at,
            })
            .collect(),
        etag: etag_of(allocation.version),
    })
}
