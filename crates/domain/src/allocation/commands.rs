//! Commands of tenants and operators. They only record what is wanted; the run does the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use gpuaas_contract::event::{
    AllocationCommand, AllocationDescribed, AllocationExtended, AllocationPowerRequested, AllocationReleaseRequested,
    AllocationRequested, AllocationRetried, Event,
};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::{SshPublicKey, UserName, VmName};
use gpuaas_contract::task::allocation_provision_user::RESERVED;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::Timestamp;

use super::{Allocation, AllocationState, AllocationStep, ImageTerms, MAX_LEASE, MAX_RELEASES, MAX_WAIT, ReleaseRequest, Terms};
use crate::catalog::{Image, Product, Sku};
use crate::decision::{Context, Decision, Wakeup};
use crate::names::checked_tags;
use crate::node::MAX_REASON;
use crate::quota::{Quota, Used};
use crate::refusal::Refusal;
use crate::tenancy::Project;

/// Maximum number of SSH keys per allocation.
pub const MAX_SSH_KEYS: usize = 32;

/// A tenant's request, with all references resolved.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the allocation; also the guest's host name.
    pub name: VmName,
    /// Labels that the tenant chooses.
    pub tags: BTreeMap<String, String>,
    /// The product to lease.
    pub sku: Sku,
    /// The image for the guest's disk; `None` for bare metal.
    pub image: Option<Image>,
    /// User name to create; `None` for the default.
    pub username: Option<UserName>,
    /// Keys of that user.
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// On bare metal, whether that user may become root.
    pub sudo: bool,
    /// How long the guest has to shut down.
    pub graceful_timeout_seconds: u32,
    /// Spread allocations over nodes instead of packing them.
    pub spread: bool,
    /// Length of the lease; `None` for a lease that lasts until it is released.
    pub lease: Option<Duration>,
    /// How long the allocation may wait for a place.
    pub wait: Duration,
}

/// Default user name on a whole host. Unique per allocation, so that two tenants never have the same user name on one host.
fn default_username(id: AllocationId) -> Result<UserName, Refusal> {
    let hex = id.to_string();
    // The end of an id is random; its beginning is a timestamp.
    let tail = &hex[hex.len() - 12..];
    format!("tenant-{tail}").parse().map_err(|_| Refusal::invalid("username_invalid", "give a user name"))
}

impl Request {
    fn terms(&self, project: &Project, id: AllocationId) -> Result<Terms, Refusal> {
        let Self { sku, image, .. } = self;
        if sku.retired_at.is_some() {
            let message = format!("{} is no longer on offer", sku.name);
            return Err(Refusal::conflict("sku_retired", message));
        }
        if self.ssh_public_keys.is_empty() || self.ssh_public_keys.len() > MAX_SSH_KEYS {
            let message = format!("give 1 to {MAX_SSH_KEYS} SSH keys: without one nobody could sign in");
            return Err(Refusal::invalid("ssh_keys_invalid", message));
        }
        let image = match (sku.product, image) {
            (Product::Slice { .. }, None) => {
                return Err(Refusal::invalid("image_required", "a slice needs an image"));
            }
            (Product::BareMetal, Some(_)) => {
                let message = "a whole host comes with its own system; leave the image out";
                return Err(Refusal::invalid("image_not_allowed", message));
            }
            (Product::BareMetal, None) => None,
            (Product::Slice { .. }, Some(image)) if !image.is_for(project.organization_id) => {
                let message = format!("there is no image {}", image.id);
                return Err(Refusal::not_found("image_unknown", message));
            }
            (Product::Slice { .. }, Some(image)) => Some(image),
        };
        let username = match (&self.username, image) {
            (Some(name), _) if RESERVED.contains(&name.as_str()) => {
                let message = format!("username: `{name}` is a name of the system; choose another");
                return Err(Refusal::invalid("username_reserved", message));
            }
            (Some(name), _) => name.clone(),
            (None, Some(image)) => image.default_username.clone(),
            (None, None) => default_username(id)?,
        };
        Ok(Terms {
            sku_id: sku.id,
            sku_name: sku.name.clone(),
            product: sku.product,
            gpu_model: sku.gpu_model.clone(),
            min_vcpus: sku.min_vcpus,
            min_memory_mib: sku.min_memory_mib,
            price_per_hour: sku.price_per_hour,
            image: image.map(|image| ImageTerms {
                image_id: image.id,
                name: image.name.clone(),
                source: image.source(),
                driver_strategy: image.driver_strategy,
            }),
            username,
            ssh_public_keys: self.ssh_public_keys.clone(),
            sudo: self.sudo,
            graceful_timeout_seconds: self.graceful_timeout_seconds,
            spread: self.spread,
        })
    }
}

