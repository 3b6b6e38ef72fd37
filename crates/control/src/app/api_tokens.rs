//! API tokens of the platform.

use gpuaas_api::dto::{ApiTokenCreate, Page};
use gpuaas_contract::Digest;
use gpuaas_contract::event::{self, Event};
use gpuaas_contract::id::ApiTokenId;
use gpuaas_domain::access::{ApiToken, KeyLimits, MemberRole, Place};
use gpuaas_domain::decision::Change;
use gpuaas_domain::{Decision, Refusal, caps, tenancy};
use gpuaas_store::ApiTokenFilter;

use super::{Caller, PageRequest, check_cap, grants};
use crate::Control;
use crate::error::ControlError;
use crate::pki::secret_text;

/// A token or a key, and its secret: it is told once.
pub(crate) struct TokenWithSecret {
    /// The token.
    pub(crate) token: ApiToken,
    /// What its holder sends.
    pub(crate) secret: String,
}

/// Lists API tokens.
pub(crate) async fn list(
    control: &Control,
    filter: &ApiTokenFilter,
    page: &PageRequest<ApiTokenId>,
) -> Result<Page<ApiToken>, ControlError> {
    let found = control.store.api_token_list(filter, page.after, page.rows()).await?;
    Ok(page.cut(found, |token| token.id.to_string()))
}

/// Creates an API token with a role on the platform.
pub(crate) async fn create(control: &Control, caller: &Caller, wanted: ApiTokenCreate) -> Result<TokenWithSecret, ControlError> {
    let role = wanted.role;
    if wanted.name.is_empty() || wanted.name.len() > 100 || wanted.name.chars().any(char::is_control) {
        return Err(Refusal::invalid("name_invalid", "the name needs 1 to 100 printable bytes").into());
    }
    let context = caller.context();
    let life = wanted.life_seconds.map(std::time::Duration::from_secs);
    if life.is_some_and(|life| life.is_zero()) {
        return Err(Refusal::invalid("life_invalid", "a token lives at least a second").into());
    }
    grants::role_of_new_account(control, caller, Place::Platform, MemberRole::Platform(role))?;
    let wanted_limits = KeyLimits { scopes: None, expires_at: life.map(|life| context.now.plus(life)) };
    let (KeyLimits { scopes, expires_at }, parent) = grants::key(control, caller, wanted_limits).await?;
    let secret = secret_text("gpt_");
    let token = ApiToken {
        id: ApiTokenId::generate(),
        version: 0,
        name: wanted.name,
        role: Some(role),
        service_account: None,
        project: None,
        parent,
        created_by: Some(caller.principal.who),
        scopes,
        secret_digest: Digest::of(secret.as_bytes()),
        created_at: context.now,
        expires_at,
        revoked_at: None,
    };
    let event = Event::ApiTokenCreated(event::ApiTokenCreated {
        api_token_id: token.id,
        role: role.into(),
        name: token.name.clone(),
        parent_id: token.parent,
    });
    let decision = Decision::default().change(Change::ApiTokenInsert(token.clone())).record(&context, token.id, event);
    let attempt = || async {
        let present = control.store.api_token_count(&ApiTokenFilter::default(), context.now).await?;
        check_cap(control, caps::PLATFORM_TOKENS, present)?;
        Ok(((), decision.clone()))
    };
    caller.transact(control, attempt).await?;
    Ok(TokenWithSecret { token, secret })
}

/// Revokes an API token.
pub(crate) async fn revoke(control: &Control, caller: &Caller, id: ApiTokenId) -> Result<ApiToken, ControlError> {
    let context = caller.context();
    let unknown = || Refusal::not_found("api_token_unknown", format!("there is no API token {id}"));
    let attempt = || async {
        let token = control.store.api_token_get(id).await?.ok_or_else(unknown)?;
        Ok(tenancy::revoke_key(&token, &context))
    };
    caller.transact(control, attempt).await
}
