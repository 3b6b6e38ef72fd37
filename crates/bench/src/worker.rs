//! A simulated agent: verifies envelopes as an agent does, and answers with a signed and chained receipt.
//!
//! It keeps no journal and runs nothing, so that thousands of them fit on the same machine as the measured server.

use std::time::Instant;

use gpuaas_contract::Digest;
use gpuaas_contract::envelope;
use gpuaas_contract::id::{AgentInstanceId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::{Ack, Grant, Offer, SignedReceipt, TaskPhase, from_node};
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::VerifierSet;

use crate::Result;
use crate::answers::{self, Answered};

/// What a node needs to answer tasks. It outlives the node's links, because receipts form a chain.
pub(crate) struct Worker {
    key: SigningKey,
    instance: AgentInstanceId,
    keys: VerifierSet,
    sequence: u64,
    previous: Option<Digest>,
}

/// A task whose receipt the control plane has stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) task: TaskId,
    /// When the handler would have started.
    pub(crate) started: Instant,
    pub(crate) stored: Instant,
}

/// Everything that a node sends about a task.
pub(crate) struct Answer {
    pub(crate) task: TaskId,
    pub(crate) acks: [Ack; 2],
    pub(crate) receipt: SignedReceipt,
}

impl Answer {
    /// Returns the messages in the order in which a stream sends them.
    pub(crate) fn messages(self) -> [from_node::Message; 3] {
        let [accepted, started] = self.acks;
        [from_node::Message::Ack(accepted), from_node::Message::Ack(started), from_node::Message::Receipt(self.receipt)]
    }
}

impl Worker {
    pub(crate) fn new(grant: &Grant, key: SigningKey, instance: AgentInstanceId) -> Result<Self> {
        let keys = VerifierSet::open(&grant.verifier_set, &grant.root_key, grant.cluster_id)?;
        Ok(Self { key, instance, keys, sequence: 0, previous: None })
    }

    /// Verifies an offer and answers it as if the task had run.
    pub(crate) fn answer(&mut self, grant: &Grant, offer: &Offer) -> Result<Answer> {
        let now = Timestamp::now();
        let expect = envelope::Expectation {
            keys: &self.keys,
            cluster_id: grant.cluster_id,
            node_id: grant.node_id,
            node_epoch: grant.node_epoch,
            now,
            highest_seen: now,
        };
        let verified = envelope::verify(&offer.envelope, &expect)?;
        let Answered { output, proof } = answers::to(verified.task(), now)?;
        let order = verified.payload();
        let payload = receipt::Payload {
            cluster_id: order.cluster_id,
            node_id: order.node_id,
            node_epoch: order.node_epoch,
            task_id: order.task_id,
            task_type: order.task_type.clone(),
            task_digest: verified.digest().clone(),
            agent_instance_id: self.instance,
            boot_id: "bench".to_owned(),
            attempt: 1,
            started_at: Some(now),
            finished_at: now,
            outcome: Outcome::Succeeded,
            code: "ok".to_owned(),
            message: String::new(),
            output: Some(serde_json::value::to_raw_value(&output)?),
            phases: Vec::new(),
            cleanup_proof: proof.map(|proof| serde_json::value::to_raw_value(&proof)).transpose()?,
            sequence: self.sequence + 1,
            previous_receipt: self.previous.clone(),
        };
        let signed = payload.sign(&self.key);
        self.sequence = payload.sequence;
        self.previous = Some(signed.digest);
        let ack = |phase: TaskPhase| Ack { task_id: offer.task_id.clone(), phase: phase.into(), at_us: now.0 };
        Ok(Answer {
            task: order.task_id,
            acks: [ack(TaskPhase::Accepted), ack(TaskPhase::Started)],
            receipt: SignedReceipt { task_id: offer.task_id.clone(), receipt: signed.receipt },
        })
    }
}