/// Creates an allocation and counts it against the quotas of its project and its organization.
pub fn request(
    id: AllocationId,
    project: &Project,
    quotas: &[Quota],
    request: &Request,
    context: &Context,
) -> Result<(Allocation, Decision), Refusal> {
    project.check_live()?;
    checked_tags(&request.tags)?;
    if request.wait > MAX_WAIT {
        return Err(Refusal::invalid(
            "wait_invalid",
            format!("it may wait at most {} days for a place", MAX_WAIT.as_secs() / 86_400),
        ));
    }
    let expires_at = request.lease.map(|lease| lease_end(context.now, lease)).transpose()?;
    let terms = request.terms(project, id)?;
    let used = Used::of(terms.product);
    let mut decision = Decision::default();
    for quota in quotas {
        decision = decision.update(&quota.take(used)?);
    }
    let allocation = Allocation {
        id,
        version: 0,
        organization_id: project.organization_id,
        project_id: project.id,
        name: request.name.clone(),
        tags: request.tags.clone(),
        terms,
        state: AllocationState::Requested,
        step: AllocationStep::Place,
        node_id: None,
        slots: Vec::new(),
        task_id: None,
        pending_power_action: None,
        guest: None,
        release_request: None,
        attempts: 0,
        releases: 0,
        avoid: Vec::new(),
        last_error: None,
        requested_by: context.actor.to_string(),
        correlation_id: context.correlation_id.clone(),
        created_at: context.now,
        place_until: context.now.plus(request.wait),
        active_at: None,
        expires_at,
        ended_at: None,
        due_at: Some(context.now),
    };
    let event = Event::AllocationRequested(AllocationRequested {
        allocation: allocation.event_ref(),
        sku: allocation.terms.sku_name.clone(),
        price_per_hour: allocation.terms.price_per_hour,
        to: allocation.state.into(),
    });
    let decision = decision.insert(&allocation).wakeup(Wakeup::Allocation(id)).record(context, id, event);
    Ok((allocation, decision))
}

fn lease_end(from: Timestamp, lease: Duration) -> Result<Timestamp, Refusal> {
    if lease < Duration::from_secs(60) || lease > MAX_LEASE {
        return Err(Refusal::invalid("lease_invalid", "a lease is 1 minute to 366 days long"));
    }
    Ok(from.plus(lease))
}

/// Requests the release. Idempotent; a release cannot be undone.
pub fn release(allocation: &Allocation, reason: &str, context: &Context) -> Result<(Allocation, Decision), Refusal> {
    if reason.len() > MAX_REASON {
        return Err(Refusal::invalid("reason_too_long", format!("the reason may have at most {MAX_REASON} bytes")));
    }
    if allocation.state.is_terminal() || allocation.release_request.is_some() {
        return Ok((allocation.clone(), Decision::default()));
    }
    let request = ReleaseRequest { by: context.actor.to_string(), at: context.now, reason: reason.to_owned() };
    // An allocation that waits for an operator keeps waiting: there is nothing more to do for its tenant.
    let waits = allocation.state == AllocationState::ReleaseBlocked;
    let due_at = if waits { allocation.due_at } else { Some(context.now) };
    let next = Allocation {
        release_request: Some(request),
        due_at,
        correlation_id: context.correlation_id.clone(),
        ..allocation.clone()
    };
    let event = |command| Event::AllocationReleaseRequested(AllocationReleaseRequested { command, reason: reason.to_owned() });
    Ok(record_command(next, event, context))
}

/// Requests that the guest is stopped, started or rebooted.
pub fn power(allocation: &Allocation, action: PowerAction, context: &Context) -> Result<(Allocation, Decision), Refusal> {
    if allocation.terms.product == Product::BareMetal {
        let message = "a whole host is not stopped or started from here; use its own `reboot`";
        return Err(Refusal::invalid("power_not_supported", message));
    }
    if !allocation.state.is_held() || allocation.release_request.is_some() {
        return Err(not_active(allocation));
    }
    if allocation.pending_power_action == Some(action) {
        return Ok((allocation.clone(), Decision::default()));
    }
    if let Some(earlier) = allocation.pending_power_action {
        let message = format!("it is being told to {}; wait for that first", earlier.as_str());
        return Err(Refusal::conflict("allocation_busy", message));
    }
    match (action, allocation.state == AllocationState::Stopped) {
        (PowerAction::Stop, true) | (PowerAction::Start, false) => return Ok((allocation.clone(), Decision::default())),
        (PowerAction::Reboot, true) => {
            return Err(Refusal::conflict("allocation_stopped", "it is stopped; start it instead"));
        }
        (PowerAction::Stop, false) | (PowerAction::Start, true) | (PowerAction::Reboot, false) => {}
    }
    let next = Allocation {
        pending_power_action: Some(action),
        due_at: Some(context.now),
        correlation_id: context.correlation_id.clone(),
        ..allocation.clone()
    };
    let event = |command| Event::AllocationPowerRequested(AllocationPowerRequested { command, action: action.into() });
    Ok(record_command(next, event, context))
}

