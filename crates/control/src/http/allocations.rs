//! Allocations: what tenants ask for is written down here; their runs do the rest.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationPlan, AllocationRetry,
    AllocationSearchQuery, Page, Reason, SliceConsole, StateFilter,
};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{AllocationId, ProjectId};
use gpuaas_contract::task::slice_vm_power::PowerAction as Power;
use gpuaas_domain::allocation::commands::{self, Request};
use gpuaas_domain::allocation::{Allocation, AllocationState, request_lookup};
use gpuaas_domain::catalog::{Image, Product, Sku, SshKey};
use gpuaas_domain::quota::Quota;
use gpuaas_domain::tenancy::Project;
use gpuaas_domain::{Decision, Refusal};
use gpuaas_store::ResourceFilter;

use super::allocation_view::{etag, to_dto, to_dtos};
use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected};
use super::{CreatedOnce, Location, if_match, node_name, page_limit, parse_id, projects, task_create};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::transact_counted;
use crate::workflow::placement_request;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

/// How long a guest may take to shut down unless told otherwise.
const GRACE: u32 = 120;

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(wanted): JsonBody<AllocationCreate>,
) -> Result<Response, Rejected> {
    let project = caller.project()?;
    let idempotency_key = task_create::idempotency_key(&headers)?;
    let actor = caller.actor.to_string();
    let digest = digest_of(project.id, &wanted)?;
    if let Some(key) = idempotency_key.as_deref().filter(|_| !wanted.dry_run)
        && let Some(earlier) = resources::by_lookup::<Allocation>(&control, &request_lookup(&actor, key)).await?
    {
        return answer_again(&control, &caller, earlier, &digest).await;
    }
    let dry_run = wanted.dry_run;
    let request = resolve_request(&control, &project, wanted, idempotency_key, digest.clone()).await?;
    let quotas = quotas_of(&control, &project).await?;
    let plan = planned(&control, &caller, &project, &quotas, &request).await?;
    if dry_run {
        check_name(&control, &project.id.to_string(), request.name.as_str(), None).await?;
        return Ok(Json(plan).into_response());
    }
    // Who does not want to wait is told now, and nothing is left behind.
    if !plan.fits && plan.code.as_deref() == Some("no_capacity") && request.wait.is_zero() {
        return Err(Refusal::conflict("no_capacity", plan.reason.unwrap_or_default()).into());
    }
    let (id, context) = (AllocationId::generate(), caller.context());
    let made = transact_counted(
        &control,
        quotas,
        |made: &Allocation| Some(made.organization_id),
        async |known| {
            let quotas = match known {
                Some(quotas) => quotas,
                None => {
                    // Somebody was faster: perhaps another request with the same key.
                    if let Some(key) = &request.idempotency_key
                        && let Some(earlier) = resources::by_lookup::<Allocation>(&control, &request_lookup(&actor, key)).await?
                    {
                        return Ok((earlier, Decision::default()));
                    }
                    // Or one with the same name.
                    check_name(&control, &project.id.to_string(), request.name.as_str(), None).await?;
                    quotas_of(&control, &project).await?
                }
            };
            Ok(commands::request(id, &project, &quotas, &request, &context)?)
        },
    )
    .await?;
    if made.id != id {
        return answer_again(&control, &caller, made, &digest).await;
    }
    tracing::info!(allocation = %id, project = %project.id, sku = %made.terms.sku_name, actor, "allocation requested");
    let location = Location::of(routes::ALLOCATION, [&id]);
    Ok((StatusCode::CREATED, location, with_etag(to_dto(&control, Audience::of(&caller.principal), made).await?)).into_response())
}

/// Refuses a name that another allocation of the project has, unless that one is over.
async fn check_name(control: &Control, project: &str, name: &str, own: Option<AllocationId>) -> Result<(), ControlError> {
    let other = resources::by_name::<Allocation>(control, project, name).await?;
    match other.filter(|other| Some(other.id) != own) {
        None => Ok(()),
        Some(other) => {
            let message =
                format!("the project has an allocation `{name}` already ({}, {}); choose another name", other.id, other.state);
            Err(Refusal::conflict("name_taken", message).into())
        }
    }
}

