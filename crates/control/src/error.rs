//! What can go wrong while a request is served.

use gpuaas_domain::Refusal;
use gpuaas_store::StoreError;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A typed no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller did not prove who it is.
    #[error("{message}")]
    Unauthenticated {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// Something that we rely on does not answer.
    #[error("{message}")]
    Unavailable {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// There was too much of it; later it may work.
    #[error("{message}")]
    TooMany {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
        /// When to try again.
        retry_after: std::time::Duration,
    },
    /// What was asked for is not as the caller thinks it is.
    #[error("{message}")]
    Precondition {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// The body or a parameter is not what it should be.
    #[error("{message}")]
    BadInput {
        /// Stable code.
        code: &'static str,
        /// What to change.
        message: String,
    },
    /// The body is JSON, but not what it should be.
    #[error("{message}")]
    BadBody {
        /// What to change.
        message: String,
        /// Everything that is wrong with it.
        faults: Vec<gpuaas_api::dto::Fault>,
    },
    /// The caller's long-poll session is no longer the node's link.
    #[error("this session is no longer the node's link; say hello again")]
    Fenced,
    /// The store did not answer as it should.
    #[error("the store is not available")]
    Store(#[from] StoreError),
    /// Others kept changing the same thing.
    #[error("the same thing is being changed by others; try again")]
    Contended,
    /// Something of ours is broken.
    #[error("{0}")]
    Internal(String),
}
