//! The use cases: what can be done, one function each, whoever asks for it.
//!
//! A function takes the [`Control`], the [`Caller`], ids or what was loaded already, and a plain request. It loads what it needs, asks
//! `domain` for a decision, commits it, and returns domain values. Nothing here knows HTTP: handlers, workers, the console and tests call
//! the same functions. Whether the caller may do it was decided before (`http/guard.rs`); what a key may hand on is checked here.

pub(crate) mod allocations;
pub(crate) mod api_tokens;
pub(crate) mod budget;
mod caller;
pub(crate) mod catalog;
pub(crate) mod enrollments;
mod grants;
pub(crate) mod images;
pub(crate) mod machines;
pub(crate) mod maintenance;
pub(crate) mod members;
pub(crate) mod nodes;
pub(crate) mod organizations;
pub(crate) mod projects;
pub(crate) mod quotas;
pub(crate) mod service_accounts;
pub(crate) mod signing_keys;
pub(crate) mod slices;
pub(crate) mod slots;
pub(crate) mod ssh_keys;
pub(crate) mod tasks;
pub(crate) mod users;
pub(crate) mod webhooks;
pub(crate) mod whoami;

use std::fmt::Display;

use gpuaas_api::dto::Page;
use gpuaas_domain::Refusal;
use gpuaas_domain::caps::Cap;
use gpuaas_domain::resource::{Resource, ResourceKind};
use gpuaas_store::ResourceFilter;

pub(crate) use caller::{Caller, Subject};

use crate::error::ControlError;
use crate::{Control, resources};

/// Which part of a list is wanted.
#[derive(Clone, Debug)]
pub(crate) struct PageRequest<C> {
    /// Those after this one.
    pub(crate) after: Option<C>,
    /// At most so many.
    pub(crate) limit: u32,
}

impl<C> PageRequest<C> {
    /// How many rows to read: one more than fits shows whether there is another page.
    fn rows(&self) -> u32 {
        self.limit.saturating_add(1)
    }

    /// The page, given up to one item more than fits.
    pub(crate) fn cut<T>(&self, mut items: Vec<T>, cursor: impl Fn(&T) -> String) -> Page<T> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Page { items, next }
    }
}

/// A page of resources.
async fn list_resources<R: Resource, C: Display>(
    control: &Control,
    filter: &ResourceFilter,
    page: &PageRequest<C>,
    newest_first: bool,
) -> Result<Page<R>, ControlError> {
    let after = page.after.as_ref().map(ToString::to_string);
    let found = resources::list(control, filter, after.as_deref(), newest_first, page.rows()).await?;
    Ok(page.cut(found, R::id))
}

/// Names one version of a row.
pub(crate) fn etag_of(version: i64) -> String {
    format!("\"{version}\"")
}

/// The versions that a caller wants to change, if it does not want to change just any.
#[derive(Clone, Debug, Default)]
pub(crate) struct IfMatch(Option<String>);

impl IfMatch {
    /// The tags that the caller named, with commas between them.
    pub(crate) fn new(tags: Option<String>) -> Self {
        Self(tags)
    }

    /// Refuses to change something that is not, or no longer, as the caller has seen it.
    fn check(&self, version: i64) -> Result<(), ControlError> {
        let (Some(wanted), now) = (&self.0, etag_of(version)) else { return Ok(()) };
        if wanted.split(',').map(str::trim).any(|tag| tag == "*" || tag == now) {
            return Ok(());
        }
        let message = format!("somebody has changed it since you read it (it is {now} now, not {wanted}); read it again");
        Err(ControlError::Precondition { code: "changed_meanwhile", message })
    }
}

/// What belongs to `parent` and is not over.
fn live_in(parent: impl Display) -> ResourceFilter {
    ResourceFilter { parent: Some(parent.to_string()), states: vec!["active"], ..ResourceFilter::default() }
}

/// How many resources of a kind belong to `parent` and are not over.
async fn live_count(control: &Control, kind: ResourceKind, parent: impl Display) -> Result<u64, ControlError> {
    Ok(control.store.resource_count(kind, &live_in(parent)).await?)
}

/// Refuses one more of something of which there are `present`.
fn check_cap(control: &Control, cap: Cap, present: u64) -> Result<(), ControlError> {
    cap.check(present).inspect_err(|refusal| control.metrics.refused(refusal.code))?;
    Ok(())
}

/// Refuses a name that another one has.
async fn check_name_free<R: Resource>(control: &Control, parent: &str, name: &str) -> Result<(), ControlError> {
    if control.store.resource_by_name(R::KIND, parent, name).await?.is_none() {
        return Ok(());
    }
    let what = R::KIND.as_str().replace('_', " ");
    let message = format!("there is a {what} named `{name}` already; choose another name");
    Err(Refusal::conflict("name_taken", message).into())
}
