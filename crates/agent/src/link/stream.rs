//! The first transport: one gRPC stream.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuaas_contract::link::node_link_client::NodeLinkClient;
use gpuaas_contract::link::{FromNode, Hello, MAX_MESSAGE_BYTES, from_node, to_node};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::conversation::{Conversation, LinkError, QUEUE};
use super::dial::{self, Dialer, Protocol};
use super::resume::Resume;

/// Interval of HTTP/2 pings, which detect half-open links.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Opens the stream: hello, welcome.
pub(super) async fn open(
    dialer: &Dialer,
    resume: &Resume,
    mut hello: Hello,
    welcome_within: Duration,
) -> Result<Conversation, LinkError> {
    let stream = dialer.dial(Protocol::Http2).await?;
    resume.prove(&mut hello, dial::channel_binding(&stream).as_ref());
    // Connected before, so that "cannot reach" and "cannot stream" are distinguished; the channel must not connect again.
    let once = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)))
    });
    // The dialer does TLS, so the scheme here is plain.
    let endpoint = Endpoint::from_static("http://gpuaas-link.internal")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let broken = |error: tonic::transport::Error| LinkError::Broken(crate::error_chain::chain(&error));
    let channel = endpoint.connect_with_connector(connector).await.map_err(broken)?;
    let mut client =
        NodeLinkClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES);

    let (outgoing, queue) = mpsc::channel::<FromNode>(QUEUE);
    let hello = FromNode::from(from_node::Message::Hello(hello));
    outgoing.send(hello).await.map_err(|_| LinkError::Broken("the stream closed before the hello".to_owned()))?;
    let greet = async {
        let mut answers = client.connect(ReceiverStream::new(queue)).await.map_err(refused)?.into_inner();
        match answers.message().await.map_err(refused)?.and_then(|message| message.message) {
            Some(to_node::Message::Welcome(welcome)) => Ok((welcome, answers)),
            Some(to_node::Message::Goodbye(goodbye)) => Err(LinkError::Goodbye(goodbye)),
            Some(_) => Err(LinkError::Broken("the first message was no welcome".to_owned())),
            None => Err(LinkError::Broken("the stream ended before a welcome".to_owned())),
        }
    };
    let (mut welcome, mut answers) =
        tokio::time::timeout(welcome_within, greet).await.map_err(|_| LinkError::NoWelcome(welcome_within))??;
    resume.take(&mut welcome);

    let (heard, incoming) = mpsc::channel(QUEUE);
    let mut conversation = Conversation::new(welcome, outgoing, incoming);
    conversation.tasks.spawn(async move {
        loop {
            let next = match answers.message().await {
                Ok(Some(message)) => match message.message {
                    Some(message) => Ok(message),
                    // An unknown message of a newer control plane.
                    None => continue,
                },
                Ok(None) => Err(LinkError::Broken("the control plane closed the stream".to_owned())),
                Err(status) => Err(refused(status)),
            };
            let over = next.is_err();
            if heard.send(next).await.is_err() || over {
                return;
            }
        }
    });
    Ok(conversation)
}

/// Converts a status, which may have a stable code as the first word of its message.
fn refused(status: tonic::Status) -> LinkError {
    let message = status.message();
    let code = message.split([':', ' ']).next().unwrap_or_default();
    let is_code = code.contains('_') && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    match code {
        "session_fenced" => return LinkError::Fenced,
        // The hello was sent and never arrived: a network problem.
        "hello_timeout" => return LinkError::Broken(message.to_owned()),
        _ if is_code => return LinkError::Refused { code: code.to_owned(), message: message.to_owned() },
        _ => {}
    }
    LinkError::Broken(format!("{:?}: {}", status.code(), crate::error_chain::chain(&status)))
}
