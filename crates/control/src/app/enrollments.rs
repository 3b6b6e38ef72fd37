//! Enrollment, from the operator's side: requests to enroll, and join tokens.

use std::time::Duration;

use gpuaas_api::dto::{JoinTokenCreate, Page};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{EnrollmentId, JoinTokenId, NodeId};
use gpuaas_domain::Refusal;
use gpuaas_domain::enrollment::{self, Enrollment, EnrollmentState, Existing, JoinToken, NewJoinToken, TOKEN_LIFE};
use gpuaas_domain::node::Node;

use super::{Caller, PageRequest, nodes};
use crate::Control;
use crate::error::ControlError;
use crate::link::enroll::{applicant_of, is_same_host};
use crate::pki::secret_text;

/// Lists requests to enroll, in one state if asked for.
pub(crate) async fn list(
    control: &Control,
    state: Option<EnrollmentState>,
    page: &PageRequest<EnrollmentId>,
) -> Result<Page<Enrollment>, ControlError> {
    let found = control.store.enrollment_list(state, page.after, page.rows()).await?;
    Ok(page.cut(found, |enrollment| enrollment.id.to_string()))
}

/// The request with this id.
pub(crate) async fn get(control: &Control, id: EnrollmentId) -> Result<Enrollment, ControlError> {
    let unknown = || Refusal::not_found("enrollment_unknown", format!("there is no enrollment {id}"));
    Ok(control.store.enrollment_get(id).await?.ok_or_else(unknown)?)
}

/// The node that the host is already, by its fingerprint, and whether it has that node's keys.
pub(crate) async fn existing_node(control: &Control, enrollment: &Enrollment) -> Result<Option<(Node, bool)>, ControlError> {
    let Some(node) = control.store.node_by_fingerprint(&enrollment.fingerprint).await? else { return Ok(None) };
    let same_keys = is_same_host(&node, &applicant_of(enrollment))?;
    Ok(Some((node, same_keys)))
}

/// Lets a host in, as a node of its own or in place of one.
pub(crate) async fn approve(
    control: &Control,
    caller: &Caller,
    id: EnrollmentId,
    replace_node: Option<NodeId>,
) -> Result<Enrollment, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let enrollment = get(control, id).await?;
        let known = existing_node(control, &enrollment).await?;
        let known = known.as_ref().map(|(node, same_keys)| Existing { node, same_keys: *same_keys });
        Ok(((), enrollment::approve(&enrollment, known, replace_node, &context)?))
    };
    caller.transact(control, attempt).await?;
    get(control, id).await
}

/// Keeps a host out.
pub(crate) async fn reject(
    control: &Control,
    caller: &Caller,
    id: EnrollmentId,
    reason: &str,
) -> Result<Enrollment, ControlError> {
    let context = caller.context();
    caller.transact(control, || async { Ok(((), enrollment::reject(&get(control, id).await?, reason, &context)?)) }).await?;
    get(control, id).await
}

/// Lists join tokens.
pub(crate) async fn token_list(control: &Control, page: &PageRequest<JoinTokenId>) -> Result<Page<JoinToken>, ControlError> {
    let found = control.store.join_token_list(page.after, page.rows()).await?;
    Ok(page.cut(found, |token| token.id.to_string()))
}

/// A join token, and its secret: it is told once.
pub(crate) struct JoinTokenWithSecret {
    /// The token.
    pub(crate) join_token: JoinToken,
    /// What a host enrolls with: the secret, and the pin of the CA.
    pub(crate) token: String,
}

/// Creates a join token.
pub(crate) async fn token_create(
    control: &Control,
    caller: &Caller,
    wanted: &JoinTokenCreate,
) -> Result<JoinTokenWithSecret, ControlError> {
    let context = caller.context();
    let (id, secret) = (JoinTokenId::generate(), secret_text("gpj_"));
    let life = wanted.life_seconds.map_or(TOKEN_LIFE, Duration::from_secs);
    if let Some(node) = wanted.replace_node {
        nodes::get(control, node).await?;
    }
    let digest = Digest::of(secret.as_bytes());
    let (note, uses) = (wanted.note.as_str(), wanted.uses.unwrap_or(1));
    let new = NewJoinToken { note, life, uses, replace_node: wanted.replace_node };
    let decision = enrollment::token_create(id, digest, &new, &context)?;
    caller.transact(control, || async { Ok(((), decision.clone())) }).await?;
    let join_token = token_get(control, id).await?;
    Ok(JoinTokenWithSecret { join_token, token: format!("{secret}.{}", control.ca.pin()) })
}

/// Revokes a join token.
pub(crate) async fn token_revoke(control: &Control, caller: &Caller, id: JoinTokenId) -> Result<JoinToken, ControlError> {
    let context = caller.context();
    let attempt = || async { Ok(((), enrollment::token_revoke(&token_get(control, id).await?, &context)?)) };
    caller.transact(control, attempt).await?;
    token_get(control, id).await
}

async fn token_get(control: &Control, id: JoinTokenId) -> Result<JoinToken, ControlError> {
    let unknown = || Refusal::not_found("join_token_unknown", format!("there is no join token {id}"));
    Ok(control.store.join_token_get(id).await?.ok_or_else(unknown)?)
}
