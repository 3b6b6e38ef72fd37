//! Idempotent requests: executed once, however often they are sent.
//!
//! A caller names a request with a key of its own. The record of the key ([`KeyRecord`]) is written in the commit that executes the
//! request, so the two cannot diverge. Sending the same request with the same key again returns the result of the first one.

use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;

use crate::access::Actor;
use crate::decision::{Change, Decision};
use crate::refusal::Refusal;
use crate::resource::{Keys, ResourceKind, resource};

/// How long a record is kept, unless it is kept as long as what the request created.
pub const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Maximum size of an answer that is kept.
pub const MAX_ANSWER: usize = 64 * 1024;
/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 128;

/// A caller's key for a request, together with a digest of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Id of the record: a digest of the caller and the key.
    id: String,
    /// The key as the caller wrote it.
    text: String,
    /// Digest of the whole request.
    request: Digest,
}

impl RequestKey {
    /// The key `text` of `actor`, for the request with this digest.
    pub fn new(actor: &Actor, text: &str, request: Digest) -> Result<Self, Refusal> {
        if text.is_empty() || text.len() > MAX_KEY || text.chars().any(char::is_control) {
            let message = format!("an idempotency key has 1 to {MAX_KEY} printable bytes");
            return Err(Refusal::invalid("idempotency_key_invalid", message));
        }
        let id = format!("idem:{}", Digest::of(format!("{actor}\n{text}").as_bytes()));
        Ok(Self { id, text: text.to_owned(), request })
    }

    /// The id of the record.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key as the caller wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The record to write together with the decision that executes the request.
    pub fn record(&self, decision: &Decision, now: Timestamp) -> KeyRecord {
        let made = decision.changes.iter().find_map(created_for_good);
        let first_event = || decision.events.first().map(|event| event.subject.clone());
        KeyRecord {
            id: self.id.clone(),
            version: 0,
            request: self.request.clone(),
            expires_at: made.is_none().then(|| now.plus(KEPT)),
            subject: made.or_else(first_event).unwrap_or_else(|| "nothing".to_owned()),
            answer: None,
        }
    }

    /// Refuses if the key was used for a different request.
    pub fn check(&self, earlier: &KeyRecord) -> Result<(), Refusal> {
        if earlier.request == self.request {
            return Ok(());
        }
        let message = format!("this idempotency key was used for another request, about {}; choose a new key", earlier.subject);
        Err(Refusal::conflict("idempotency_key_reused", message))
    }
}

/// Returns the id of a task or an allocation that the change creates. Their rows are kept, so a replay shows their current state.
fn created_for_good(change: &Change) -> Option<String> {
    if let Change::TaskInsert(task) = change {
        return Some(task.id.to_string());
    }
    if let Change::ResourceInsert(document) = change
        && document.kind == ResourceKind::Allocation
    {
        return Some(document.id.clone());
    }
    None
}

/// The request that was made under a key, and its result.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyRecord {
    /// Digest of the caller and the key.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Digest of the whole request.
    pub request: Digest,
    /// The task or allocation that the request created, or else the subject of its first event.
    pub subject: String,
    /// The answer, once it is known. `None` if it contains a secret, or if the current state of the subject is the answer.
    pub answer: Option<Answer>,
    /// When the record may be deleted; `None` if it is kept as long as what the request created.
    pub expires_at: Option<Timestamp>,
}

/// A recorded HTTP response.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The response body.
    pub body: String,
}

resource!(KeyRecord, Idempotency);

impl KeyRecord {
    fn found_by(&self) -> Keys {
        let state = if self.answer.is_some() { "answered" } else { "done" };
        Keys { state, expires_at: self.expires_at, ..Keys::default() }
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::{CorrelationId, OrgId, UserId};

    use super::*;
    use crate::decision::Context;
    use crate::quota::Limits;
    use crate::tenancy;

    fn key(actor: &Actor, text: &str, request: &str) -> RequestKey {
        RequestKey::new(actor, text, Digest::of(request.as_bytes())).expect("a key")
    }

    #[test]
    fn a_key_belongs_to_its_caller_and_to_one_request() {
        let (one, two) = (Actor::User(UserId::generate()), Actor::User(UserId::generate()));
        let first = key(&one, "k", "a");
        assert_ne!(first.id(), key(&two, "k", "a").id());
        assert_ne!(first.id(), key(&one, "l", "a").id());
        let record = first.record(&Decision::default(), Timestamp::now());
        assert!(key(&one, "k", "a").check(&record).is_ok());
        assert_eq!(key(&one, "k", "b").check(&record).expect_err("another request").code, "idempotency_key_reused");
        for bad in ["", "a\tb", &"x".repeat(129)] {
            let refused = RequestKey::new(&one, bad, Digest::of(b"a")).expect_err("no key");
            assert_eq!(refused.code, "idempotency_key_invalid");
        }
    }

    #[test]
    fn a_record_names_what_the_request_was_about() {
        let now = Timestamp::now();
        let context = Context { now, actor: Actor::System, correlation_id: CorrelationId::generate() };
        let id = OrgId::generate();
        let (_, decision) = tenancy::create_organization(id, "acme", "", Limits::default(), &context).expect("an organization");
        let record = key(&Actor::System, "k", "a").record(&decision, now);
        assert_eq!((record.subject, record.expires_at), (id.to_string(), Some(now.plus(KEPT))));
    }
}
