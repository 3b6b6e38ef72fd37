//! Resolves projects, organizations and what belongs to them, from what people type.

use gpuaas_api::Client;
use gpuaas_api::dto::{
    Allocation, AllocationListQuery, Image, ImageListQuery, MaintenanceListQuery, Member, Organization, OrganizationListQuery,
    PageQuery, Project, ProjectListQuery, ServiceAccount, Sku, SshKey, Webhook,
};
use gpuaas_contract::id::{
    AllocationId, ImageId, MaintenanceId, MembershipId, OrgId, ProjectId, ServiceAccountId, SkuId, SshKeyId, WebhookId,
};

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::pages::{self, Collected, MAX_ITEMS};
use crate::resolve::{Candidate, MAX_CANDIDATES, Noun, not_of_another_kind, pick};

const ORGANIZATION: Noun = Noun { word: "organization", prefix: OrgId::PREFIX, list: "gpuaas org ls" };
const PROJECT: Noun = Noun { word: "project", prefix: ProjectId::PREFIX, list: "gpuaas project ls" };
const ALLOCATION: Noun = Noun { word: "allocation", prefix: AllocationId::PREFIX, list: "gpuaas alloc ls --all" };
const IMAGE: Noun = Noun { word: "image", prefix: ImageId::PREFIX, list: "gpuaas image ls" };
const SSH_KEY: Noun = Noun { word: "SSH key", prefix: SshKeyId::PREFIX, list: "gpuaas ssh-key ls" };
const SERVICE_ACCOUNT: Noun =
    Noun { word: "service account", prefix: ServiceAccountId::PREFIX, list: "gpuaas service-account ls" };
const API_KEY: Noun = Noun { word: "API key", prefix: "apitok_", list: "gpuaas key ls" };
const WEBHOOK: Noun = Noun { word: "webhook", prefix: WebhookId::PREFIX, list: "gpuaas webhook ls" };
const SKU: Noun = Noun { word: "product", prefix: SkuId::PREFIX, list: "gpuaas sku ls" };
const MEMBER: Noun = Noun { word: "member", prefix: MembershipId::PREFIX, list: "gpuaas member ls" };
const MAINTENANCE: Noun = Noun { word: "maintenance window", prefix: MaintenanceId::PREFIX, list: "gpuaas maintenance ls" };

/// How a project can be chosen, for messages.
const HOW_TO_CHOOSE: &str = "--project, GPUAAS_PROJECT or `project` in the config file";

/// Returns `organization/project`, which is unique, unlike the name alone.
pub(crate) fn full_name(project: &Project) -> String {
    format!("{}/{}", project.organization_name, project.name)
}

/// Returns the project to work in: the requested one, or else the only one that the caller can see.
pub(crate) async fn project(session: &CommandContext) -> Result<Project, CliError> {
    let client = session.client()?;
    if let Some(requested) = session.requested_project()? {
        return project_named(client, requested).await;
    }
    let limit = u32::try_from(MAX_CANDIDATES + 1).ok();
    let page = client.projects(&ProjectListQuery { limit, ..ProjectListQuery::default() }).await?;
    let names: Vec<String> = page.items.iter().take(MAX_CANDIDATES).map(full_name).collect();
    let more = page.items.len() > names.len() || page.next.is_some();
    let mut seen = page.items;
    match (seen.len(), more) {
        (0, _) => Err(CliError::new(Exit::NotFound, "project_missing", "there is no project that you can see")
            .hint("ask an owner of your organization for a role; operators create projects with `gpuaas org create` and `gpuaas project create`")),
        (1, false) => Ok(seen.remove(0)),
        _ => {
            let more = if more { ", …" } else { "" };
            Err(CliError::usage("project_needed", "you can see several projects and have not chosen one")
                .hint(format!("choose with {HOW_TO_CHOOSE}: {}{more}", names.join(", "))))
        }
    }
}

