//! Resuming a link: proof that the agent process that opens a link is the one that held the previous link.
//!
//! Every welcome carries a new secret. The agent keeps it in memory only, so a copy of the agent's files does not include it, and the
//! secret of an earlier link proves nothing about a later one. A hello is proven with a MAC over the exporter of its own TLS connection
//! (RFC 8446, section 7.5), so a proof captured on one connection is worthless on another.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use zeroize::Zeroizing;

use crate::id::NodeId;

/// Label of the TLS exporter that binds a proof to its connection.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-gpuaas-link-v1";
/// Header of every long-poll request after the hello: [`ResumeSecret::request_key`].
pub const REQUEST_KEY_HEADER: &str = "gpuaas-session-key";

/// Exporter output of one TLS connection, the same at both ends.
pub type ChannelBinding = [u8; 32];

/// The secret of one link.
#[derive(Clone)]
pub struct ResumeSecret(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for ResumeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResumeSecret")
    }
}

/// What a proof states.
#[derive(Clone, Copy, Debug)]
pub struct ResumeClaim<'a> {
    /// The node that resumes its link.
    pub node_id: NodeId,
    /// The node's current epoch.
    pub node_epoch: u64,
    /// The previous session, which issued the secret.
    pub session_id: &'a str,
    /// The agent process that sends the hello.
    pub agent_instance_id: &'a str,
}

impl ResumeSecret {
    /// The secret with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret from a welcome; `None` if it does not have exactly 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self::new(bytes.try_into().ok()?))
    }

    /// The bytes, to be sent in a welcome.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Computes the proof for a hello on the connection with this binding.
    pub fn prove(&self, binding: &ChannelBinding, claim: &ResumeClaim<'_>) -> Vec<u8> {
        self.claim_mac(binding, claim).finalize().into_bytes().to_vec()
    }

    /// Whether `proof` is valid; takes constant time.
    pub fn is_proof(&self, binding: &ChannelBinding, claim: &ResumeClaim<'_>, proof: &[u8]) -> bool {
        self.claim_mac(binding, claim).verify_slice(proof).is_ok()
    }

    /// The key that every long-poll request of the session carries. Derived from the secret instead of the secret itself, so that a logged
    /// request does not give the link away.
    pub fn request_key(&self) -> String {
        STANDARD.encode(self.mac(b"gpuaas-link-request-v1").finalize().into_bytes())
    }

    /// Whether `given` is the request key of this session; takes constant time.
    pub fn is_request_key(&self, given: &str) -> bool {
        STANDARD.decode(given).is_ok_and(|given| self.mac(b"gpuaas-link-request-v1").verify_slice(&given).is_ok())
    }

    fn claim_mac(&self, binding: &ChannelBinding, claim: &ResumeClaim<'_>) -> Hmac<sha2::Sha256> {
        let ResumeClaim { node_id, node_epoch, session_id, agent_instance_id } = claim;
        // The lengths make the encoding unambiguous: no two claims encode to the same text.
        let text = format!(
            "gpuaas-link-resume-v1\n{node_id}\n{node_epoch}\n{}:{session_id}\n{}:{agent_instance_id}\n",
            session_id.len(),
            agent_instance_id.len()
        );
        let mut mac = self.mac(text.as_bytes());
        mac.update(binding);
        mac
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<sha2::Sha256> {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(self.0.as_slice())
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        mac.update(bytes);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_own_connection_session_process_and_secret_only() {
        let (secret, binding, node_id) = (ResumeSecret::new([1; 32]), [2; 32], NodeId::generate());
        let claim = ResumeClaim { node_id, node_epoch: 3, session_id: "s", agent_instance_id: "a" };
        let proof = secret.prove(&binding, &claim);
        assert!(secret.is_proof(&binding, &claim, &proof));
        assert!(!secret.is_proof(&[3; 32], &claim, &proof), "another connection");
        assert!(!ResumeSecret::new([2; 32]).is_proof(&binding, &claim, &proof), "another secret");
        for other in [
            ResumeClaim { node_id: NodeId::generate(), ..claim },
            ResumeClaim { node_epoch: 4, ..claim },
            ResumeClaim { session_id: "t", ..claim },
            ResumeClaim { agent_instance_id: "b", ..claim },
            ResumeClaim { session_id: "s\n1:a", agent_instance_id: "", ..claim },
        ] {
            assert!(!secret.is_proof(&binding, &other, &proof), "{other:?}");
        }
        for cut in [&[][..], &proof[..31]] {
            assert!(!secret.is_proof(&binding, &claim, cut));
        }
    }

    #[test]
    fn the_key_of_requests_is_not_the_secret_and_differs_between_sessions() {
        let (one, two) = (ResumeSecret::new([1; 32]), ResumeSecret::new([2; 32]));
        assert!(one.is_request_key(&one.request_key()) && !one.is_request_key(&two.request_key()));
        assert!(!one.is_request_key("") && !one.is_request_key(&STANDARD.encode(one.as_bytes())));
    }
}
