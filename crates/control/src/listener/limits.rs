//! The limits of time, memory and connections per listener.

use std::time::Duration;

use gpuaas_runtime::places::PlaceLimits;

/// Maximum number of connections of one listener, whatever the file limit allows.
const MAX_CONNECTIONS: usize = 20_000;
/// Descriptors that are reserved for other uses: the store, keys, logs, webhooks, NATS, Redis, other issuers.
const RESERVED: usize = 128;
/// Connections of the local socket: people, not programs.
const LOCAL_CONNECTIONS: usize = 32;
/// The least for a listener if the file limit is very low.
const MIN_CONNECTIONS: usize = 16;

/// The limits of one listener.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Connections, in total and per address or, at the local socket, per process.
    pub places: PlaceLimits,
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From there to the first whole request.
    pub head: Duration,
    /// From a request to the end of its body.
    pub body: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// Longest time in which the client reads less than [`MIN_TAKEN`](super::MIN_TAKEN) of what waits for it.
    pub write: Duration,
    /// How long open requests may take to end when the connection is closed cleanly.
    pub drain: Duration,
    /// HTTP/2: concurrent requests on one connection.
    pub h2_streams: u32,
    /// HTTP/2: bytes of one request that are accepted before they are read.
    pub h2_stream_window: u32,
    /// HTTP/2: the same for all requests of a connection together.
    pub h2_connection_window: u32,
    /// HTTP/2: bytes of one answer that are buffered for a client that does not read.
    pub h2_send_buffer: usize,
    /// Maximum size of requests by unknown callers in memory, in bytes.
    pub stranger_bytes: usize,
    /// Maximum size of requests by known callers in memory, in bytes.
    pub caller_bytes: usize,
    /// How long a request waits for room when all bytes are used.
    pub room: Duration,
}

impl ListenerLimits {
    fn new(connections: usize, per_origin: usize) -> Self {
        Self {
            places: PlaceLimits { total: connections, per_origin: per_origin.max(MIN_CONNECTIONS / 2) },
            first_byte: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(45),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            h2_streams: 64,
            h2_stream_window: 64 * 1024,
            h2_connection_window: 256 * 1024,
            h2_send_buffer: 64 * 1024,
            stranger_bytes: 16 * 1024 * 1024,
            caller_bytes: 64 * 1024 * 1024,
            room: Duration::from_secs(1),
        }
    }

    /// Returns the limits for REST with this many connections.
    pub fn api(connections: usize) -> Self {
        Self::new(connections, connections / 4)
    }

    /// Returns the limits for agents. Only hosts without a certificate count for their address. The idle limit is longer than the
    /// heartbeat interval of an agent on long-poll; otherwise every other heartbeat would find its connection closed.
    pub fn link(connections: usize) -> Self {
        Self {
            body: Duration::from_secs(60),
            h2_streams: 32,
            h2_stream_window: 256 * 1024,
            h2_connection_window: 512 * 1024,
            ..Self::new(connections, connections / 4 * 3)
        }
    }

    /// Returns the limits for the local socket. One process has at most half of the places, because its open streams are never
    /// closed for another.
    pub fn local() -> Self {
        Self {
            stranger_bytes: 1024 * 1024,
            caller_bytes: 16 * 1024 * 1024,
            idle: Duration::from_secs(30),
            drain: Duration::from_secs(5),
            ..Self::new(LOCAL_CONNECTIONS, LOCAL_CONNECTIONS / 2)
        }
    }
}

/// The limits of all listeners of a server process.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// REST.
    pub api: ListenerLimits,
    /// Agents.
    pub link: ListenerLimits,
    /// The local socket.
    pub local: ListenerLimits,
    /// Streams (server-sent events and WebSockets) of one caller.
    pub streams_per_caller: usize,
    /// Streams of all callers.
    pub streams: usize,
}

impl ServerLimits {
    /// Divides the descriptors of the process, so that a flood on one listener does not affect the others.
    pub fn for_descriptors(descriptors: u64, has_api: bool, has_link: bool) -> Self {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let free = descriptors.saturating_sub(RESERVED + LOCAL_CONNECTIONS);
        let share = if has_api && has_link { free / 2 } else { free };
        let connections = share.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self {
            api: ListenerLimits::api(connections),
            link: ListenerLimits::link(connections),
            local: ListenerLimits::local(),
            streams_per_caller: 64,
            // Requests without a stream need places too.
            streams: (connections / 2).min(4096),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_on_every_listener_leaves_descriptors_for_everything_else() {
        for descriptors in [1024_u64, 4096, 65_536, 1 << 20] {
            for (has_api, has_link) in [(true, true), (true, false), (false, true)] {
                let limits = ServerLimits::for_descriptors(descriptors, has_api, has_link);
                let api = if has_api { limits.api.places.total + limits.local.places.total } else { 0 };
                let link = if has_link { limits.link.places.total } else { 0 };
                let left = usize::try_from(descriptors).expect("fits") - api - link;
                assert!(left >= RESERVED, "{descriptors}: {left} left");
                assert!(limits.api.places.per_origin * 4 <= limits.api.places.total, "one address takes a quarter at most");
                assert!(limits.streams * 2 <= limits.api.places.total);
            }
        }
    }
}
