//! Reads resources: the control plane's own seal of every row is checked before anything is decided on it.

use gpuaas_contract::id::{OrgId, ProjectId};
use gpuaas_domain::Refusal;
use gpuaas_domain::quota::{Quota, quota_id};
use gpuaas_domain::resource::{Document, Resource, seal_text};
use gpuaas_store::ResourceFilter;

use crate::Control;
use crate::error::ControlError;
use crate::pki::KeyRing;

/// Computes the seal of a row with this version.
pub(crate) fn seal(keys: &KeyRing, document: &Document, version: i64) -> String {
    keys.intent_mac(&seal_text(document, version))
}

/// Returns a resource, if the control plane itself wrote its row.
pub(crate) fn open<R: Resource>(control: &Control, document: &Document) -> Result<R, ControlError> {
    if document.kind != R::KIND || !control.keys.intent_matches(&seal_text(document, document.version), &document.seal) {
        tracing::error!(
            resource = %document.id, kind = document.kind.as_str(),
            "a row was not written by the control plane: the database was manipulated"
        );
        let message = format!("the row of {} was changed outside the control plane; restore it from a backup", document.id);
        return Err(Refusal::forbidden("row_forged", message).into());
    }
    document.read().map_err(|error| ControlError::Internal(format!("{} cannot be read: {error}", document.id)))
}

fn open_opt<R: Resource>(control: &Control, document: Option<Document>) -> Result<Option<R>, ControlError> {
    document.map(|document| open(control, &document)).transpose()
}

/// Returns the resource with this id.
pub(crate) async fn get<R: Resource>(control: &Control, id: impl std::fmt::Display) -> Result<Option<R>, ControlError> {
    open_opt(control, control.store.resource_get(R::KIND, &id.to_string()).await?)
}

/// Returns these resources; unknown ids are left out. A single row that is not ours refuses the request, as when it is read
/// alone.
pub(crate) async fn many<R: Resource>(control: &Control, ids: &[String]) -> Result<Vec<R>, ControlError> {
    control.store.resource_many(R::KIND, ids).await?.iter().map(|document| open(control, document)).collect()
}

/// Returns the quotas that a project counts against: its own and that of its organization.
pub(crate) async fn quotas(control: &Control, project: ProjectId, organization: OrgId) -> Result<Vec<Quota>, ControlError> {
    many(control, &[quota_id(&project), quota_id(&organization)].map(|id| id.to_string())).await
}

/// Returns the resource with this name within its parent.
pub(crate) async fn by_name<R: Resource>(control: &Control, parent: &str, name: &str) -> Result<Option<R>, ControlError> {
    open_opt(control, control.store.resource_by_name(R::KIND, parent, name).await?)
}

/// Returns the resource with this external key.
pub(crate) async fn by_lookup<R: Resource>(control: &Control, lookup: &str) -> Result<Option<R>, ControlError> {
    open_opt(control, control.store.resource_by_lookup(R::KIND, lookup).await?)
}

/// Lists resources that match `filter`, after `after`. A row that was not written by the control plane is left out, and logged:
/// one forged row must not hide the others.
pub(crate) async fn list<R: Resource>(
    control: &Control,
    filter: &ResourceFilter,
    after: Option<&str>,
    newest_first: bool,
    limit: u32,
) -> Result<Vec<R>, ControlError> {
    let found = control.store.resource_list(R::KIND, filter, after, newest_first, limit).await?;
    Ok(found.iter().filter_map(|document| open(control, document).ok()).collect())
}

/// Returns all resources that match `filter`, from any number of pages. Only for kinds that are bounded by nature.
pub(crate) async fn all<R: Resource>(control: &Control, filter: &ResourceFilter) -> Result<Vec<R>, ControlError> {
    let mut found: Vec<R> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = control.store.resource_list(R::KIND, filter, after.as_deref(), false, PAGE).await?;
        found.extend(page.iter().filter_map(|document| open(control, document).ok()));
        match page.last() {
            Some(last) if page.len() == PAGE as usize => after = Some(last.id.clone()),
            Some(_) | None => return Ok(found),
        }
    }
}

/// Rows of one read when all are needed.
const PAGE: u32 = 500;
