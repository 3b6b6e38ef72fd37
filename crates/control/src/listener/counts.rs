//! Counts connections by their end, for Prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The kind of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// REST.
    Api,
    /// Agents.
    Link,
    /// The local socket.
    Local,
}

impl ListenerKind {
    /// Returns its name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Link => "link",
            Self::Local => "local",
        }
    }
}

/// Why a connection was refused or closed by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No byte arrived in time.
    FirstByte,
    /// The TLS handshake did not finish in time.
    Handshake,
    /// No complete request arrived in time.
    Head,
    /// There was no request for a while.
    Idle,
    /// The client does not read its answer.
    Write,
    /// A body did not arrive in time.
    Body,
    /// There was no room for a body.
    Busy,
    /// A new connection needed the place.
    Shed,
    /// The address has used all of its places.
    Address,
    /// All places are taken.
    Full,
    /// The process has no free descriptors.
    Descriptors,
    /// A header that must be unique was repeated.
    Header,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::FirstByte => "first_byte_timeout",
            Self::Handshake => "handshake_timeout",
            Self::Head => "head_timeout",
            Self::Idle => "idle_timeout",
            Self::Write => "write_timeout",
            Self::Body => "body_timeout",
            Self::Busy => "server_busy",
            Self::Shed => "shed",
            Self::Address => "address_full",
            Self::Full => "full",
            Self::Descriptors => "descriptors",
            Self::Header => "header_repeated",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    listener: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

/// Counts connections. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounts {
    open: Family<ListenerLabel, Gauge>,
    cut: Family<EndLabel, Counter>,
}

impl ConnectionCounts {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Open connections, by listener", self.open.clone());
        registry.register(
            "connections_cut",
            "Connections and requests that were refused or ended by the server, by listener and reason",
            self.cut.clone(),
        );
    }

    pub(super) fn opened(&self, listener: ListenerKind) {
        self.open.get_or_create(&ListenerLabel { listener: listener.as_str() }).inc();
    }

    pub(super) fn closed(&self, listener: ListenerKind) {
        self.open.get_or_create(&ListenerLabel { listener: listener.as_str() }).dec();
    }

    pub(super) fn cut(&self, listener: ListenerKind, reason: Reason) {
        self.cut.get_or_create(&EndLabel { listener: listener.as_str(), reason: reason.as_str() }).inc();
    }
}
