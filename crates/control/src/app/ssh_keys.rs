//! SSH keys of projects.

use gpuaas_api::dto::{Page, SshKeyCreate};
use gpuaas_contract::id::{ProjectId, SshKeyId};
use gpuaas_domain::Refusal;
use gpuaas_domain::catalog::{self, SshKey};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::Project;

use super::{Caller, PageRequest, check_name_free, list_resources, live_count, live_in};
use crate::error::ControlError;
use crate::{Control, resources};

/// Lists the SSH keys of a project.
pub(crate) async fn list(
    control: &Control,
    project: ProjectId,
    page: &PageRequest<SshKeyId>,
) -> Result<Page<SshKey>, ControlError> {
    list_resources(control, &live_in(project), page, false).await
}

/// Adds an SSH key to a project.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    project: &Project,
    wanted: &SshKeyCreate,
) -> Result<SshKey, ControlError> {
    let (id, context) = (SshKeyId::generate(), caller.context());
    let attempt = || async {
        check_name_free::<SshKey>(control, &project.id.to_string(), &wanted.name).await?;
        let present = live_count(control, ResourceKind::SshKey, project.id).await?;
        Ok(catalog::add_ssh_key(id, project, &wanted.name, wanted.public_key.clone(), present, &context)?)
    };
    caller.transact(control, attempt).await
}

/// Deletes an SSH key of a project. Guests that have it keep it.
pub(crate) async fn delete(control: &Control, caller: &Caller, project: ProjectId, id: SshKeyId) -> Result<SshKey, ControlError> {
    let context = caller.context();
    let unknown = || Refusal::not_found("ssh_key_unknown", format!("the project has no SSH key {id}"));
    let attempt = || async {
        let key = resources::get::<SshKey>(control, id).await?.filter(|key| key.project_id == project);
        Ok(catalog::delete_ssh_key(&key.ok_or_else(unknown)?, &context))
    };
    caller.transact(control, attempt).await
}
