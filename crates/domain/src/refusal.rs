//! Refusals: typed rejections with a stable code.

/// The kind of refusal; determines the HTTP status and the CLI's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request itself is wrong.
    Invalid,
    /// The current state does not allow it.
    Conflict,
    /// The caller is not permitted to do it.
    Forbidden,
    /// What the request refers to does not exist.
    NotFound,
    /// A limit is reached; it may work later.
    Exhausted,
}

/// Why something was not done, with a stable code and a sentence that says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// Stable code for programs.
    pub code: &'static str,
    /// A sentence for people that says what to do next.
    pub message: String,
    /// JSON pointer to the faulty part of the request body, if the fault is there.
    pub pointer: Option<&'static str>,
}

impl Refusal {
    /// A refusal because the request itself is wrong.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Invalid, code, message: message.into(), pointer: None }
    }

    /// A refusal because the current state does not allow it.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Conflict, code, message: message.into(), pointer: None }
    }

    /// A refusal because the caller is not permitted to do it.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Forbidden, code, message: message.into(), pointer: None }
    }

    /// A refusal because a limit is reached.
    pub fn exhausted(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Exhausted, code, message: message.into(), pointer: None }
    }

    /// Attributes the refusal to the part of the request body at this JSON pointer. Whatever its kind was, it becomes an invalid request.
    #[must_use]
    pub fn in_body(self, pointer: &'static str) -> Self {
        Self { kind: RefusalKind::Invalid, pointer: Some(pointer), ..self }
    }

    /// A refusal because what the request refers to does not exist.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: RefusalKind::NotFound, code, message: message.into(), pointer: None }
    }
}