/// Returns the project with this id, prefix of an id, name, or `organization/name`.
pub(crate) async fn project_named(client: &Client, wanted: &str) -> Result<Project, CliError> {
    if wanted.parse::<ProjectId>().is_ok() {
        return Ok(client.project(wanted).await?);
    }
    not_of_another_kind(PROJECT, wanted)?;
    let (organization, name) = match wanted.split_once('/') {
        Some((organization, name)) => (Some(organization.to_owned()), name),
        None => (None, wanted),
    };
    let by_id = wanted.starts_with(ProjectId::PREFIX);
    let fetch = async |after, limit| {
        let name = (!by_id).then(|| name.to_owned());
        client.projects(&ProjectListQuery { organization: organization.clone(), name, after, limit: Some(limit) }).await
    };
    let mut found = pages::collect(MAX_ITEMS, fetch).await?.items;
    // For an ambiguous name, the hint lists names that can be typed.
    let same: Vec<&Project> = found.iter().filter(|project| project.name == name).collect();
    if same.len() > 1 {
        let names: Vec<String> = same.iter().take(MAX_CANDIDATES).map(|project| full_name(project)).collect();
        let message = format!("`{wanted}` is the name of {} projects", same.len());
        return Err(CliError::usage("ambiguous", message).hint(format!("choose one: {}", names.join(", "))));
    }
    let candidates = found.iter().map(|project| Candidate { id: project.id.to_string(), name: project.name.clone() });
    let id = pick(PROJECT, name, &candidates.collect::<Vec<_>>())?;
    let at = found.iter().position(|project| project.id.to_string() == id);
    at.map(|at| found.swap_remove(at)).ok_or_else(|| CliError::internal("a project that was found is gone"))
}

/// Returns the organization with this id, prefix of an id, or name.
pub(crate) async fn organization(client: &Client, wanted: &str) -> Result<Organization, CliError> {
    if wanted.parse::<OrgId>().is_ok() {
        return Ok(client.organization(wanted).await?);
    }
    not_of_another_kind(ORGANIZATION, wanted)?;
    let by_id = wanted.starts_with(OrgId::PREFIX);
    let fetch = async |after, limit| {
        let name = (!by_id).then(|| wanted.to_owned());
        client.organizations(&OrganizationListQuery { name, after, limit: Some(limit) }).await
    };
    let found = pages::collect(MAX_ITEMS, fetch).await?.items;
    one(ORGANIZATION, wanted, found, |organization| (organization.id.to_string(), organization.name.clone()))
}

/// Resolves an allocation to its id. A name means the allocation that has not ended, if there is one.
pub(crate) async fn allocation(session: &CommandContext, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<AllocationId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(ALLOCATION, wanted)?;
    let client = session.client()?;
    let project = project(session).await?.id.to_string();
    let by_id = wanted.starts_with(AllocationId::PREFIX);
    let fetch = async |after, limit| {
        let name = (!by_id).then(|| wanted.to_owned());
        let query =
            AllocationListQuery { name, newest_first: Some(true), after, limit: Some(limit), ..AllocationListQuery::default() };
        client.project_allocations(&project, &query).await
    };
    let found = pages::collect(MAX_ITEMS, fetch).await?.items;
    let open: Vec<&Allocation> =
        found.iter().filter(|allocation| allocation.name == wanted && !allocation.is_terminal()).collect();
    if let [one] = open.as_slice() {
        return Ok(one.id.to_string());
    }
    let candidates = found.iter().map(|allocation| Candidate { id: allocation.id.to_string(), name: allocation.name.clone() });
    pick(ALLOCATION, wanted, &candidates.collect::<Vec<_>>())
}

/// Returns the item of a list that `wanted` names.
fn one<T>(kind: Noun, wanted: &str, mut found: Vec<T>, named: impl Fn(&T) -> (String, String)) -> Result<T, CliError> {
    let candidates: Vec<Candidate> = found.iter().map(&named).map(|(id, name)| Candidate { id, name }).collect();
    let id = pick(kind, wanted, &candidates)?;
    let at = candidates.iter().position(|candidate| candidate.id == id);
    at.map(|at| found.swap_remove(at)).ok_or_else(|| CliError::internal(format!("a {} that was found is gone", kind.word)))
}

