//! An error as the user sees it: one line, a cause if there is one, and what to do next.

use gpuaas_api::ClientError;
use gpuaas_api::client::ErrorKind;

use crate::advice;
use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CliError {
    /// The exit code of the program.
    pub(crate) exit: Exit,
    /// Stable code, for programs.
    pub(crate) code: String,
    /// What went wrong, in one line.
    pub(crate) message: String,
    /// The underlying error, if it adds something.
    pub(crate) cause: Option<String>,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// Identifies the request in the server's log.
    pub(crate) correlation_id: Option<String>,
}

impl CliError {
    pub(crate) fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        Self { exit, code: code.to_owned(), message: message.into(), cause: None, hint: None, correlation_id: None }
    }

    /// An error in the user's input.
    pub(crate) fn usage(code: &str, message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, code, message)
    }

    /// A bug, or an error of the operating system.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Exit::Internal, "internal", message)
    }

    /// Adds a hint on what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the error as a document, for `-o json`.
    pub(crate) fn document(&self) -> serde_json::Value {
        serde_json::json!({ "error": {
            "code": self.code,
            "message": self.message,
            "cause": self.cause,
            "hint": self.hint,
            "exit_code": self.exit as u8,
            "correlation_id": self.correlation_id,
        } })
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let kind = error.kind();
        let problem = error.problem();
        Self {
            exit: kind.into(),
            code: error.code().to_owned(),
            message: error.to_string(),
            cause: root_cause(&error),
            hint: hint_of(&error, kind),
            correlation_id: problem.and_then(|problem| problem.correlation_id.clone()),
        }
    }
}

fn hint_of(error: &ClientError, kind: ErrorKind) -> Option<String> {
    if let Some(hint) = advice::of_connection(error) {
        return Some(hint.to_owned());
    }
    if let Some(hint) = error.problem().and_then(|problem| advice::of_code(&problem.code)) {
        return Some(hint.to_owned());
    }
    match (kind, error.problem().map(|problem| problem.status)) {
        // The server's message already says what to do.
        (ErrorKind::Unauthorized, Some(403)) => None,
        (ErrorKind::Unauthorized, _) => Some(
            "sign in with `gpuaas login`, or give a token with --token-file, GPUAAS_TOKEN or `token_file` in the config file"
                .to_owned(),
        ),
        (ErrorKind::Unreachable, Some(_)) => Some("try again in a moment; the server's log says what it lacks".to_owned()),
        (ErrorKind::Unreachable, None) => {
            Some("start one with `gpuaas dev`, or name the right address with --url or GPUAAS_URL".to_owned())
        }
        (ErrorKind::Timeout, _) => Some("try again; if it repeats, look at the server's log".to_owned()),
        (ErrorKind::Internal, _) => {
            Some("compare `gpuaas --version` with `gpuaas cluster info`; look at the server's log".to_owned())
        }
        (ErrorKind::Usage | ErrorKind::NotFound | ErrorKind::Conflict, _) => None,
    }
}

/// Returns the innermost source of an error, which adds the most to its message.
fn root_cause(error: &dyn std::error::Error) -> Option<String> {
    let mut cause = error.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

#[cfg(test)]
mod tests {
    use gpuaas_api::dto::Problem;

    use super::*;

    fn refused(status: u16) -> CliError {
        let mut problem = Problem::new(status, "t", "some_code", "do this");
        problem.correlation_id = Some("corr_1".to_owned());
        ClientError::Refused { status, problem: Box::new(problem) }.into()
    }

    #[test]
    fn what_the_server_says_decides_the_exit_code() {
        for (status, exit) in [
            (400, Exit::Usage),
            (401, Exit::Unauthorized),
            (403, Exit::Unauthorized),
            (404, Exit::NotFound),
            (409, Exit::Refused),
            (422, Exit::Usage),
            (429, Exit::Refused),
            (500, Exit::Internal),
            (503, Exit::Unreachable),
            (504, Exit::Timeout),
        ] {
            let failure = refused(status);
            assert_eq!(
                (failure.exit, failure.code.as_str(), failure.message.as_str()),
                (exit, "some_code", "do this"),
                "{status}"
            );
        }
    }

    #[test]
    fn the_document_holds_everything_a_program_needs() {
        let document = refused(409).document();
        assert_eq!(document["error"]["code"], "some_code");
        assert_eq!(document["error"]["exit_code"], 4);
        assert_eq!(document["error"]["correlation_id"], "corr_1");
    }
}
