//! Service accounts and their API keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ApiKeyCreate, ApiKeyCreated, Page, PageQuery, ServiceAccountCreate};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::event::{self, ApiKeyRevoked, Event};
use gpuaas_contract::id::{ApiTokenId, MembershipId, ServiceAccountId};
use gpuaas_contract::state::ApiKeyState;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, KeyLimits, KeyScopes, MemberRole, Place, Who};
use gpuaas_domain::decision::Change;
use gpuaas_domain::names::checked_text;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, ServiceAccount};
use gpuaas_domain::{Decision, Refusal, Wakeup, caps};
use gpuaas_store::{ApiTokenFilter, ResourceFilter};

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, check_cap, counting_tokens, free_name, live_count, mint, page, page_limit, parse_id, parse_opt, projects};
use crate::error::ControlError;
use crate::pki::secret_text;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;
type Path = Segments<BTreeMap<String, String>>;

/// Longest life of a key.
const MAX_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);

fn segment<'a>(path: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    path.get(name).map(String::as_str).unwrap_or_default()
}

/// The account in the path, if it is one of the project in the path.
async fn get(control: &Control, path: &BTreeMap<String, String>) -> Result<ServiceAccount, ControlError> {
    let project = projects::get(control, segment(path, "project")).await?;
    let id: ServiceAccountId = parse_id(segment(path, "service_account"))?;
    let unknown = || {
        let message = format!("there is no service account {id} in this project");
        Refusal::not_found("service_account_unknown", message)
    };
    let found = resources::get::<ServiceAccount>(control, id).await?;
    let found = found.filter(|account| account.project_id == project.id && account.deleted_at.is_none());
    Ok(found.ok_or_else(unknown)?)
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ServiceAccount>>, Rejected> {
    let project = caller.project()?;
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<ServiceAccountId>(after)?;
    }
    let filter = ResourceFilter { parent: Some(project.id.to_string()), states: vec!["active"], ..ResourceFilter::default() };
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |account: &ServiceAccount| account.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ServiceAccountCreate>,
) -> Result<(StatusCode, Location, Json<dto::ServiceAccount>), Rejected> {
    let project = caller.project()?;
    let (id, membership, context) = (ServiceAccountId::generate(), MembershipId::generate(), caller.context());
    let role = wanted.role.map(MemberRole::Project);
    let made = transact(&control, || async {
        free_name::<ServiceAccount>(&control, &project.id.to_string(), &wanted.name).await?;
        let present = live_count(&control, ResourceKind::ServiceAccount, &project.id.to_string()).await?;
        check_cap(&control, caps::SERVICE_ACCOUNTS, present)?;
        let (made, mut decision) = tenancy::create_service_account(id, &project, &wanted.name, &wanted.description, &context)?;
        if let Some(role) = role {
            let (who, at) = (Who::ServiceAccount(id), Place::Project(project.id));
            mint::role_of_new_account(&control, &caller, at, role)?;
            decision = decision.and(tenancy::invite(membership, who, at, role, &context)?.1);
        }
        Ok((made, decision))
    })
    .await?;
    let location = Location::of(routes::SERVICE_ACCOUNT, [&made.project_id as &dyn std::fmt::Display, &made.id]);
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Path,
) -> Result<Json<dto::ServiceAccount>, Rejected> {
    let context = caller.context();
    let gone = transact(&control, || async {
        let account = get(&control, &path).await?;
        Ok(tenancy::delete_service_account(&account, &context))
    })
    .await?;
    Ok(Json(to_dto(gone)))
}

pub(super) async fn keys(
    State(control): Shared,
    Segments(path): Path,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ApiKey>>, Rejected> {
    let account = get(&control, &path).await?;
    let limit = page_limit(query.limit)?;
    let filter = ApiTokenFilter { service_account: Some(account.id), ..ApiTokenFilter::default() };
    let after = parse_opt(query.after.as_deref())?;
    let found = control.store.api_token_list(&filter, after, limit.saturating_add(1)).await?;
    let found = page(found, limit, |key| key.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(|key| key_shown(key, &account)).collect(), next: found.next }))
}

pub(super) async fn key_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Path,
    JsonBody(wanted): JsonBody<ApiKeyCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<ApiKeyCreated>), Rejected> {
    let account = get(&control, &path).await?;
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
    let (KeyLimits { scopes, expires_at }, parent) = mint::key(&control, &caller, wanted).await?;
    let secret = secret_text("gpk_");
    let key = ApiToken {
        id: ApiTokenId::generate(),
        version: 0,
        name,
        role: None,
        service_account: Some(account.id),
        project: Some(account.project_id),
        parent,
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
    transact(&control, || async {
        let filter = ApiTokenFilter { service_account: Some(account.id), ..ApiTokenFilter::default() };
        check_cap(&control, caps::API_KEYS, counting_tokens(&control, &filter, context.now).await?)?;
        Ok(((), decision.clone()))
    })
    .await?;
    let location = Location::of(routes::API_KEY, [&account.project_id as &dyn std::fmt::Display, &account.id, &key.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(ApiKeyCreated { key: key_shown(key, &account), secret })))
}

pub(super) async fn key_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Path,
) -> Result<Json<dto::ApiKey>, Rejected> {
    let account = get(&control, &path).await?;
    let id: ApiTokenId = parse_id(segment(&path, "key"))?;
    let context = caller.context();
    let unknown = || Refusal::not_found("key_unknown", format!("the service account has no key {id}"));
    let key = transact(&control, || async {
        let key = control.store.api_token_get(id).await?.filter(|key| key.service_account == Some(account.id));
        let key = key.ok_or_else(unknown)?;
        if key.revoked_at.is_some() {
            return Ok((key, Decision::default()));
        }
        let revoked = ApiToken { revoked_at: Some(context.now), ..key };
        let event = Event::ApiKeyRevoked(ApiKeyRevoked {
            api_token_id: id,
            service_account_id: account.id,
            project_id: account.project_id,
        });
        let decision = Decision::default().change(Change::ApiTokenUpdate(revoked.clone())).wakeup(Wakeup::Rights);
        let decision = decision.record(&context, id, event);
        Ok((revoked, decision))
    })
    .await?;
    Ok(Json(key_shown(key, &account)))
}

fn to_dto(account: ServiceAccount) -> dto::ServiceAccount {
    dto::ServiceAccount {
        id: account.id,
        project_id: account.project_id,
        name: account.name,
        description: account.description,
        created_at: account.created_at,
        deleted_at: account.deleted_at,
    }
}

fn key_shown(key: ApiToken, account: &ServiceAccount) -> dto::ApiKey {
    let state = match (key.revoked_at, key.counts(Timestamp::now())) {
        (Some(_), _) => ApiKeyState::Revoked,
        (None, true) => ApiKeyState::Active,
        (None, false) => ApiKeyState::Expired,
    };
    dto::ApiKey {
        id: key.id,
        service_account_id: account.id,
        project_id: account.project_id,
        name: key.name,
        parent_id: key.parent,
        scopes: key.scopes.as_ref().map(KeyScopes::patterns),
        state: state.into(),
        created_at: key.created_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
    }
}
