//! What a caller may hand on: the rules are in `gpuaas_domain::access`, here they meet the rows.

use gpuaas_contract::id::{ApiTokenId, OrgId};
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{self, KeyLimits, MAX_KEY_CHAIN, MemberRole, Place, Principal};
use gpuaas_domain::tenancy::ServiceAccount;

use super::Caller;
use crate::error::ControlError;
use crate::{Control, authz_cache};

/// The limits of a new key that the caller wants, and the key it is made with.
pub(super) async fn key(
    control: &Control,
    caller: &Caller,
    wanted: KeyLimits,
) -> Result<(KeyLimits, Option<ApiTokenId>), ControlError> {
    let limits = KeyLimits::of(&caller.principal).child(wanted)?;
    let parent = caller.actor.key();
    let (mut above, mut length) = (parent, 1_usize);
    while let Some(id) = above {
        length = length.saturating_add(1);
        if length > MAX_KEY_CHAIN {
            let message = format!(
                "at most {MAX_KEY_CHAIN} keys can be made with one another in a row; make it with an earlier key, or sign in as a person"
            );
            return Err(Refusal::conflict("key_chain_too_long", message).into());
        }
        above = control.store.api_token_get(id).await?.and_then(|key| key.parent);
    }
    Ok((limits, parent))
}

/// The limits of a new key of this service account, and the key it is made with. It has no permission that the caller lacks.
pub(super) async fn key_of_account(
    control: &Control,
    caller: &Caller,
    account: &ServiceAccount,
    wanted: KeyLimits,
) -> Result<(KeyLimits, Option<ApiTokenId>), ControlError> {
    let (limits, parent) = key(control, caller, wanted).await?;
    let roles = authz_cache::of_account(control, account.id).await?;
    let holder = Principal { scopes: limits.scopes.clone(), ..roles };
    access::check_key(&control.authz.policies, &caller.principal, &holder, caller.scope)?;
    Ok((limits, parent))
}

/// Refuses to make a service account with a role that the caller may not give.
pub(super) fn role_of_new_account(control: &Control, caller: &Caller, at: Place, role: MemberRole) -> Result<(), ControlError> {
    Ok(access::check_role(&control.authz.policies, &caller.principal, at, organization(caller), role)?)
}

/// Refuses to give somebody a role that the caller may not give.
pub(super) fn role(control: &Control, caller: &Caller, at: Place, role: MemberRole) -> Result<(), ControlError> {
    role_of_new_account(control, caller, at, role)?;
    Ok(access::check_role_life(&caller.principal)?)
}

/// The organization that the request is about, or in.
fn organization(caller: &Caller) -> Option<OrgId> {
    match caller.scope {
        access::Scope::Platform => None,
        access::Scope::Organization(organization) | access::Scope::Project { organization, .. } => Some(organization),
    }
}
