//! What the slice tasks say when the host did not do what was asked.

/// A stable code, and a sentence that says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostError {
    /// Stable code, for receipts.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl HostError {
    /// An error.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The same for an error with causes.
    pub fn because(code: &'static str, what: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            cause = inner.source();
        }
        // A full disk has one answer whatever was being done, so it has one code.
        let full = message.contains("No space left on device");
        Self { code: if full { "disk_full" } else { code }, message }
    }
}
