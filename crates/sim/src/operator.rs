//! The operator: speaks REST to the server from the same host, and asks again until there is an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gpuaas_world::net::TcpStream;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

/// Where the server's REST listens.
pub(crate) const API: &str = "127.0.0.1:8080";
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request. Asked again after every failure, so it must be one that can be.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) path: String,
    pub(crate) body: serde_json::Value,
    pub(crate) idempotency_key: Option<String>,
}

/// A definite answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: serde_json::Value,
}

/// What was asked for and what came back; lives through the server's crashes.
#[derive(Default)]
pub(crate) struct Operator {
    wishes: Mutex<BTreeMap<usize, (Wish, Option<Answer>)>>,
    changed: Notify,
}

impl Operator {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (Wish, Option<Answer>)>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something; the number names it.
    pub(crate) fn ask(&self, wish: Wish) -> usize {
        let mut wishes = self.lock();
        let number = wishes.len();
        wishes.insert(number, (wish, None));
        self.changed.notify_one();
        number
    }

    /// The answer, once there is one.
    pub(crate) fn answer(&self, number: usize) -> Option<Answer> {
        self.lock().get(&number).and_then(|(_, answer)| answer.clone())
    }

    /// Speaks for the operator as long as the server runs.
    pub(crate) async fn serve(self: Arc<Self>, token: String) {
        let mut under_way = std::collections::BTreeSet::new();
        loop {
            let open: Vec<(usize, Wish)> = self
                .lock()
                .iter()
                .filter(|(number, (_, answer))| answer.is_none() && !under_way.contains(*number))
                .map(|(number, (wish, _))| (*number, wish.clone()))
                .collect();
            for (number, wish) in open {
                under_way.insert(number);
                let (this, token) = (Arc::clone(&self), token.clone());
                tokio::spawn(async move {
                    let answer = until_answered(&wish, &token).await;
                    if let Some((_, slot)) = this.lock().get_mut(&number) {
                        *slot = Some(answer);
                    }
                });
            }
            self.changed.notified().await;
        }
    }
}

async fn until_answered(wish: &Wish, token: &str) -> Answer {
    loop {
        match tokio::time::timeout(PATIENCE, once(wish, token)).await {
            // The server may be overloaded or shutting down; anything else is an answer.
            Ok(Ok(answer)) if answer.status < 500 => return answer,
            Ok(Ok(answer)) => tracing::debug!(?wish, ?answer, "no answer yet"),
            Ok(Err(error)) => tracing::debug!(?wish, error, "no answer yet"),
            Err(_) => tracing::debug!(?wish, "no answer in time"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn once(wish: &Wish, token: &str) -> Result<Answer, String> {
    let stream = TcpStream::connect(API).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let mut request = http::Request::post(&wish.path)
        .header("host", API)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    if let Some(key) = &wish.idempotency_key {
        request = request.header(gpuaas_api::routes::IDEMPOTENCY_KEY_HEADER, key);
    }
    let body = if wish.body.is_null() { Bytes::new() } else { Bytes::from(wish.body.to_string()) };
    let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}
