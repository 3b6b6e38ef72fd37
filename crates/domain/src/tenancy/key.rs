//! Revocation of service account keys and platform tokens.

use gpuaas_contract::event::{ApiKeyRevoked, ApiTokenRevoked, Event};

use crate::access::ApiToken;
use crate::decision::{Change, Context, Decision, Wakeup};

/// Revokes a key of a service account or a platform token. Idempotent.
pub fn revoke_key(key: &ApiToken, context: &Context) -> (ApiToken, Decision) {
    if key.revoked_at.is_some() {
        return (key.clone(), Decision::default());
    }
    let revoked = ApiToken { revoked_at: Some(context.now), ..key.clone() };
    let event = match (key.service_account, key.project) {
        (Some(service_account_id), Some(project_id)) => {
            Event::ApiKeyRevoked(ApiKeyRevoked { api_token_id: key.id, service_account_id, project_id })
        }
        (Some(_) | None, _) => Event::ApiTokenRevoked(ApiTokenRevoked { api_token_id: key.id }),
    };
    let decision = Decision::default().change(Change::ApiTokenUpdate(revoked.clone())).wakeup(Wakeup::Rights);
    (revoked, decision.record(context, key.id, event))
}
