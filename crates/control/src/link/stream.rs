//! The gRPC transport.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::Stream;
use gpuaas_contract::link::node_link_server::{NodeLink, NodeLinkServer};
use gpuaas_contract::link::{FromNode, Goodbye, MAX_MESSAGE_BYTES, ToNode, from_node, to_node};
use gpuaas_domain::node::LinkTransport;
use tonic::{Request, Response, Status, Streaming};

use super::inbound::close_for;
use super::session::LinkSession;
use super::{identity, inbound, open};
use crate::Control;
use crate::error::ControlError;
use crate::listener::ClientCertificate;

/// Time limit for the hello after a stream is opened.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the gRPC service as a router.
pub(super) fn router(control: Arc<Control>) -> Router {
    let service = NodeLinkServer::new(Service { control })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tonic::service::Routes::new(service).prepare().into_axum_router()
}

struct Service {
    control: Arc<Control>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<ToNode, Status>> + Send>>;

#[tonic::async_trait]
impl NodeLink for Service {
    type ConnectStream = Answers;

    async fn connect(&self, request: Request<Streaming<FromNode>>) -> Result<Response<Answers>, Status> {
        let control = Arc::clone(&self.control);
        let certificate = request.extensions().get::<ClientCertificate>().cloned().unwrap_or(ClientCertificate(None));
        let peer = identity::peer(&control, &certificate, None).map_err(|error| status(&error))?;
        let mut incoming = request.into_inner();
        let hello = match tokio::time::timeout(HELLO_TIMEOUT, incoming.message()).await {
            Ok(Ok(Some(FromNode { message: Some(from_node::Message::Hello(hello)) }))) => hello,
            Ok(Ok(_)) => return Err(Status::invalid_argument("hello_missing: the first message must be hello")),
            Ok(Err(status)) => return Err(status),
            Err(_) => return Err(Status::deadline_exceeded("hello_timeout: no hello arrived")),
        };
        let (session, welcome) = match open::open(&control, peer, hello, LinkTransport::Stream).await {
            Ok(opened) => opened,
            // A known node that is refused gets a message, not a broken stream.
            Err(ControlError::Refused(refusal)) => {
                let goodbye = Goodbye { code: refusal.code.to_owned(), message: refusal.message, retry_after_seconds: 60 };
                let last = futures::stream::once(async move { Ok(to_node::Message::Goodbye(goodbye).into()) });
                return Ok(Response::new(Box::pin(last)));
            }
            Err(error) => return Err(status(&error)),
        };
        control.background.spawn(read(Arc::clone(&control), Arc::clone(&session), incoming));
        let ends_with_stream = EndWithStream(Arc::clone(&session));
        let answers = async_stream::stream! {
            // Dropped with the response: when the connection ends, the session ends at once.
            let _guard = ends_with_stream;
            yield Ok(to_node::Message::Welcome(welcome).into());
            while let Some(message) = session.next().await {
                yield Ok(message);
            }
        };
        Ok(Response::new(Box::pin(answers)))
    }
}

struct EndWithStream(Arc<LinkSession>);

impl Drop for EndWithStream {
    fn drop(&mut self) {
        self.0.close("stream_ended", "the stream ended", 0);
    }
}

async fn read(control: Arc<Control>, session: Arc<LinkSession>, mut incoming: Streaming<FromNode>) {
    loop {
        let message = tokio::select! {
            biased;
            () = session.ended() => return,
            message = incoming.message() => message,
        };
        let handled = match message {
            Ok(Some(message)) => match identity::check_still_good(&control, &session.peer) {
                Ok(()) if inbound::is_sign_of_life(&session, &message) => Ok(()),
                // Boxed, because its state is large and an idle link should not hold memory for it.
                Ok(()) => Box::pin(inbound::handle(&control, &session, message)).await,
                Err(error) => Err(error),
            },
            Ok(None) => {
                session.close("stream_ended", "the node closed the stream", 0);
                return;
            }
            Err(status) => {
                tracing::debug!(node = %session.node_id, %status, "stream broke");
                session.close("stream_broken", "the stream broke", 0);
                return;
            }
        };
        if let Err(error) = handled {
            close_for(&session, &error);
            return;
        }
    }
}

fn status(error: &ControlError) -> Status {
    match error {
        ControlError::Refused(refusal) => Status::permission_denied(format!("{}: {}", refusal.code, refusal.message)),
        ControlError::Unauthenticated { code, message } => Status::unauthenticated(format!("{code}: {message}")),
        ControlError::BadInput { code, message } => Status::invalid_argument(format!("{code}: {message}")),
        ControlError::BadBody { message, .. } => Status::invalid_argument(message.clone()),
        ControlError::Fenced => Status::aborted("session_fenced: send a new hello"),
        ControlError::Store(_)
        | ControlError::Contended
        | ControlError::AlreadyDone { .. }
        | ControlError::TooMany { .. }
        | ControlError::Internal(_)
        | ControlError::Unavailable { .. }
        | ControlError::Precondition { .. } => {
            tracing::error!(error = %inbound::chain(error), "link not opened");
            Status::unavailable("server_error: try again")
        }
    }
}
