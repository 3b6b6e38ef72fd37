//! The error of the host operations.

/// A stable code, and a message that says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostError {
    /// Stable code, for receipts.
    pub code: &'static str,
    /// The message.
    pub message: String,
}

impl HostError {
    /// Returns an error.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates an error from another one with its causes.
    pub fn because(code: &'static str, what: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            cause = inner.source();
        }
        // A full disk needs the same remedy everywhere, so it has one code.
        let full = message.contains("No space left on device");
        Self { code: if full { "disk_full" } else { code }, message }
    }
}
