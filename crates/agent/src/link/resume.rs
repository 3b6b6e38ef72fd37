//! The secret of the last link, which proves that the next one comes from the same process.
//!
//! It is kept in memory only: a copy of the agent's files does not have it, and a restarted agent starts without it.

use std::sync::{Mutex, PoisonError};

use gpuaas_contract::id::NodeId;
use gpuaas_contract::link::{Hello, Welcome};
use gpuaas_contract::resume::{ChannelBinding, ResumeClaim, ResumeSecret};

/// The secret that this process can prove.
#[derive(Debug)]
pub(crate) struct Resume {
    node_id: NodeId,
    held: Mutex<Option<HeldLink>>,
}

#[derive(Clone, Debug)]
struct HeldLink {
    session_id: String,
    secret: ResumeSecret,
}

impl Resume {
    /// Creates the state before the first welcome, without a secret.
    pub(crate) fn new(node_id: NodeId) -> Self {
        Self { node_id, held: Mutex::default() }
    }

    /// Proves that `hello`, on the connection with this binding, comes from the process that held the last link.
    pub(super) fn prove(&self, hello: &mut Hello, binding: Option<&ChannelBinding>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(held), Some(binding)) = (held, binding) else { return };
        let claim = ResumeClaim {
            node_id: self.node_id,
            node_epoch: hello.node_epoch,
            session_id: &held.session_id,
            agent_instance_id: &hello.agent_instance_id,
        };
        hello.resume_proof = held.secret.prove(binding, &claim);
        hello.resume_session = held.session_id;
    }

    /// Takes the secret from a welcome; the previous one is no longer valid. Returns it for the requests of the session.
    pub(super) fn take(&self, welcome: &mut Welcome) -> Option<ResumeSecret> {
        let bytes = zeroize::Zeroizing::new(std::mem::take(&mut welcome.resume_secret));
        let secret = ResumeSecret::from_slice(&bytes);
        let held = secret.clone().map(|secret| HeldLink { session_id: welcome.session_id.clone(), secret });
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        secret
    }
}
