//! Service accounts and their API keys.

use std::time::Duration;

use gpuaas_api::dto::{ApiKeyCreate, Page, ServiceAccountCreate};
use gpuaas_contract::Digest;
use gpuaas_contract::event::{self, Event};
use gpuaas_contract::id::{ApiTokenId, MembershipId, ProjectId, ServiceAccountId};
use gpuaas_domain::access::{ApiToken, KeyLimits, KeyScopes, MemberRole, Place, Who};
use gpuaas_domain::decision::Change;
use gpuaas_domain::names::checked_text;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Project, ServiceAccount};
use gpuaas_domain::{Decision, Refusal, caps};
use gpuaas_store::ApiTokenFilter;

use super::api_tokens::{self, TokenWithSecret};
use super::{Caller, PageRequest, check_cap, check_name_free, grants, list_resources, live_count, live_in};
use crate::error::ControlError;
use crate::pki::secret_text;
use crate::{Control, resources};

/// Longest life of a key.
const MAX_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);

/// The account with this id, if it is one of the project.
pub(crate) async fn get(control: &Control, project: ProjectId, id: ServiceAccountId) -> Result<ServiceAccount, ControlError> {
    let unknown = || {
        let message = format!("there is no service account {id} in this project");
        Refusal::not_found("service_account_unknown", message)
    };
    let found = resources::get::<ServiceAccount>(control, id).await?;
    let found = found.filter(|account| account.project_id == project && account.deleted_at.is_none());
    Ok(found.ok_or_else(unknown)?)
}

/// Lists the service accounts of a project.
pub(crate) async fn list(
    control: &Control,
    project: ProjectId,
    page: &PageRequest<ServiceAccountId>,
) -> Result<Page<ServiceAccount>, ControlError> {
    list_resources(control, &live_in(project), page, false).await
}

/// Creates a service account, with a role in its project if one is named.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    project: &Project,
    wanted: &ServiceAccountCreate,
) -> Result<ServiceAccount, ControlError> {
    let (id, membership, context) = (ServiceAccountId::generate(), MembershipId::generate(), caller.context());
    let attempt = || async {
        check_name_free::<ServiceAccount>(control, &project.id.to_string(), &wanted.name).await?;
        let present = live_count(control, ResourceKind::ServiceAccount, project.id).await?;
        check_cap(control, caps::SERVICE_ACCOUNTS, present)?;
        let (made, mut decision) = tenancy::create_service_account(id, project, &wanted.name, &wanted.description, &context)?;
        if let Some(role) = wanted.role.map(MemberRole::Project) {
            let (who, at) = (Who::ServiceAccount(id), Place::Project(project.id));
            grants::role_of_new_account(control, caller, at, role)?;
            decision = decision.and(tenancy::invite(membership, who, at, role, &context)?.1);
        }
        Ok((made, decision))
    };
    caller.transact(control, attempt).await
}

/// Deletes a service account: its keys no longer count.
pub(crate) async fn delete(
    control: &Control,
    caller: &Caller,
    project: ProjectId,
    id: ServiceAccountId,
) -> Result<ServiceAccount, ControlError> {
    let context = caller.context();
    let attempt = || async { Ok(tenancy::delete_service_account(&get(control, project, id).await?, &context)) };
    caller.transact(control, attempt).await
}

fn keys_of(account: &ServiceAccount) -> ApiTokenFilter {
    ApiTokenFilter { service_account: Some(account.id), ..ApiTokenFilter::default() }
}

/// Lists the keys of a service account.
pub(crate) async fn keys(
    control: &Control,
    account: &ServiceAccount,
    page: &PageRequest<ApiTokenId>,
) -> Result<Page<ApiToken>, ControlError> {
    api_tokens::list(control, &keys_of(account), page).await
}

/// Creates a key for a service account, with which the caller passes on no more than it has.
pub(crate) async fn key_create(
    control: &Control,
    caller: &Caller,
    account: &ServiceAccount,
    wanted: ApiKeyCreate,
) -> Result<TokenWithSecret, ControlError> {
    let context = caller.context();
    let scopes = wanted.scopes.map(KeyScopes::parse).transpose().map_err(Refusal::from)?;
    let life = wanted.life_seconds.map(Duration::from_secs);
    if life.is_some_and(|life| life.is_zero() || life > MAX_LIFE) {
        return Err(Refusal::invalid("life_invalid", "a key lives 1 second to 366 days").into());
    }
    let name = checked_text(&wanted.name, "the name of a key")?;
    if name.is_empty() {
        return Err(Refusal::invalid("name_invalid", "give the key a name").into());
    }
    let wanted = KeyLimits { scopes, expires_at: life.map(|life| context.now.plus(life)) };
    let (KeyLimits { scopes, expires_at }, parent) = grants::key_of_account(control, caller, account, wanted).await?;
    let secret = secret_text("gpk_");
    let key = ApiToken {
        id: ApiTokenId::generate(),
        version: 0,
        name,
        role: None,
        service_account: Some(account.id),
        project: Some(account.project_id),
        parent,
        created_by: Some(caller.principal.who),
        scopes,
        secret_digest: Digest::of(secret.as_bytes()),
        created_at: context.now,
        expires_at,
        revoked_at: None,
    };
    let event = Event::ApiKeyCreated(event::ApiKeyCreated {
        api_token_id: key.id,
        service_account_id: account.id,
        project_id: account.project_id,
        name: key.name.clone(),
        parent_id: key.parent,
        expires_at: key.expires_at,
        scopes: key.scopes.as_ref().map(KeyScopes::patterns),
    });
    let decision = Decision::default().change(Change::ApiTokenInsert(key.clone())).record(&context, key.id, event);
    let attempt = || async {
        let present = control.store.api_token_count(&keys_of(account), context.now).await?;
        check_cap(control, caps::API_KEYS, present)?;
        Ok(((), decision.clone()))
    };
    caller.transact(control, attempt).await?;
    Ok(TokenWithSecret { token: key, secret })
}

/// Revokes a key of a service account.
pub(crate) async fn key_revoke(
    control: &Control,
    caller: &Caller,
    account: &ServiceAccount,
    id: ApiTokenId,
) -> Result<ApiToken, ControlError> {
    let context = caller.context();
    let unknown = || Refusal::not_found("key_unknown", format!("the service account has no key {id}"));
    let attempt = || async {
        let key = control.store.api_token_get(id).await?.filter(|key| key.service_account == Some(account.id));
        Ok(tenancy::revoke_key(&key.ok_or_else(unknown)?, &context))
    };
    caller.transact(control, attempt).await
}