/// What was made with the same key, if the same was asked for.
async fn answer_again(control: &Control, caller: &Caller, earlier: Allocation, digest: &Digest) -> Result<Response, Rejected> {
    if earlier.request_digest != *digest {
        let message = format!("this idempotency key was used for {} with other content; choose a new key", earlier.id);
        return Err(Refusal::conflict("idempotency_key_reused", message).into());
    }
    let location = Location::of(routes::ALLOCATION, [&earlier.id]);
    let document = with_etag(to_dto(control, Audience::of(&caller.principal), earlier).await?);
    Ok(CreatedOnce { is_new: false, location, document }.into_response())
}

fn digest_of(project: ProjectId, wanted: &AllocationCreate) -> Result<Digest, ControlError> {
    let text = serde_json::to_string(wanted).map_err(|error| ControlError::Internal(error.to_string()))?;
    Ok(Digest::of(format!("{project}\n{text}").as_bytes()))
}

async fn quotas_of(control: &Control, project: &Project) -> Result<Vec<Quota>, ControlError> {
    let quotas = resources::quotas(control, project.id, project.organization_id).await?;
    let missing = || ControlError::Internal(format!("a quota of {} is not in the resources", project.id));
    (quotas.len() == 2).then_some(quotas).ok_or_else(missing)
}

/// What was asked for by name, as it is in the catalog now.
async fn resolve_request(
    control: &Control,
    project: &Project,
    wanted: AllocationCreate,
    idempotency_key: Option<String>,
    digest: Digest,
) -> Result<Request, ControlError> {
    let sku = match wanted.sku.parse::<gpuaas_contract::id::SkuId>() {
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
        let key = match name.parse::<gpuaas_contract::id::SshKeyId>() {
            Ok(id) => resources::get::<SshKey>(control, id).await?,
            Err(_) => resources::by_name::<SshKey>(control, &project.id.to_string(), name).await?,
        };
        let mine = key.filter(|key| key.project_id == project.id && key.deleted_at.is_none());
        let unknown = || {
            let message = format!("the project has no SSH key `{name}`");
            Refusal::invalid("ssh_key_unknown", message).in_body("/ssh_keys")
        };
        let key = mine.ok_or_else(unknown)?.public_key;
        if !ssh_public_keys.contains(&key) {
            ssh_public_keys.push(key);
        }
    }
    Ok(Request {
        name: wanted.name,
        tags: wanted.tags,
        sku,
        image,
        username: wanted.username,
        ssh_public_keys,
        sudo: wanted.sudo,
        graceful_timeout_seconds: wanted.graceful_timeout_seconds.unwrap_or(GRACE),
        spread: wanted.spread,
        lease: wanted.lease_seconds.map(Duration::from_secs),
        wait: Duration::from_secs(wanted.wait_seconds.unwrap_or(0)),
        idempotency_key,
        digest,
    })
}

