//! Authorizes every request before its handler runs, according to the endpoint table and the policies.
//!
//! A route that is not in the table is refused, so a new one is closed until its required permission is declared. The resource that a
//! request acts on is loaded from the store, never taken from what the caller claims. A caller who may not see it is told that it does
//! not exist.

use axum::http::Method;
use gpuaas_api::endpoints::{self, About};
use gpuaas_api::routes;
use gpuaas_contract::id::{AllocationId, DeliveryId, OrgId, ProjectId, TaskId, WebhookId};
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{Action, Principal, Scope, Verdict};
use gpuaas_domain::allocation::Allocation;
use gpuaas_domain::tenancy::{Organization, Project};
use gpuaas_domain::webhook::{Delivery, Webhook};

use super::parse_id;
use crate::app::Subject;
use crate::error::ControlError;
use crate::{Control, resources};

/// The refusal code for a route that is not in the endpoint table.
pub(super) const CLOSED: &str = "route_closed";

/// Authorizes a request to the route `template` at `path`. Returns the resource that it acts on.
pub(super) async fn decide(
    control: &Control,
    principal: &Principal,
    method: &Method,
    template: &str,
    path: &str,
) -> Result<Subject, ControlError> {
    let Some(endpoint) = endpoints::find(method.as_str(), template) else {
        let message = "this route is not open to anybody; it is missing in the table of endpoints";
        return Err(Refusal::forbidden(CLOSED, message).into());
    };
    // A resource that does not exist and one that the caller may not see must look the same.
    let subject = subject_of(control, endpoint.about, template, path).await?;
    let subject = subject.ok_or_else(|| unknown(endpoint.about, template, path))?;
    let scope = subject.scope();
    match control.authz.policies.may(principal, endpoint.action, &scope) {
        Verdict::Allowed => {
            check_console_log(control, principal, template, path).await?;
            Ok(subject)
        }
        Verdict::Denied { .. } if may_read_console(control, principal, template, path).await? => Ok(subject),
        Verdict::Denied { why } if principal.can_see(&scope) || scope == Scope::Platform => {
            Err(Refusal::forbidden("forbidden", why).into())
        }
        Verdict::Denied { .. } => Err(unknown(endpoint.about, template, path).into()),
    }
}

/// Tasks are visible to operators only, with one exception: a tenant reads the console of their guest through the task that reads it.
async fn may_read_console(control: &Control, principal: &Principal, template: &str, path: &str) -> Result<bool, ControlError> {
    if ![routes::TASK, routes::TASK_LOGS, routes::TASK_WATCH, routes::TASK_CANCEL].contains(&template) {
        return Ok(false);
    }
    match console_of(control, template, path).await? {
        Some(Console::Tenant(scope)) => Ok(control.authz.policies.may(principal, Action::AllocationConsole, &scope).is_allowed()),
        Some(Console::Platform) | None => Ok(false),
    }
}

/// The log of a console task contains what the guest wrote to its console. A caller who may read tasks may read this log only if they could
/// have opened the console.
async fn check_console_log(control: &Control, principal: &Principal, template: &str, path: &str) -> Result<(), ControlError> {
    if template != routes::TASK_LOGS {
        return Ok(());
    }
    let (action, scope) = match console_of(control, template, path).await? {
        Some(Console::Tenant(scope)) => (Action::AllocationConsole, scope),
        Some(Console::Platform) => (Action::PlatformOperate, Scope::Platform),
        None => return Ok(()),
    };
    match control.authz.policies.may(principal, action, &scope) {
        Verdict::Allowed => Ok(()),
        Verdict::Denied { why } => Err(Refusal::forbidden("forbidden", why).into()),
    }
}

/// The owner of the console that a task reads.
enum Console {
    /// The console of a guest in this project.
    Tenant(Scope),
    /// The console of a slice that operators created.
    Platform,
}

