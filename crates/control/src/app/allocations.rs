//! Allocations: what tenants ask for is recorded here; their runs (`workflow`) do the rest.

use std::time::Duration;

use gpuaas_api::dto::{AllocationChange, AllocationCreate, Page, SliceConsole};
use gpuaas_contract::guest::DEFAULT_SHUTDOWN_SECONDS;
use gpuaas_contract::id::{AllocationId, ImageId, NodeId, ProjectId, SkuId, SshKeyId};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_domain::allocation::commands::{self, Request};
use gpuaas_domain::allocation::{Allocation, AllocationState};
use gpuaas_domain::catalog::{Image, Product, Sku, SshKey};
use gpuaas_domain::decision::Context;
use gpuaas_domain::placement::{NoFit, Placement};
use gpuaas_domain::quota::Quota;
use gpuaas_domain::tenancy::Project;
use gpuaas_domain::{Decision, Refusal};
use gpuaas_store::{OutboxRow, ResourceFilter};

use super::{Caller, IfMatch, PageRequest, list_resources, nodes, organizations, projects, slices};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::workflow::placement_request;
use crate::{Control, resources};

/// What would come of a request now.
pub(crate) struct Plan {
    /// The product that was asked for.
    pub(crate) sku: Sku,
    /// Whether it can be had.
    pub(crate) outcome: Outcome,
}

/// Whether a request can be fulfilled now.
pub(crate) enum Outcome {
    /// There is a place for it.
    Fits(Placement),
    /// It is more than a quota has left.
    OverQuota(Refusal),
    /// No node has a place for it.
    NoCapacity(NoFit),
}

/// A request whose names were looked up, with the quotas it counts against.
struct Resolved {
    request: Request,
    quotas: Vec<Quota>,
}

/// Says what would come of a request, and does nothing.
pub(crate) async fn plan(
    control: &Control,
    caller: &Caller,
    project: &Project,
    wanted: AllocationCreate,
) -> Result<Plan, ControlError> {
    let resolved = resolve_request(control, project, wanted).await?;
    let outcome = outcome_of(control, caller, project, &resolved).await?;
    check_name_free(control, project.id, resolved.request.name.as_str(), None).await?;
    Ok(Plan { sku: resolved.request.sku, outcome })
}

/// Records that a project wants an allocation.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    project: &Project,
    wanted: AllocationCreate,
) -> Result<Allocation, ControlError> {
    let resolved = resolve_request(control, project, wanted).await?;
    // Who does not want to wait is told now, and nothing is left behind.
    if let Outcome::NoCapacity(no_fit) = outcome_of(control, caller, project, &resolved).await?
        && resolved.request.wait.is_zero()
    {
        return Err(Refusal::conflict("no_capacity", no_fit.for_tenants()).into());
    }
    let Resolved { request, quotas } = resolved;
    let (id, context) = (AllocationId::generate(), caller.context());
    let made = caller
        .transact_counted(
            control,
            quotas,
            |made: &Allocation| Some(made.organization_id),
            async |known| {
                let quotas = match known {
                    Some(quotas) => quotas,
                    None => {
                        // Somebody was faster: perhaps with the same name.
                        check_name_free(control, project.id, request.name.as_str(), None).await?;
                        quotas_of(control, project).await?
                    }
                };
                Ok(commands::request(id, project, &quotas, &request, &context)?)
            },
        )
        .await?;
    tracing::info!(
        allocation = %id, project = %project.id, sku = %made.terms.sku_name, actor = %caller.actor, "allocation requested"
    );
    Ok(made)
}

/// Refuses a name that another allocation of the project has, unless that one is over.
async fn check_name_free(
    control: &Control,
    project: ProjectId,
    name: &str,
    own: Option<AllocationId>,
) -> Result<(), ControlError> {
    let other = resources::by_name::<Allocation>(control, &project.to_string(), name).await?;
    match other.filter(|other| Some(other.id) != own) {
        None => Ok(()),
        Some(other) => {
            let message =
                format!("the project has an allocation `{name}` already ({}, {}); choose another name", other.id, other.state);
            Err(Refusal::conflict("name_taken", message).into())
        }
    }
}

async fn quotas_of(control: &Control, project: &Project) -> Result<Vec<Quota>, ControlError> {
    let quotas = resources::quotas(control, project.id, project.organization_id).await?;
    let missing = || ControlError::Internal(format!("a quota of {} is not in the resources", project.id));
    (quotas.len() == 2).then_some(quotas).ok_or_else(missing)
}

