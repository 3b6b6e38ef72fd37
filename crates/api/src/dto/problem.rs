//! Errors, as RFC 9457 problem documents.

/// Content type of a [`Problem`].
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Problem {
    /// A name for the kind of problem: `urn:gpuaas:problem:` and the code.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Title of the HTTP status.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// Stable code in snake_case.
    pub code: String,
    /// What is wrong and what to do next.
    #[serde(default)]
    pub detail: String,
    /// Faults in the body; empty if the problem is elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// Correlation id of the request, which is also in the log of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// A fault in the body of a request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Fault {
    /// JSON pointer (RFC 6901) into the body; empty for the body as a whole.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

impl Problem {
    /// A problem with its type derived from its code.
    pub fn new(status: u16, title: &str, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:gpuaas:problem:{code}"),
            title: title.to_owned(),
            status,
            code: code.to_owned(),
            detail: detail.into(),
            faults: Vec::new(),
            correlation_id: None,
        }
    }
}
