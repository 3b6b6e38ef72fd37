//! Typed ids: UUIDv7 with a readable prefix, one Rust type per kind.

use std::fmt;
use std::str::FromStr;

/// The text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind} id: expected `{prefix}` and 32 lower-case hex digits")]
pub struct BadId {
    /// The expected kind, for the error message.
    pub kind: &'static str,
    /// The prefix that ids of this kind have.
    pub prefix: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Prefix of the text form.
            pub const PREFIX: &'static str = $prefix;

            /// A new id; sorts after all ids that were generated before.
            pub fn generate() -> Self {
                Self(fresh())
            }

            /// The id with exactly these bytes, for test vectors and tests.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(uuid::Uuid::from_bytes(bytes))
            }

            /// The 16 bytes behind the text form.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                parse($prefix, text).map(Self).ok_or(BadId { kind: $kind, prefix: $prefix })
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": concat!("^", $prefix, "[0-9a-f]{32}$") })
            }
        }
    )*};
}

ids! {
    /// One installation of the control plane; the SPIFFE trust domain.
    ClusterId, "cluster", "cluster_";
    /// An enrolled host.
    NodeId, "node", "node_";
    /// One typed operation on one node.
    TaskId, "task", "task_";
    /// A host's request to be enrolled, waiting for an operator.
    EnrollmentId, "enrollment", "enroll_";
    /// A join token (the secret itself is never stored).
    JoinTokenId, "join token", "join_";
    /// An allocation, which a tenant leases.
    AllocationId, "allocation", "alloc_";
    /// A GPU with its drive and fabric function, the unit of slicing.
    SlotId, "slot", "slot_";
    /// A link session: one link from hello to its end.
    SessionId, "session", "sess_";
    /// One start of an agent process.
    AgentInstanceId, "agent instance", "inst_";
    /// One start of a server process.
    ServerId, "server", "srv_";
    /// An outbox event.
    EventId, "event", "evt_";
    /// An API token (the secret itself is never stored).
    ApiTokenId, "API token", "apitok_";
    /// An organization, which owns projects.
    OrgId, "organization", "org_";
    /// A project of an organization, which owns allocations.
    ProjectId, "project", "proj_";
    /// A person who signs in.
    UserId, "user", "user_";
    /// A service account: a program that acts for a project with API keys.
    ServiceAccountId, "service account", "sa_";
    /// A membership: one role of one user or service account.
    MembershipId, "membership", "member_";
    /// One sign-in of one user, with all tokens that were issued for it.
    GrantId, "grant", "grant_";
    /// A priced product of the catalog.
    SkuId, "SKU", "sku_";
    /// An image that guests are created from.
    ImageId, "image", "img_";
    /// A stored SSH key of a project.
    SshKeyId, "SSH key", "sshkey_";
    /// A webhook, which receives the events of a project.
    WebhookId, "webhook", "hook_";
    /// A delivery of an event to a webhook.
    DeliveryId, "delivery", "dlv_";
    /// A maintenance window, in which operators may disturb nodes.
    MaintenanceId, "maintenance window", "maint_";
}

/// A new UUIDv7.
fn fresh() -> uuid::Uuid {
    #[cfg(feature = "simulation")]
    if let Some(simulated) = crate::simulation::uuid() {
        return simulated;
    }
    uuid::Uuid::now_v7()
}

/// Accepts only the canonical form, so that an id has exactly one spelling and one row.
fn parse(prefix: &str, text: &str) -> Option<uuid::Uuid> {
    let hex = text.strip_prefix(prefix)?;
    let canonical = hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if canonical { uuid::Uuid::try_parse(hex).ok() } else { None }
}

/// Follows one request from the CLI to the agent's log. Chosen by the caller, or generated by the server.
#[derive(Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CorrelationId(String);

impl CorrelationId {
    /// Maximum length in bytes.
    pub const MAX_LEN: usize = 64;

    /// A new correlation id.
    pub fn generate() -> Self {
        Self(format!("corr_{}", fresh().simple()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CorrelationId {
    type Error = BadCorrelationId;

    fn try_from(text: String) -> Result<Self, BadCorrelationId> {
        // It is written into log lines and headers, so it must be printable and contain no separators.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if (1..=Self::MAX_LEN).contains(&text.len()) && text.bytes().all(plain) { Ok(Self(text)) } else { Err(BadCorrelationId) }
    }
}

impl From<CorrelationId> for String {
    fn from(id: CorrelationId) -> String {
        id.0
    }
}

/// The text has a forbidden character or length.
#[derive(Debug, thiserror::Error)]
#[error("a correlation id is 1 to 64 letters, digits, `_`, `-` or `.`")]
pub struct BadCorrelationId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_itself_and_only_as_its_own_kind() {
        let id = NodeId::generate();
        assert_eq!(id.to_string().parse::<NodeId>(), Ok(id));
        assert!(id.to_string().parse::<TaskId>().is_err());
    }

    #[test]
    fn only_the_canonical_text_is_taken() {
        let id = TaskId::generate().to_string();
        assert!(id.to_uppercase().parse::<TaskId>().is_err());
        assert!(format!("{id}0").parse::<TaskId>().is_err());
        assert!(id.replace("task_", "task_{").parse::<TaskId>().is_err());
    }

    #[test]
    fn correlation_ids_cannot_carry_line_breaks() {
        assert!(CorrelationId::try_from("a\nb".to_owned()).is_err());
        assert!(CorrelationId::try_from(String::new()).is_err());
        assert!(CorrelationId::try_from("ticket-4711".to_owned()).is_ok());
    }
}
