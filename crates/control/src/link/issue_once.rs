//! One certificate per enrollment request.
//!
//! A decision is repeated after a conflict, but the request to a CA is not: another program signs and remembers each certificate,
//! and an unused one would be a stray credential.

use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::{Certificate, Node};
use tokio::sync::Mutex;

use crate::pki::{Ca, CaError, Issued};

/// The certificate of one request, once it is issued.
pub(super) struct IssueOnce<'a> {
    ca: &'a Ca,
    issued: Mutex<Option<Issued>>,
}

impl<'a> IssueOnce<'a> {
    /// Creates the state without a certificate.
    pub(super) fn new(ca: &'a Ca) -> Self {
        Self { ca, issued: Mutex::new(None) }
    }

    /// Returns the certificate for this node: issued now, or by an earlier attempt of the same request.
    pub(super) async fn issue(&self, node: &Node, csr_pem: &str, now: Timestamp) -> Result<Issued, CaError> {
        let mut issued = self.issued.lock().await;
        if let Some(Issued { pem, certificate }) = issued.as_ref().filter(|issued| issued.certificate.node_id == node.id) {
            // The epoch is only in the store; the certificate does not contain it.
            let certificate = Certificate { node_epoch: node.epoch, ..certificate.clone() };
            return Ok(Issued { pem: pem.clone(), certificate });
        }
        let made = self.ca.issue_node(csr_pem, node.id, node.epoch, now).await?;
        *issued = Some(made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use gpuaas_contract::Digest;
    use gpuaas_contract::id::{ClusterId, CorrelationId, NodeId};
    use gpuaas_contract::key::SigningKey;
    use gpuaas_contract::telemetry::HostFacts;
    use gpuaas_domain::Actor;
    use gpuaas_domain::decision::Context;
    use gpuaas_domain::node::{self, Admission};

    use super::*;
    use crate::pki::CaConfig;

    fn enrolled(context: &Context) -> Node {
        let admission = Admission {
            fingerprint: "a-test-machine-of-its-own".to_owned(),
            receipt_key: SigningKey::from_seed(&[7; 32]).verifying_key(),
            tls_key_digest: Digest::of(b"key"),
            facts: HostFacts::default(),
        };
        node::enroll(None, admission, NodeId::generate(), context).0
    }

    #[tokio::test]
    async fn a_decision_that_is_made_anew_keeps_the_certificate_that_was_made_for_it() {
        let (dir, now) = (gpuaas_testkit::TempDir::new(), Timestamp::now());
        let ca = Ca::open(&CaConfig::BuiltIn, dir.path(), ClusterId::generate(), now, Default::default()).await.unwrap();
        let context = Context { now, actor: Actor::System, correlation_id: CorrelationId::generate() };
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let (certificate, node) = (IssueOnce::new(&ca), enrolled(&context));
        let first = certificate.issue(&node, &csr, now).await.unwrap();
        // Another writer was faster: the machine was enrolled again in the meantime.
        let again = certificate.issue(&Node { epoch: 2, ..node }, &csr, now).await.unwrap();
        assert_eq!((&first.pem, &first.certificate.serial), (&again.pem, &again.certificate.serial));
        assert_eq!((first.certificate.node_epoch, again.certificate.node_epoch), (1, 2));
        // Never for another node.
        let other = certificate.issue(&enrolled(&context), &csr, now).await.unwrap();
        assert_ne!(other.certificate.node_id, first.certificate.node_id);
        assert_ne!(other.certificate.serial, first.certificate.serial);
    }
}
