//! One session over either transport: its outgoing and incoming messages.

use std::time::Duration;

use gpuaas_contract::link::{FromNode, Goodbye, Welcome, to_node};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dial::DialError;
use super::http::HttpError;

/// Maximum number of messages that wait in either direction.
pub(super) const QUEUE: usize = 64;
/// Time limit for the last messages at a clean close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open session.
pub(super) struct Conversation {
    pub(super) welcome: Welcome,
    pub(super) outgoing: mpsc::Sender<FromNode>,
    pub(super) incoming: mpsc::Receiver<Result<to_node::Message, LinkError>>,
    /// The tasks that carry the messages; dropped with the conversation.
    pub(super) tasks: JoinSet<()>,
}

impl Conversation {
    pub(super) fn new(
        welcome: Welcome,
        outgoing: mpsc::Sender<FromNode>,
        incoming: mpsc::Receiver<Result<to_node::Message, LinkError>>,
    ) -> Self {
        Self { welcome, outgoing, incoming, tasks: JoinSet::new() }
    }

    /// Sends what is queued, then ends.
    pub(super) async fn close(self) {
        let Self { outgoing, incoming, mut tasks, .. } = self;
        drop(outgoing);
        drop(incoming);
        let all_done = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSE_WITHIN, all_done).await;
    }
}

impl LinkError {
    /// Returns whether a newer link of this node took over.
    pub(super) fn is_replaced(&self) -> bool {
        match self {
            Self::Fenced => true,
            Self::Goodbye(goodbye) => goodbye.code == "session_replaced",
            Self::Dial(_) | Self::NoWelcome(_) | Self::Broken(_) | Self::Refused { .. } => false,
        }
    }
}

/// Why there is no session, or no longer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// No connection.
    #[error("the control plane cannot be reached")]
    Dial(#[from] DialError),
    /// Connected, but there was no welcome.
    #[error("no welcome within {seconds} s", seconds = .0.as_secs())]
    NoWelcome(Duration),
    /// The connection broke.
    #[error("the link broke: {0}")]
    Broken(String),
    /// The control plane refused the link.
    #[error("the control plane refused the link ({code}): {message}")]
    Refused { code: String, message: String },
    /// The control plane ended the session with a reason.
    #[error("the control plane closed the link ({}): {}", .0.code, .0.message)]
    Goodbye(Goodbye),
    /// A newer session of this node has taken over; a new hello is needed.
    #[error("the session was replaced by a newer one")]
    Fenced,
}

impl From<HttpError> for LinkError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Dial(error) => Self::Dial(error),
            HttpError::Problem { code, .. } if code == "session_fenced" => Self::Fenced,
            HttpError::Problem { status, code, detail } if status < 500 => Self::Refused { code, message: detail },
            error @ (HttpError::Problem { .. } | HttpError::Timeout(_) | HttpError::Broken(_) | HttpError::Malformed(_)) => {
                Self::Broken(crate::error_chain::chain(&error))
            }
        }
    }
}
