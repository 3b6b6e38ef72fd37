//! The two doors: join tokens, and requests that wait for an operator.

use gpuaas_contract::id::{EnrollmentId, JoinTokenId, NodeId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{EnrollmentState, EnrollmentStatus, JoinTokenState, NodeService};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A host's request to be enrolled.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Enrollment {
    /// Its id.
    pub id: EnrollmentId,
    /// Where it stands.
    pub state: Open<EnrollmentStatus>,
    /// Who asked. Not proven: compare the receipt key with what the agent printed.
    pub email: String,
    /// Hardware identity of the host.
    pub fingerprint: String,
    /// The host's receipt key.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// What the host says about itself.
    pub facts: HostFacts,
    /// Where the host asked from: an IPv4 address, or the /64 of an IPv6 address.
    #[serde(default)]
    pub address: String,
    /// The operator's words, if rejected.
    pub reason: String,
    /// The node it became.
    #[serde(default)]
    pub node_id: Option<NodeId>,
    /// The node that has this fingerprint already; approving takes it over. Only of requests that are open.
    #[serde(default)]
    pub existing_node: Option<ExistingNode>,
    /// The node that an operator said it may take over.
    #[serde(default)]
    pub replace_node: Option<NodeId>,
    /// When the host asked.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When the request lapses.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
}

/// A node that a host which asks to be enrolled is already, by its fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ExistingNode {
    /// The node.
    pub id: NodeId,
    /// Its name, which may be another than the host's.
    pub name: String,
    /// Whether it takes work.
    pub service: Open<NodeService>,
    /// It has an open link now.
    pub online: bool,
    /// The host that asks has other keys than the node: approving ends the node's identity.
    pub keys_differ: bool,
    /// Approving needs `replace_node`.
    pub needs_replace: bool,
}

/// An operator's yes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentApprove {
    /// Why; kept in the audit log.
    #[serde(default)]
    pub reason: String,
    /// The node that the host may take over: exactly the one in `existing_node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_node: Option<NodeId>,
}

/// Which requests to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentListQuery {
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<EnrollmentState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A single-use join token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct JoinToken {
    /// Its id.
    pub id: JoinTokenId,
    /// Whether it can be used.
    pub state: Open<JoinTokenState>,
    /// What the operator wants it for.
    pub note: String,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it lapses.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
    /// When it was used.
    #[serde(default, with = "OptionalRfc3339")]
    pub used_at: Option<Timestamp>,
    /// By which node.
    #[serde(default)]
    pub used_by: Option<NodeId>,
    /// When an operator took it back.
    #[serde(default, with = "OptionalRfc3339")]
    pub revoked_at: Option<Timestamp>,
    /// The node that a host may take over with it.
    #[serde(default)]
    pub replace_node: Option<NodeId>,
}

/// A join token to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinTokenCreate {
    /// What it is for.
    #[serde(default)]
    pub note: String,
    /// How long it is good for; 15 minutes unless less is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
    /// The node that a host may take over with it; without one it enrolls new machines only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_node: Option<NodeId>,
}

/// A new join token. The only answer that ever holds its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct JoinTokenCreated {
    /// The token as it is kept.
    pub join_token: JoinToken,
    /// The whole text, `gpj_<secret>.<pin of the CA>`. Shown once.
    pub token: String,
    /// The command to run on the host.
    pub enroll_command: String,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for JoinTokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinTokenCreated").field("join_token", &self.join_token).finish_non_exhaustive()
    }
}
