//! A typed no.

/// What kind of no it is; decides the HTTP status and the CLI's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request itself is wrong.
    Invalid,
    /// The state does not allow it (now).
    Conflict,
    /// The caller may not.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// Too much of it is in use; later it may work.
    Exhausted,
}

/// Why something was not done, with a stable code and a sentence that says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of no.
    pub kind: RefusalKind,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// Where in the body the fault is, if it is there: a JSON pointer.
    pub pointer: Option<&'static str>,
}

impl Refusal {
    /// The request itself is wrong.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Invalid, code, message: message.into(), pointer: None }
    }

    /// The state does not allow it.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Conflict, code, message: message.into(), pointer: None }
    }

    /// The caller may not.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Forbidden, code, message: message.into(), pointer: None }
    }

    /// Too much of it is in use.
    pub fn exhausted(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Exhausted, code, message: message.into(), pointer: None }
    }

    /// It is because of what the body has at this JSON pointer: whatever kind of no it would be elsewhere, the request itself is wrong.
    #[must_use]
    pub fn in_body(self, pointer: &'static str) -> Self {
        Self { kind: RefusalKind::Invalid, pointer: Some(pointer), ..self }
    }

    /// There is no such thing.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::NotFound, code, message: message.into(), pointer: None }
    }
}