async fn image_named(control: &Control, project: &Project, name: &str) -> Result<Image, ControlError> {
    let found = match name.parse::<gpuaas_contract::id::ImageId>() {
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

/// What would come of a request now.
async fn planned(
    control: &Control,
    caller: &Caller,
    project: &Project,
    quotas: &[Quota],
    request: &Request,
) -> Result<AllocationPlan, ControlError> {
    let mut plan = AllocationPlan {
        sku: request.sku.name.clone(),
        price_per_hour: request.sku.price_per_hour,
        fits: true,
        code: None,
        reason: None,
        same_numa: None,
        note: None,
        node_name: None,
        slots: None,
        reasons_by_node: None,
    };
    let (allocation, _) = match commands::request(AllocationId::generate(), project, quotas, request, &caller.context()) {
        Ok(made) => made,
        Err(refusal) if refusal.code == "quota_exceeded" => {
            plan.fits = false;
            plan.code = Some(refusal.code.to_owned());
            plan.reason = Some(refusal.message);
            return Ok(plan);
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let audience = Audience::of(&caller.principal);
    let request = placement_request(&allocation.terms, &[], allocation.expires_at);
    match control.fleet.place(control, &request).await? {
        Ok(place) => {
            plan.same_numa = Some(place.same_numa);
            plan.note = place.note;
            plan.node_name = audience.is_platform().then_some(place.node_name);
            plan.slots = audience.is_platform().then_some(place.slots);
        }
        Err(no_fit) => {
            plan.fits = false;
            plan.code = Some("no_capacity".to_owned());
            plan.reason = Some(no_fit.for_tenants());
            let of_node = |node: &gpuaas_domain::placement::NodeReason| dto::NodeReasons {
                node_id: node.node_id,
                node_name: node.name.clone(),
                reasons: node.reasons.iter().map(ToString::to_string).collect(),
            };
            plan.reasons_by_node = audience.is_platform().then(|| no_fit.nodes.iter().map(of_node).collect());
        }
    }
    Ok(plan)
}

pub(super) fn with_etag(allocation: dto::Allocation) -> impl axum::response::IntoResponse {
    ([(header::ETAG, allocation.etag.clone())], Json(allocation))
}

pub(super) async fn get(control: &Control, id: AllocationId) -> Result<Allocation, ControlError> {
    let unknown = || Refusal::not_found("allocation_unknown", format!("there is no allocation {id}"));
    Ok(resources::get::<Allocation>(control, id).await?.ok_or_else(unknown)?)
}

/// The names of the states that a query asks for.
fn states(asked: Option<StateFilter<AllocationState>>) -> Vec<&'static str> {
    match asked {
        None => Vec::new(),
        Some(StateFilter::Is(state)) => vec![state.as_str()],
        Some(StateFilter::Open) => {
            AllocationState::ALL.into_iter().filter(|state| !state.is_terminal()).map(AllocationState::as_str).collect()
        }
    }
}

fn tags(asked: Option<&str>) -> Result<Vec<(String, String)>, ControlError> {
    let Some(text) = asked else { return Ok(Vec::new()) };
    let tags: dto::Tags = text
        .parse()
        .map_err(|error: dto::BadTags| ControlError::BadInput { code: "tags_invalid", message: error.to_string() })?;
    Ok(tags.0.into_iter().collect())
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AllocationListQuery>,
) -> Result<Json<Page<dto::Allocation>>, Rejected> {
    let filter = ResourceFilter {
        parent: Some(caller.project()?.id.to_string()),
        states: states(query.state),
        tags: tags(query.tags.as_deref())?,
        name_contains: query.name,
        ..ResourceFilter::default()
    };
    let newest_first = query.newest_first.unwrap_or(false);
    page_of(&control, &caller, &filter, query.after.as_deref(), newest_first, query.limit).await
}

pub(super) async fn search(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AllocationSearchQuery>,
) -> Result<Json<Page<dto::Allocation>>, Rejected> {
    let owner = match &query.node {
        Some(name) => Some(node_name::find(&control, name).await?.id.to_string()),
        None => None,
    };
    let parents = match &query.organization {
        Some(name) => {
            let organization = super::organizations::named(&control, name).await?;
            let filter = ResourceFilter { parent: Some(organization.id.to_string()), ..ResourceFilter::default() };
            let projects: Vec<Project> = resources::all(&control, &filter).await?;
            Some(projects.into_iter().map(|project| project.id.to_string()).collect())
        }
        None => None,
    };
    let parent = query.project.as_deref().map(parse_id::<ProjectId>).transpose()?.map(|id| id.to_string());
    let filter = ResourceFilter {
        parent,
        parents,
        owner,
        states: states(query.state),
        tags: tags(query.tags.as_deref())?,
        name_contains: query.name,
    };
    let newest_first = query.newest_first.unwrap_or(false);
    page_of(&control, &caller, &filter, query.after.as_deref(), newest_first, query.limit).await
}

async fn page_of(
    control: &Control,
    caller: &Caller,
    filter: &ResourceFilter,
    after: Option<&str>,
    newest_first: bool,
    limit: Option<u32>,
) -> Result<Json<Page<dto::Allocation>>, Rejected> {
    let limit = page_limit(limit)?;
    if let Some(after) = after {
        parse_id::<AllocationId>(after)?;
    }
    let found: Vec<Allocation> = resources::list(control, filter, after, newest_first, limit.saturating_add(1)).await?;
    let found = super::page(found, limit, |allocation| allocation.id.to_string());
    Ok(Json(Page { items: to_dtos(control, Audience::of(&caller.principal), found.items).await?, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Rejected> {
    let allocation = caller.allocation()?;
    Ok(with_etag(to_dto(&control, Audience::of(&caller.principal), allocation).await?).into_response())
}

/// Decides on the allocation that the path names until it sticks, and shows what became of it.
async fn decide(
    control: &Control,
    caller: &Caller,
    decide: impl Fn(&Allocation, &[Quota], &gpuaas_domain::decision::Context) -> Result<(Allocation, Decision), ControlError>,
) -> Result<Response, Rejected> {
    let (context, allocation) = (caller.context(), caller.allocation()?);
    let id = allocation.id;
    let next = transact_counted(
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
    let now = resources::get::<Allocation>(control, next.id).await?.unwrap_or(next);
    Ok(with_etag(to_dto(control, Audience::of(&caller.principal), now).await?).into_response())
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(change): JsonBody<AllocationChange>,
) -> Result<Response, Rejected> {
    if let Some(name) = &change.name {
        let allocation = caller.allocation()?;
        check_name(&control, &allocation.project_id.to_string(), name.as_str(), Some(allocation.id)).await?;
    }
    decide(&control, &caller, |allocation, _, context| {
        if_match(&headers, &etag(allocation))?;
        Ok(commands::describe(allocation, change.name.clone(), change.tags.clone(), context)?)
    })
    .await
}

async fn power(control: &Control, caller: &Caller, action: Power) -> Result<Response, Rejected> {
    decide(control, caller, |allocation, _, context| Ok(commands::power(allocation, action, context)?)).await
}

pub(super) async fn stop(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Rejected> {
    power(&control, &caller, Power::Stop).await
}

pub(super) async fn start(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Rejected> {
    power(&control, &caller, Power::Start).await
}

pub(super) async fn reboot(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Rejected> {
    power(&control, &caller, Power::Reboot).await
}

pub(super) async fn extend(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(extend): JsonBody<AllocationExtend>,
) -> Result<Response, Rejected> {
    let by = match (extend.by_seconds, extend.forever) {
        (Some(seconds), false) => Some(Duration::from_secs(seconds)),
        (None, true) => None,
        (Some(_), true) | (None, false) => {
            let message = "give either by_seconds or forever".to_owned();
            return Err(ControlError::BadInput { code: "extension_invalid", message }.into());
        }
    };
    decide(&control, &caller, |allocation, _, context| Ok(commands::extend(allocation, by, context)?)).await
}

pub(super) async fn release(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Response, Rejected> {
    decide(&control, &caller, |allocation, _, context| Ok(commands::release(allocation, &reason, context)?)).await
}

pub(super) async fn retry(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(AllocationRetry { wait_seconds }): JsonBody<AllocationRetry>,
) -> Result<Response, Rejected> {
    let wait = Duration::from_secs(wait_seconds.unwrap_or(0));
    let operator = Audience::of(&caller.principal).is_platform();
    // What is over comes back to life only in a project that lives.
    let allocation = caller.allocation()?;
    if allocation.state.is_terminal() {
        check_name(&control, &allocation.project_id.to_string(), allocation.name.as_str(), Some(allocation.id)).await?;
        projects::get(&control, &allocation.project_id.to_string()).await?;
    }
    decide(&control, &caller, |allocation, quotas, context| {
        if allocation.state == AllocationState::ReleaseBlocked && !operator {
            let message = "the operators are cleaning up what is left of it; there is nothing for you to do";
            return Err(Refusal::forbidden("operators_only", message).into());
        }
        Ok(commands::retry(allocation, quotas, wait, context)?)
    })
    .await
}

pub(super) async fn console(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(console): JsonBody<SliceConsole>,
) -> Result<Response, Rejected> {
    let allocation = caller.allocation()?;
    if allocation.terms.product == Product::BareMetal {
        let message = "a whole host has no console here; sign in to it with SSH";
        return Err(Refusal::invalid("console_not_supported", message).into());
    }
    let audience = Audience::of(&caller.principal);
    let made = super::slices::console_of(&control, &caller, &headers, allocation.id, &console).await;
    let CreatedOnce { is_new, location, document } = made.map_err(|rejected| without_node(audience, rejected))?;
    Ok(CreatedOnce { is_new, location, document: Json(audience.task(document.task)) }.into_response())
}

/// A refusal because of the state of the node, without its name for tenants.
fn without_node(audience: Audience, Rejected(failure): Rejected) -> Rejected {
    if let ControlError::Refused(refusal) = &failure
        && !audience.is_platform()
        && refusal.code.starts_with("node_")
    {
        let message = "the machine of this allocation cannot do this now; try again later, or ask an operator".to_owned();
        return Rejected(Refusal { message, ..refusal.clone() }.into());
    }
    Rejected(failure)
}