/// What was asked for by name, as it is in the catalog now.
async fn resolve_request(control: &Control, project: &Project, wanted: AllocationCreate) -> Result<Resolved, ControlError> {
    let sku = match wanted.sku.parse::<SkuId>() {
        Ok(id) => resources::get::<Sku>(control, id).await?,
        Err(_) => resources::by_name::<Sku>(control, "", &wanted.sku).await?,
    };
    let sku =
        sku.ok_or_else(|| Refusal::invalid("sku_unknown", format!("there is no product `{}`", wanted.sku)).in_body("/sku"))?;
    let image = match &wanted.image {
        Some(name) => Some(image_named(control, project, name).await?),
        None => None,
    };
    let mut ssh_public_keys = wanted.ssh_public_keys;
    for name in &wanted.ssh_keys {
        let key = ssh_key_named(control, project, name).await?.public_key;
        if !ssh_public_keys.contains(&key) {
            ssh_public_keys.push(key);
        }
    }
    let request = Request {
        name: wanted.name,
        tags: wanted.tags,
        sku,
        image,
        username: wanted.username,
        ssh_public_keys,
        sudo: wanted.sudo,
        graceful_timeout_seconds: wanted.graceful_timeout_seconds.unwrap_or(DEFAULT_SHUTDOWN_SECONDS),
        spread: wanted.spread,
        lease: wanted.lease_seconds.map(Duration::from_secs),
        wait: Duration::from_secs(wanted.wait_seconds.unwrap_or(0)),
    };
    Ok(Resolved { request, quotas: quotas_of(control, project).await? })
}

async fn ssh_key_named(control: &Control, project: &Project, name: &str) -> Result<SshKey, ControlError> {
    let key = match name.parse::<SshKeyId>() {
        Ok(id) => resources::get::<SshKey>(control, id).await?,
        Err(_) => resources::by_name::<SshKey>(control, &project.id.to_string(), name).await?,
    };
    let own = key.filter(|key| key.project_id == project.id && key.deleted_at.is_none());
    let unknown = || {
        let message = format!("the project has no SSH key `{name}`");
        Refusal::invalid("ssh_key_unknown", message).in_body("/ssh_keys")
    };
    Ok(own.ok_or_else(unknown)?)
}

async fn image_named(control: &Control, project: &Project, name: &str) -> Result<Image, ControlError> {
    let found = match name.parse::<ImageId>() {
        Ok(id) => resources::get::<Image>(control, id).await?,
        // The organization's own come before the platform's.
        Err(_) => match resources::by_name::<Image>(control, &project.organization_id.to_string(), name).await? {
            Some(image) => Some(image),
            None => resources::by_name::<Image>(control, "", name).await?,
        },
    };
    let unknown = || Refusal::invalid("image_unknown", format!("there is no image `{name}`")).in_body("/image");
    Ok(found.filter(|image| image.is_for(project.organization_id)).ok_or_else(unknown)?)
}

async fn outcome_of(
    control: &Control,
    caller: &Caller,
    project: &Project,
    Resolved { request, quotas }: &Resolved,
) -> Result<Outcome, ControlError> {
    let (allocation, _) = match commands::request(AllocationId::generate(), project, quotas, request, &caller.context()) {
        Ok(made) => made,
        Err(refusal) if refusal.code == "quota_exceeded" => return Ok(Outcome::OverQuota(refusal)),
        Err(refusal) => return Err(refusal.into()),
    };
    let request = placement_request(&allocation.terms, &[], allocation.expires_at);
    Ok(match control.fleet.place(control, &request).await? {
        Ok(place) => Outcome::Fits(place),
        Err(no_fit) => Outcome::NoCapacity(no_fit),
    })
}

/// Which allocations are listed.
#[derive(Debug, Default)]
pub(crate) struct AllocationFilter {
    /// Those of this project.
    pub(crate) project: Option<ProjectId>,
    /// Those of the organization with this id or name.
    pub(crate) organization: Option<String>,
    /// Those on the node with this id or name.
    pub(crate) node: Option<String>,
    /// Those in one of these states; in any, if none is named.
    pub(crate) states: Vec<AllocationState>,
    /// Those with all of these tags.
    pub(crate) tags: Vec<(String, String)>,
    /// Those with this in their name.
    pub(crate) name_contains: Option<String>,
}

/// Lists allocations.
pub(crate) async fn list(
    control: &Control,
    filter: AllocationFilter,
    page: &PageRequest<AllocationId>,
    newest_first: bool,
) -> Result<Page<Allocation>, ControlError> {
    let owner = match &filter.node {
        Some(name) => Some(nodes::find(control, name).await?.id.to_string()),
        None => None,
    };
    let parents = match &filter.organization {
        Some(name) => {
            let organization = organizations::find(control, name).await?;
            let of_organization = ResourceFilter { parent: Some(organization.id.to_string()), ..ResourceFilter::default() };
            let projects: Vec<Project> = resources::all(control, &of_organization).await?;
            Some(projects.into_iter().map(|project| project.id.to_string()).collect())
        }
        None => None,
    };
    let filter = ResourceFilter {
        parent: filter.project.map(|project| project.to_string()),
        parents,
        owner,
        states: filter.states.into_iter().map(AllocationState::as_str).collect(),
        tags: filter.tags,
        name_contains: filter.name_contains,
    };
    list_resources(control, &filter, page, newest_first).await
}

/// The allocation with this id.
pub(crate) async fn get(control: &Control, id: AllocationId) -> Result<Allocation, ControlError> {
    let unknown = || Refusal::not_found("allocation_unknown", format!("there is no allocation {id}"));
    Ok(resources::get::<Allocation>(control, id).await?.ok_or_else(unknown)?)
}

