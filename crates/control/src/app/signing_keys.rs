//! The keys that sign tasks.

use gpuaas_contract::event::{Event, SigningKeyChanged};
use gpuaas_contract::key::KeyId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::{Decision, Refusal};

use super::Caller;
use crate::Control;
use crate::error::ControlError;
use crate::pki::KeyRingError;

/// Makes the next key known to nodes, before it signs anything.
pub(crate) async fn stage(control: &Control, caller: &Caller) -> Result<(), ControlError> {
    let staged = control.keys.stage(Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: Some(staged.clone()), active: None, revoked: None, reason: None };
    changed(control, caller, &staged, change).await
}

/// Lets the next key sign from now on.
pub(crate) async fn rotate(control: &Control, caller: &Caller) -> Result<(), ControlError> {
    let active = control.keys.rotate(Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: None, active: Some(active.clone()), revoked: None, reason: None };
    changed(control, caller, &active, change).await
}

/// Revokes a key: nothing that it signed counts any more.
pub(crate) async fn revoke(control: &Control, caller: &Caller, key: &KeyId, reason: String) -> Result<(), ControlError> {
    let active = control.keys.revoke(key, Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: None, active: Some(active), revoked: Some(key.clone()), reason: Some(reason) };
    changed(control, caller, key, change).await
}

/// Records it and tells every connected node; the others hear of it when they say hello.
async fn changed(control: &Control, caller: &Caller, key: &KeyId, change: SigningKeyChanged) -> Result<(), ControlError> {
    let decision = Decision::default().record(&caller.context(), key, Event::SigningKeyChanged(change));
    caller.transact(control, || async { Ok(((), decision.clone())) }).await?;
    let (version, document) = control.keys.set_document();
    for session in control.hub.all() {
        session.tell_verifier_set(version, &document);
    }
    Ok(())
}

fn key_failure(error: KeyRingError) -> ControlError {
    match error {
        KeyRingError::Unknown(_) => Refusal::not_found("signing_key_unknown", error.to_string()).into(),
        KeyRingError::File(_) | KeyRingError::Set(_) | KeyRingError::ActiveKeyMissing(_) => {
            ControlError::Internal(crate::link::chain(&error))
        }
    }
}
