//! The agents' side of the control plane: enrollment, the link with both transports, dispatch.
//!
//! Every opened link is a session. Over either transport, it has one [`session::LinkSession`], one driver that sends tasks on
//! wake-ups, and one handler for the node's messages ([`inbound`]).

mod budget;
mod copies;
mod dispatch;
pub(crate) mod enroll;
mod hub;
mod identity;
mod inbound;
mod issue_once;
mod open;
mod poll;
mod session;
mod stream;
mod sweep;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use tokio_rustls::TlsAcceptor;

use crate::Control;
use crate::pki::{CaError, Listener, ServingCertificate};

pub use budget::NodeBudgets;
pub use hub::Hub;
pub use inbound::chain;
pub use session::LinkSession;
pub use sweep::{DenyList, bury_all_links, spawn_sweepers};

/// The interval of the agents' heartbeats.
pub const HEARTBEAT_SECONDS: u32 = 10;
/// How long a long-poll request is held open.
pub const POLL_SECONDS: u32 = 25;

/// Returns all routes for agents.
pub fn router(control: &Arc<Control>) -> Router {
    stream::router(Arc::clone(control)).merge(poll::router(Arc::clone(control))).merge(enroll::router(Arc::clone(control)))
}

/// Returns the TLS configuration: 1.3, with the cluster's CA on both sides. A client certificate is optional here because a host
/// has none before its enrollment; every other route requires one.
pub async fn tls_acceptor(control: &Control, keys_dir: &Path) -> Result<TlsAcceptor, CaError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let internal = |e: &dyn std::fmt::Display| CaError::BadRequest(e.to_string());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(control.ca.der().clone()).map_err(|e| internal(&e))?;
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|e| internal(&e))?;
    let certificate = ServingCertificate::new(Arc::clone(&control.ca), Vec::new(), keys_dir, Listener::Link).await?;
    control.listener_certificates.show(&certificate);
    control.background.spawn(Arc::clone(&certificate).keep_fresh(control.shutdown.clone()));
    let mut config = rustls::ServerConfig::builder_with_details(provider, gpuaas_runtime::certificate_clock())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| internal(&e))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
