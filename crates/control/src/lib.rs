//! The control plane.
//!
//! [`start`] opens the store and the keys, binds the listeners and starts what the chosen [`process_roles`] need;
//! [`Server::stop`] shuts it down cleanly. `app` has the use cases, `http` is the operators' side, `link` the agents', `pki`
//! everything secret. State is in the store; what is in memory (open links, the deny-list, the last progress of a task) can be
//! lost at any moment.
//!
//! # Promises
//!
//! - A node's identity comes from its certificate, never from a path or a body (`link/identity.rs`).
//! - A row in the database authorizes nothing: a task is signed, and a slot or a resource used, only if the row carries the
//!   control plane's own MAC (`link/dispatch.rs`, `lease_settlement.rs`, `resources.rs`).
//! - Only the policies decide who may do what, before a handler runs. Deny is the default, and a route that is not in the table
//!   of endpoints is closed (`http/guard.rs`).
//! - Every open request and stream ends within ten seconds of the loss of the right to it: one layer watches every answer
//!   (`http/stream_grant.rs`).
//! - Callers who are not signed in use rows, guesses and password work within budgets, by address and in total
//!   (`stranger_budgets.rs`).
//! - Tenants see the fields that are listed for them and nothing else (`audience.rs`).
//! - A receipt is acknowledged only after it is committed. A dropped stream, a cancelled request or a restart never cancels work
//!   on a host.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod app;
mod audience;
mod authz_cache;
mod commit;
mod destructive_budget;
mod error;
mod events;
pub mod http;
pub mod identity;
mod lease_settlement;
pub mod link;
pub mod listener;
mod local_socket;
mod metrics;
pub mod pki;
pub mod process_roles;
mod progress;
mod resources;
mod start;
mod stranger_budgets;
mod transact;
pub mod workflow;

use std::sync::Arc;

use gpuaas_backends::Backends;
use gpuaas_contract::id::{ClusterId, ServerId};
use gpuaas_store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use error::ControlError;
pub use http::conventions::{BadOrigin, CorsOrigin};
pub use start::{ApiTls, Server, ServerConfig, StartError, start};

/// The shared state of one server process.
pub struct Control {
    store: Store,
    cluster_id: ClusterId,
    server_id: ServerId,
    ca: Arc<pki::Ca>,
    keys: pki::KeyRing,
    listener_certificates: pki::ListenerCertificates,
    hub: link::Hub,
    denied: link::DenyList,
    budgets: link::NodeBudgets,
    progress: progress::ProgressBoard,
    fleet: workflow::FleetView,
    placing: workflow::Placing,
    lines: transact::Lines,
    /// Wakes the sender of webhooks when a delivery becomes due now; other processes find it with their slow look.
    deliveries_due: tokio::sync::Notify,
    authz: authz_cache::AuthzCache,
    identity: identity::Identity,
    backends: Backends,
    budget: destructive_budget::Budget,
    /// Whether webhooks may go to private addresses.
    webhooks_to_private: bool,
    cors_origins: Vec<http::conventions::CorsOrigin>,
    metrics: metrics::Metrics,
    streams: http::Streams,
    /// The link address for agents.
    link_address: String,
    store_kind: &'static str,
    shutdown: CancellationToken,
    background: TaskTracker,
}

impl Control {
    /// Returns the token that is cancelled when this server stops.
    pub fn stopping(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Returns the tracker of background work; a stopping server waits for it.
    pub fn background(&self) -> &TaskTracker {
        &self.background
    }
}
