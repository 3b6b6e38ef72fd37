//! The operator: sends REST requests to the server from the same host, and retries until there is an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gpuaas_runtime::net::TcpStream;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

/// The address of the server's REST API.
pub(crate) const API: &str = "127.0.0.1:8080";
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request. It is repeated after every failure, so it must be idempotent.
#[derive(Clone, Debug)]
pub(crate) struct TaskOrder {
    pub(crate) path: String,
    pub(crate) body: serde_json::Value,
    pub(crate) idempotency_key: Option<String>,
}

/// A final answer, one that is not retried.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: serde_json::Value,
}

/// The requests and their answers. They survive crashes of the server.
#[derive(Default)]
pub(crate) struct Operator {
    requests: Mutex<BTreeMap<usize, (TaskOrder, Option<Answer>)>>,
    changed: Notify,
}

impl Operator {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (TaskOrder, Option<Answer>)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request and returns its number.
    pub(crate) fn ask(&self, order: TaskOrder) -> usize {
        let mut requests = self.lock();
        let number = requests.len();
        requests.insert(number, (order, None));
        self.changed.notify_one();
        number
    }

    /// Returns the answer, once there is one.
    pub(crate) fn answer(&self, number: usize) -> Option<Answer> {
        self.lock().get(&number).and_then(|(_, answer)| answer.clone())
    }

    /// Sends the operator's requests as long as the server runs.
    pub(crate) async fn serve(self: Arc<Self>, token: String) {
        let mut under_way = std::collections::BTreeSet::new();
        loop {
            let open: Vec<(usize, TaskOrder)> = self
                .lock()
                .iter()
                .filter(|(number, (_, answer))| answer.is_none() && !under_way.contains(*number))
                .map(|(number, (order, _))| (*number, order.clone()))
                .collect();
            for (number, order) in open {
                under_way.insert(number);
                let (this, token) = (Arc::clone(&self), token.clone());
                tokio::spawn(async move {
                    let answer = until_answered(&order, &token).await;
                    if let Some((_, slot)) = this.lock().get_mut(&number) {
                        *slot = Some(answer);
                    }
                });
            }
            self.changed.notified().await;
        }
    }
}

async fn until_answered(order: &TaskOrder, token: &str) -> Answer {
    loop {
        match tokio::time::timeout(PATIENCE, once(order, token)).await {
            // With a status of 500 or more the server may be overloaded or shutting down; anything else is final.
            Ok(Ok(answer)) if answer.status < 500 => return answer,
            Ok(Ok(answer)) => tracing::debug!(?order, ?answer, "no answer yet"),
            Ok(Err(error)) => tracing::debug!(?order, error, "no answer yet"),
            Err(_) => tracing::debug!(?order, "no answer in time"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn once(order: &TaskOrder, token: &str) -> Result<Answer, String> {
    let stream = TcpStream::connect(API).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let mut request = http::Request::post(&order.path)
        .header("host", API)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    if let Some(key) = &order.idempotency_key {
        request = request.header(gpuaas_api::routes::IDEMPOTENCY_KEY_HEADER, key);
    }
    let body = if order.body.is_null() { Bytes::new() } else { Bytes::from(order.body.to_string()) };
    let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}
