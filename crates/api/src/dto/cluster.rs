//! The cluster as a whole, and what its nodes can be asked to do.

use gpuaas_contract::id::ClusterId;
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::time::Timestamp;

/// What a client needs to know about the installation it talks to.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ClusterInfo {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// Pin of the built-in CA: hex SHA-256 of its certificate (DER).
    pub ca_sha256: String,
    /// The key that signs verifier sets: pin it to verify tasks offline.
    #[schemars(with = "String")]
    pub root_key: VerifyingKey,
    /// Version of the server.
    pub version: String,
    /// Where agents connect to, `host:port`.
    pub link_address: String,
    /// `sqlite` or `postgres`.
    pub store: String,
    /// The server's clock.
    pub server_time: Timestamp,
}

/// One kind of task, with the schemas of its params and output.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskTypeInfo {
    /// Name of the kind.
    pub task_type: String,
    /// One sentence for people.
    pub summary: String,
    /// Whether running it changes anything on the host.
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
