//! The cluster as a whole, and the catalog of tasks.

use gpuaas_contract::id::ClusterId;
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// The installation: its identity, version and certificate authority.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ClusterInfo {
    /// Id of the cluster.
    pub cluster_id: ClusterId,
    /// Pin of the CA: hex SHA-256 of its root certificate (DER).
    pub ca_sha256: String,
    /// The certificate authority of nodes and listeners.
    pub ca: CaInfo,
    /// The key that signs verifier sets: pin it to verify tasks offline.
    #[schemars(with = "String")]
    pub root_key: VerifyingKey,
    /// Version of the server.
    pub version: String,
    /// Address that agents connect to, `host:port`.
    pub link_address: String,
    /// The TLS listeners of the server process that answers the request.
    #[serde(default)]
    pub listeners: Vec<ListenerInfo>,
    /// `sqlite` or `postgres`.
    pub store: String,
    /// Current time of the server.
    #[serde(with = "Rfc3339")]
    pub server_time: Timestamp,
}

/// A listener of a server process, with the certificate that it presents.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ListenerInfo {
    /// `link`, where agents connect, or `api`.
    pub listener: String,
    /// Since when its certificate is valid.
    #[serde(with = "Rfc3339")]
    pub certificate_issued_at: Timestamp,
    /// When its certificate expires.
    #[serde(with = "Rfc3339")]
    pub certificate_expires_at: Timestamp,
    /// When the server replaces it; absent for a certificate from a file, which an operator replaces.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "OptionalRfc3339")]
    pub certificate_renews_at: Option<Timestamp>,
    /// Why the last attempt to replace it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal_error: Option<String>,
}

/// The certificate authority of a cluster.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CaInfo {
    /// `built-in` or `step-ca`.
    pub kind: String,
    /// Whether it answers.
    pub state: CaState,
    /// Why the CA does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When the CA was last checked.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "OptionalRfc3339")]
    pub checked_at: Option<Timestamp>,
    /// When the enrollment certificate of the control plane expires; absent if it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "OptionalRfc3339")]
    pub credential_expires_at: Option<Timestamp>,
}

/// Whether the certificate authority answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaState {
    /// It answers.
    Available,
    /// It does not answer. Existing certificates are valid until they expire.
    Unavailable,
    /// Not checked yet.
    Unknown,
}

/// A task type, with the schemas of its parameters and output.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskTypeInfo {
    /// Name of the task type.
    pub task_type: String,
    /// Summary.
    pub summary: String,
    /// Whether the task changes the host.
    pub changes_host: bool,
    /// JSON Schema of the parameters.
    pub params: serde_json::Value,
    /// JSON Schema of the output.
    pub output: serde_json::Value,
}

impl From<gpuaas_contract::schema::TaskSchema> for TaskTypeInfo {
    fn from(schema: gpuaas_contract::schema::TaskSchema) -> Self {
        Self {
            task_type: schema.task_type.as_str().to_owned(),
            summary: schema.summary.to_owned(),
            changes_host: schema.changes_host,
            params: schema.params.into(),
            output: schema.output.into(),
        }
    }
}