/// Moves the end of the lease: by this much from where it is, or to no end at all.
pub fn extend(allocation: &Allocation, by: Option<Duration>, context: &Context) -> Result<(Allocation, Decision), Refusal> {
    if !allocation.is_wanted() {
        return Err(not_active(allocation));
    }
    let expires_at = match by {
        None => None,
        Some(by) => {
            // A caller who asks for more time must not get an end where there was none.
            let Some(end) = allocation.expires_at else {
                let message = "its lease has no end, so there is nothing to extend; release it when you are done";
                return Err(Refusal::conflict("lease_without_end", message));
            };
            let from = end.max(context.now);
            let end = lease_end(from, by)?;
            if end > context.now.plus(MAX_LEASE) {
                return Err(Refusal::invalid("lease_invalid", "a lease ends at most 366 days from now"));
            }
            Some(end)
        }
    };
    if expires_at == allocation.expires_at {
        return Ok((allocation.clone(), Decision::default()));
    }
    // A pending release or power action is already due and stays so.
    let rests = allocation.step == AllocationStep::Serve && allocation.pending_power_action.is_none();
    let due_at = if rests { expires_at } else { allocation.due_at };
    let next = Allocation { expires_at, due_at, ..allocation.clone() };
    let event = |command| Event::AllocationExtended(AllocationExtended { command, expires_at });
    Ok(record_command(next, event, context))
}

/// Tries again what failed: a failed allocation from the beginning, a blocked release from its release step.
pub fn retry(
    allocation: &Allocation,
    quotas: &[Quota],
    wait: Duration,
    context: &Context,
) -> Result<(Allocation, Decision), Refusal> {
    match allocation.state {
        AllocationState::Failed => {}
        AllocationState::ReleaseBlocked => {
            if allocation.releases == 0 {
                return Ok((allocation.clone(), Decision::default()));
            }
            let next = Allocation { releases: 0, due_at: Some(context.now), ..allocation.clone() };
            let event = |command| Event::AllocationRetried(AllocationRetried { command, releases: Some(MAX_RELEASES) });
            return Ok(record_command(next, event, context));
        }
        AllocationState::Requested
        | AllocationState::Placing
        | AllocationState::Provisioning
        | AllocationState::Active
        | AllocationState::Stopped
        | AllocationState::Releasing
        | AllocationState::Released => {
            let message = format!("it is {}; only what failed can be tried again", allocation.state.as_str());
            return Err(Refusal::conflict("nothing_to_retry", message));
        }
    }
    if wait > MAX_WAIT {
        return Err(Refusal::invalid(
            "wait_invalid",
            format!("it may wait at most {} days for a place", MAX_WAIT.as_secs() / 86_400),
        ));
    }
    if allocation.expires_at.is_some_and(|end| end <= context.now) {
        return Err(Refusal::conflict("lease_over", "its lease is over; ask for a new one"));
    }
    let used = Used::of(allocation.terms.product);
    let mut decision = Decision::default();
    for quota in quotas {
        decision = decision.update(&quota.take(used)?);
    }
    let next = Allocation {
        state: AllocationState::Requested,
        step: AllocationStep::Place,
        correlation_id: context.correlation_id.clone(),
        node_id: None,
        slots: Vec::new(),
        task_id: None,
        attempts: 0,
        releases: 0,
        avoid: Vec::new(),
        guest: None,
        active_at: None,
        ended_at: None,
        place_until: context.now.plus(wait),
        due_at: Some(context.now),
        ..allocation.clone()
    };
    let event = |command| Event::AllocationRetried(AllocationRetried { command, releases: None });
    let (next, retried) = record_command(next, event, context);
    Ok((next, decision.and(retried)))
}

/// Changes the name or the tags. The guest keeps the host name it has.
pub fn describe(
    allocation: &Allocation,
    name: Option<VmName>,
    tags: Option<BTreeMap<String, String>>,
    context: &Context,
) -> Result<(Allocation, Decision), Refusal> {
    let next = Allocation {
        name: name.unwrap_or_else(|| allocation.name.clone()),
        tags: tags.unwrap_or_else(|| allocation.tags.clone()),
        ..allocation.clone()
    };
    checked_tags(&next.tags)?;
    if next == *allocation {
        return Ok((next, Decision::default()));
    }
    let tags = next.tags.clone();
    Ok(record_command(next, |command| Event::AllocationDescribed(AllocationDescribed { command, tags }), context))
}

fn not_active(allocation: &Allocation) -> Refusal {
    let state = match &allocation.release_request {
        Some(_) if !allocation.state.is_terminal() => "being given back".to_owned(),
        Some(_) | None => allocation.state.as_str().to_owned(),
    };
    Refusal::conflict("allocation_not_active", format!("it is {state}; this needs one that is active"))
}

fn record_command(next: Allocation, event: impl FnOnce(AllocationCommand) -> Event, context: &Context) -> (Allocation, Decision) {
    let event = event(AllocationCommand { allocation: next.event_ref(), to: next.state.into() });
    let decision = Decision::default().update(&next).wakeup(Wakeup::Allocation(next.id));
    let decision = decision.record(context, next.id, event);
    (next, decision)
}