/// Returns the images that a project can use or, without a project, those of the platform.
pub(crate) async fn images(client: &Client, project: Option<&str>, limit: usize) -> Result<Collected<Image>, CliError> {
    let fetch = async |after, limit| {
        let query = ImageListQuery { name: None, after, limit: Some(limit) };
        match project {
            Some(project) => client.project_images(project, &query).await,
            None => client.images(&query).await,
        }
    };
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves an image. A name means the organization's own image before one of the platform.
pub(crate) async fn image(client: &Client, project: Option<&str>, wanted: &str) -> Result<Image, CliError> {
    not_of_another_kind(IMAGE, wanted)?;
    let mut found = images(client, project, MAX_ITEMS).await?.items;
    if found.iter().any(|image| image.name == wanted && image.organization_id.is_some()) {
        found.retain(|image| image.organization_id.is_some());
    }
    one(IMAGE, wanted, found, |image| (image.id.to_string(), image.name.clone()))
}

/// Returns the SSH keys of a project.
pub(crate) async fn ssh_keys(client: &Client, project: &str, limit: usize) -> Result<Collected<SshKey>, CliError> {
    let fetch = async |after, limit| client.ssh_keys(project, &PageQuery { after, limit: Some(limit) }).await;
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves an SSH key.
pub(crate) async fn ssh_key(client: &Client, project: &str, wanted: &str) -> Result<SshKey, CliError> {
    not_of_another_kind(SSH_KEY, wanted)?;
    one(SSH_KEY, wanted, ssh_keys(client, project, MAX_ITEMS).await?.items, |key| (key.id.to_string(), key.name.clone()))
}

/// Returns the service accounts of a project.
pub(crate) async fn service_accounts(
    client: &Client,
    project: &str,
    limit: usize,
) -> Result<Collected<ServiceAccount>, CliError> {
    let fetch = async |after, limit| client.service_accounts(project, &PageQuery { after, limit: Some(limit) }).await;
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves a service account.
pub(crate) async fn service_account(client: &Client, project: &str, wanted: &str) -> Result<ServiceAccount, CliError> {
    not_of_another_kind(SERVICE_ACCOUNT, wanted)?;
    let found = service_accounts(client, project, MAX_ITEMS).await?.items;
    one(SERVICE_ACCOUNT, wanted, found, |account| (account.id.to_string(), account.name.clone()))
}

/// Resolves an API key of a service account to its id. A name means a key that is still valid.
pub(crate) async fn api_key(client: &Client, project: &str, account: &str, wanted: &str) -> Result<String, CliError> {
    not_of_another_kind(API_KEY, wanted)?;
    let fetch = async |after, limit| client.api_keys(project, account, &PageQuery { after, limit: Some(limit) }).await;
    let mut found = pages::collect(MAX_ITEMS, fetch).await?.items;
    found.retain(|key| key.revoked_at.is_none() || key.id.to_string() == wanted);
    one(API_KEY, wanted, found, |key| (key.id.to_string(), key.name.clone())).map(|key| key.id.to_string())
}

/// Returns the webhooks of a project.
pub(crate) async fn webhooks(client: &Client, project: &str, limit: usize) -> Result<Collected<Webhook>, CliError> {
    let fetch = async |after, limit| client.webhooks(project, &PageQuery { after, limit: Some(limit) }).await;
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves a webhook to its id, from the id, a prefix of it, or the webhook's address.
pub(crate) async fn webhook(session: &CommandContext, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<WebhookId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(WEBHOOK, wanted)?;
    let project = project(session).await?.id.to_string();
    let found = webhooks(session.client()?, &project, MAX_ITEMS).await?.items;
    one(WEBHOOK, wanted, found, |webhook| (webhook.id.to_string(), webhook.url.clone())).map(|webhook| webhook.id.to_string())
}

/// Returns the products, including those that are no longer offered.
pub(crate) async fn skus(client: &Client, limit: usize) -> Result<Collected<Sku>, CliError> {
    let fetch = async |after, limit| client.skus(&PageQuery { after, limit: Some(limit) }).await;
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves a product. A name means one that is offered, if there is one.
pub(crate) async fn sku(client: &Client, wanted: &str) -> Result<Sku, CliError> {
    not_of_another_kind(SKU, wanted)?;
    let mut found = skus(client, MAX_ITEMS).await?.items;
    if found.iter().any(|sku| sku.name == wanted && sku.retired_at.is_none()) {
        found.retain(|sku| sku.retired_at.is_none());
    }
    one(SKU, wanted, found, |sku| (sku.id.to_string(), sku.name.clone()))
}

/// Resolves a member by id, prefix of an id, e-mail address or name.
pub(crate) fn member(members: Vec<Member>, wanted: &str) -> Result<Member, CliError> {
    let live = members.into_iter().filter(|member| member.removed_at.is_none()).collect();
    one(MEMBER, wanted, live, |member| {
        let called = member.email.clone().filter(|email| !email.is_empty()).unwrap_or_else(|| member.name.clone());
        (member.id.to_string(), called)
    })
}

/// Resolves a maintenance window to its id.
pub(crate) async fn maintenance(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<MaintenanceId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(MAINTENANCE, wanted)?;
    let fetch = async |after, limit| {
        client.maintenance_windows(&MaintenanceListQuery { after, limit: Some(limit), ..MaintenanceListQuery::default() }).await
    };
    let found = pages::collect(MAX_ITEMS, fetch).await?.items;
    one(MAINTENANCE, wanted, found, |window| (window.id.to_string(), window.summary.clone())).map(|window| window.id.to_string())
}
