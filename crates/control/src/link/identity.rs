//! Authenticates a node by its client certificate.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::node::{Node, NodeService};

use crate::Control;
use crate::error::ControlError;
use crate::http::problem::Rejected;
use crate::listener::ClientCertificate;
use crate::pki::{NodeRecord, Peer, peer_of};

/// Reads the certificate, and checks that a node in the path is this one.
pub(super) fn peer(control: &Control, certificate: &ClientCertificate, path: Option<NodeId>) -> Result<Peer, ControlError> {
    let Some(tls) = &certificate.0 else {
        let message = "this needs the node's client certificate; enroll the host with `gpuaas-agent enroll`".to_owned();
        return Err(ControlError::Unauthenticated { code: "certificate_required", message });
    };
    let peer = peer_of(tls, control.cluster_id)
        .map_err(|error| ControlError::Unauthenticated { code: "certificate_not_a_node", message: error.to_string() })?;
    if let Some(path) = path.filter(|path| *path != peer.node_id) {
        let message = format!("the certificate is for {}, the path names {path}", peer.node_id);
        return Err(Refusal::forbidden("node_mismatch", message).into());
    }
    check_still_good(control, &peer)?;
    Ok(peer)
}

/// Lets only nodes pass, before the request's body is read: theirs may be large.
pub(super) async fn required(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    let certificate = request.extensions().get::<ClientCertificate>().cloned().unwrap_or(ClientCertificate(None));
    match peer(&control, &certificate, None) {
        Ok(_) => next.run(request).await,
        Err(failure) => Rejected(failure).into_response(),
    }
}

/// Checks on every message that the certificate is neither expired nor on the deny-list.
pub(super) fn check_still_good(control: &Control, peer: &Peer) -> Result<(), ControlError> {
    if control.denied.contains(&peer.serial) {
        let message = "this certificate was revoked; enroll the host again with a new join token".to_owned();
        return Err(ControlError::Unauthenticated { code: "certificate_revoked", message });
    }
    if Timestamp::now() > peer.not_after {
        let message = "this certificate has expired; the agent must renew it or rejoin".to_owned();
        return Err(ControlError::Unauthenticated { code: "certificate_expired", message });
    }
    Ok(())
}

/// Returns the node of a certificate, if it may have a link now. Reads the store, so it is called only at the start of a session.
pub(super) async fn node(control: &Control, peer: &Peer) -> Result<Node, ControlError> {
    let revoked = || ControlError::Unauthenticated {
        code: "certificate_revoked",
        message: "this certificate no longer counts; enroll the host again with a new join token".to_owned(),
    };
    // A certificate of our CA that is not in the store was not issued by this control plane, so it is refused.
    let (certificate, node) =
        tokio::try_join!(control.store.certificate_get(&peer.serial), control.store.node_get(peer.node_id))?;
    let (certificate, node) = certificate.zip(node).ok_or_else(revoked)?;
    match node.service {
        NodeService::Locked => {
            let message = format!("node {} is locked: {}; enroll the machine again", node.id, node.service_reason);
            return Err(Refusal::forbidden("node_locked", message).into());
        }
        NodeService::Retired => return Err(Refusal::forbidden("node_retired", format!("node {} was retired", node.id)).into()),
        NodeService::InService | NodeService::Draining | NodeService::Quarantined => {}
    }
    // A holder of the CA's key can copy a serial number, but not the node's own key.
    if node.tls_key_digest != peer.key_digest {
        tracing::error!(node = %node.id, serial = %peer.serial, "a certificate with another key than the node's was shown: the CA's key may have leaked");
        let message = "this certificate is for another key than the one the node enrolled with; enroll the host again".to_owned();
        return Err(ControlError::Unauthenticated { code: "certificate_key_mismatch", message });
    }
    if certificate.revoked_at.is_some() || certificate.node_id != node.id || certificate.node_epoch != node.epoch {
        return Err(revoked());
    }
    if !NodeRecord::matches(&node, control.cluster_id, &control.keys.root_key()).unwrap_or(false) {
        tracing::error!(node = %node.id, "the node's row does not match its signed record: the database was manipulated");
        let message =
            format!("the stored keys of node {} were changed outside the control plane; enroll the machine again", node.id);
        return Err(Refusal::forbidden("node_record_forged", message).into());
    }
    Ok(node)
}