/// The owner of the console that the task in the path reads. `None` if the task does not read a console.
async fn console_of(control: &Control, template: &str, path: &str) -> Result<Option<Console>, ControlError> {
    let Ok(id) = segment(template, path, "{task}").parse::<TaskId>() else { return Ok(None) };
    let task = control.store.task_get(id).await?.filter(|task| task.task_type == TaskType::SliceConsoleRead);
    let Some(task) = task else { return Ok(None) };
    let Some(holder) = Task::parse(task.task_type, &task.params).ok().and_then(|task| task.holder()) else {
        return Ok(Some(Console::Platform));
    };
    Ok(Some(match resources::get::<Allocation>(control, holder.allocation_id).await? {
        Some(of) => Console::Tenant(Scope::Project { organization: of.organization_id, project: of.project_id }),
        None => Console::Platform,
    }))
}

async fn subject_of(control: &Control, about: About, template: &str, path: &str) -> Result<Option<Subject>, ControlError> {
    let live_project = async |id: ProjectId| -> Result<Option<Project>, ControlError> {
        Ok(resources::get::<Project>(control, id).await?.filter(|project| project.deleted_at.is_none()))
    };
    Ok(match about {
        About::Platform => Some(Subject::Platform),
        About::Organization => {
            let id: OrgId = parse_id(segment(template, path, "{organization}"))?;
            let organization = resources::get::<Organization>(control, id).await?;
            organization.filter(|organization| organization.deleted_at.is_none()).map(Subject::Organization)
        }
        About::Project => live_project(parse_id(segment(template, path, "{project}"))?).await?.map(Subject::Project),
        About::Allocation => {
            let id: AllocationId = parse_id(segment(template, path, "{allocation}"))?;
            resources::get::<Allocation>(control, id).await?.map(|allocation| Subject::Allocation(Box::new(allocation)))
        }
        About::Webhook => {
            let id: WebhookId = parse_id(segment(template, path, "{webhook}"))?;
            match resources::get::<Webhook>(control, id).await?.filter(|webhook| webhook.deleted_at.is_none()) {
                Some(webhook) => live_project(webhook.project_id).await?.map(Subject::Webhook),
                None => None,
            }
        }
        About::Delivery => {
            let id: DeliveryId = parse_id(segment(template, path, "{delivery}"))?;
            let webhook = match resources::get::<Delivery>(control, id).await? {
                Some(delivery) => resources::get::<Webhook>(control, delivery.webhook_id).await?,
                None => None,
            };
            match webhook {
                Some(webhook) => live_project(webhook.project_id).await?.map(Subject::Webhook),
                None => None,
            }
        }
    })
}

fn unknown(about: About, template: &str, path: &str) -> Refusal {
    let (code, what, name) = match about {
        About::Platform => ("route_unknown", "route", ""),
        About::Organization => ("organization_unknown", "organization", "{organization}"),
        About::Project => ("project_unknown", "project", "{project}"),
        About::Allocation => ("allocation_unknown", "allocation", "{allocation}"),
        About::Webhook => ("webhook_unknown", "webhook", "{webhook}"),
        About::Delivery => ("delivery_unknown", "delivery", "{delivery}"),
    };
    let id = segment(template, path, name);
    Refusal::not_found(code, format!("there is no {what} {id} that you can see"))
}

/// The segment of the path at the position of `name` in the route.
fn segment<'p>(template: &str, path: &'p str, name: &str) -> &'p str {
    let place = template.split('/').position(|segment| segment == name);
    place.and_then(|place| path.split('/').nth(place)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_found_by_its_place() {
        let template = "/api/v1/projects/{project}/members/{member}";
        assert_eq!(segment(template, "/api/v1/projects/p1/members/m2", "{project}"), "p1");
        assert_eq!(segment(template, "/api/v1/projects/p1/members/m2", "{member}"), "m2");
        assert_eq!(segment(template, "/api/v1/projects/p1/members/m2", "{node}"), "");
    }
}
