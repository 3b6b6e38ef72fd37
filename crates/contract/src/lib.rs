//! The data that the control plane, the agents and the clients of gpuaas exchange.
//!
//! Ids, the closed catalog of tasks, signed envelopes and receipts, the verifier set, telemetry documents and the
//! link protocol. Everything here is data and pure functions: no I/O, no clock, no randomness except in key and id
//! constructors. Another implementation can check itself against the files in `testdata/`.
//!
//! # Promises
//!
//! - Time is an integer: microseconds since the epoch. Ids are UUIDv7 with a type and a prefix per kind.
//! - Sizes are checked before anything is read. Signed documents are parsed strictly: an unknown field, task type or key is refused.
//! - A verified envelope is signed by a key of the verifier set, addressed to this cluster, node and epoch, and in time.
//! - A verified receipt is signed by the node's own key and answers an envelope that was signed for that task.
//! - The catalog of tasks is closed: a kind that is not a variant can neither be requested nor run.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod access;
pub mod address;
pub mod cleanup;
pub mod dsse;
pub mod envelope;
pub mod event;
pub mod guest;
pub mod id;
pub mod key;
pub mod link;
pub mod money;
pub mod names;
pub mod product;
pub mod quota;
pub mod receipt;
pub mod resume;
pub mod schema;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod slice;
pub mod ssh_address;
pub mod state;
pub mod task;
pub mod telemetry;
pub mod time;
pub mod verifier_set;

/// SHA-256 digest: `sha256:` and 64 hex digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        text.push_str(&hex(&sha2::Sha256::digest(bytes)));
        Self(text)
    }

    /// The digest as text: `sha256:` and 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not `sha256:` followed by 64 lower-case hex digits.
#[derive(Debug, thiserror::Error)]
#[error("not a digest: expected `sha256:` and 64 lower-case hex digits")]
pub struct BadDigest;

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        let hex = text.strip_prefix("sha256:").ok_or(BadDigest)?;
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if hex.len() == 64 && hex.bytes().all(lower_hex) { Ok(Self(text)) } else { Err(BadDigest) }
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

/// Lower-case hex of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    text
}

/// Serde helper: bytes as standard, padded base64.
pub mod bytes_as_base64 {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// Serializes as base64.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    /// Deserializes from base64; anything but the canonical encoding is an error.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}
