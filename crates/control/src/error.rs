//! Errors while serving a request.

use gpuaas_domain::Refusal;
use gpuaas_store::StoreError;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A typed refusal.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller is not authenticated.
    #[error("{message}")]
    Unauthenticated {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// A dependency does not answer.
    #[error("{message}")]
    Unavailable {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// The caller exceeded a limit; a later attempt may succeed.
    #[error("{message}")]
    TooMany {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
        /// When to try again.
        retry_after: std::time::Duration,
    },
    /// The resource is not in the state that the caller expects.
    #[error("{message}")]
    Precondition {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// The body or a parameter is not valid.
    #[error("{message}")]
    BadInput {
        /// Stable code.
        code: &'static str,
        /// What to change.
        message: String,
    },
    /// The body is JSON, but not the expected document.
    #[error("{message}")]
    BadBody {
        /// What to change.
        message: String,
        /// All faults of the body.
        faults: Vec<gpuaas_api::dto::Fault>,
    },
    /// A request with the same idempotency key was faster; nothing was done for this one.
    #[error("this request was done before, and its answer was not kept; look at {subject}")]
    AlreadyDone {
        /// What the request was about.
        subject: String,
    },
    /// The caller's long-poll session is no longer the node's link.
    #[error("this session is no longer the node's link; send a new hello")]
    Fenced,
    /// The store failed.
    #[error("the store is not available")]
    Store(#[from] StoreError),
    /// Concurrent changes of the same resource kept winning.
    #[error("other requests keep changing the same resource; try again")]
    Contended,
    /// An internal error.
    #[error("{0}")]
    Internal(String),
}

impl ControlError {
    /// A text that should be an id is none.
    pub(crate) fn id_invalid(error: gpuaas_contract::id::BadId) -> Self {
        Self::BadInput { code: "id_invalid", message: error.to_string() }
    }
}
