//! Requests that may be repeated: what was answered under a caller's own key.
//!
//! The row is written in the commit that does what was asked for, so that whoever asks again with the same key never gets it twice. The
//! answer is added afterwards; if the server dies in between, the key is known to be done and its answer is lost.

use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;

use crate::resource::{Keys, resource};

/// How long an answer is kept.
pub const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Longest answer that is kept.
pub const MAX_ANSWER: usize = 64 * 1024;

/// What was asked for under a key, and what was answered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answered {
    /// Digest of who asked and their key.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Digest of method, path and body.
    pub request: Digest,
    /// What the request was about, as its first event says.
    pub subject: String,
    /// The answer, once it is known.
    pub answer: Option<Answer>,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The document.
    pub body: String,
}

resource!(Answered, Idempotency);

/// The id of what was asked for by this caller under this key.
pub fn answered_id(actor: &str, key: &str) -> String {
    format!("idem:{}", Digest::of(format!("{actor}\n{key}").as_bytes()))
}

impl Answered {
    fn found_by(&self) -> Keys {
        let state = if self.answer.is_some() { "answered" } else { "done" };
        Keys { state, expires_at: Some(self.expires_at), ..Keys::default() }
    }
}