/// The allocations that are on a node, or of which something is left there.
pub(crate) async fn on_node(control: &Control, node: NodeId) -> Result<Vec<Allocation>, ControlError> {
    let states = AllocationState::ALL.into_iter().filter(|state| !state.is_terminal()).map(AllocationState::as_str).collect();
    let filter = ResourceFilter { owner: Some(node.to_string()), states, ..ResourceFilter::default() };
    resources::all(control, &filter).await
}

/// What happened to an allocation, from the outbox: the oldest first.
pub(crate) async fn history(
    control: &Control,
    id: AllocationId,
    page: &PageRequest<i64>,
) -> Result<Page<OutboxRow>, ControlError> {
    let found = control.store.outbox_of_subject(&id.to_string(), page.after.unwrap_or(0), page.rows()).await?;
    Ok(page.cut(found, |row| row.position.to_string()))
}

/// Decides on an allocation until it sticks, and returns what became of it.
async fn decide(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    decide: impl Fn(&Allocation, &[Quota], &Context) -> Result<(Allocation, Decision), ControlError>,
) -> Result<Allocation, ControlError> {
    let (context, id) = (caller.context(), allocation.id);
    let next = caller
        .transact_counted(
            control,
            allocation,
            |next: &Allocation| Some(next.organization_id),
            async |known| {
                let allocation = match known {
                    Some(allocation) => allocation,
                    None => get(control, id).await?,
                };
                let quotas = resources::quotas(control, allocation.project_id, allocation.organization_id).await?;
                decide(&allocation, &quotas, &context)
            },
        )
        .await?;
    // Its row has been written over since, or nothing was to be written.
    Ok(resources::get::<Allocation>(control, next.id).await?.unwrap_or(next))
}

/// Gives an allocation another name, or other tags.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    change: AllocationChange,
    if_match: &IfMatch,
) -> Result<Allocation, ControlError> {
    if let Some(name) = &change.name {
        check_name_free(control, allocation.project_id, name.as_str(), Some(allocation.id)).await?;
    }
    decide(control, caller, allocation, |allocation, _, context| {
        if_match.check(allocation.version)?;
        Ok(commands::describe(allocation, change.name.clone(), change.tags.clone(), context)?)
    })
    .await
}

/// Starts, stops or reboots an allocation.
pub(crate) async fn power(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    action: PowerAction,
) -> Result<Allocation, ControlError> {
    decide(control, caller, allocation, |allocation, _, context| Ok(commands::power(allocation, action, context)?)).await
}

/// Moves the end of a lease by so much, or makes it endless.
pub(crate) async fn extend(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    by: Option<Duration>,
) -> Result<Allocation, ControlError> {
    decide(control, caller, allocation, |allocation, _, context| Ok(commands::extend(allocation, by, context)?)).await
}

/// Gives an allocation back.
pub(crate) async fn release(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    reason: &str,
) -> Result<Allocation, ControlError> {
    decide(control, caller, allocation, |allocation, _, context| Ok(commands::release(allocation, reason, context)?)).await
}

/// Tries again what failed.
pub(crate) async fn retry(
    control: &Control,
    caller: &Caller,
    allocation: Allocation,
    wait: Duration,
) -> Result<Allocation, ControlError> {
    let is_operator = caller.audience().is_platform();
    // What is over comes back to life only in a project that lives.
    if allocation.state.is_terminal() {
        check_name_free(control, allocation.project_id, allocation.name.as_str(), Some(allocation.id)).await?;
        projects::get(control, allocation.project_id).await?;
    }
    decide(control, caller, allocation, |allocation, quotas, context| {
        if allocation.state == AllocationState::ReleaseBlocked && !is_operator {
            let message = "only an operator can finish its release; there is nothing for you to do";
            return Err(Refusal::forbidden("operators_only", message).into());
        }
        Ok(commands::retry(allocation, quotas, wait, context)?)
    })
    .await
}

/// Reads the console of an allocation's guest, with a task.
pub(crate) async fn console(
    control: &std::sync::Arc<Control>,
    caller: &Caller,
    allocation: &Allocation,
    wanted: &SliceConsole,
) -> Result<gpuaas_domain::task::TaskRecord, ControlError> {
    if allocation.terms.product == Product::BareMetal {
        let message = "a whole host has no console here; sign in to it with SSH";
        return Err(Refusal::invalid("console_not_supported", message).into());
    }
    let made = slices::console(control, caller, allocation.id, wanted).await;
    made.map_err(|error| without_node(caller.audience(), error))
}

/// A refusal because of the state of the node, without its name for tenants.
fn without_node(audience: Audience, error: ControlError) -> ControlError {
    if let ControlError::Refused(refusal) = &error
        && !audience.is_platform()
        && refusal.code.starts_with("node_")
    {
        let message = "the machine of this allocation cannot do this now; try again later, or ask an operator".to_owned();
        return Refusal { message, ..refusal.clone() }.into();
    }
    error
}
