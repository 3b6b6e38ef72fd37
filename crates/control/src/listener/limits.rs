//! How much time, room and how many places a client gets, per listener.

use std::time::Duration;

use gpuaas_runtime::places::PlaceLimits;

/// Most connections of one listener at the same time, whatever the file limit allows.
const MAX_CONNECTIONS: usize = 20_000;
/// Descriptors that no listener may use: the store, keys, logs, webhooks, NATS, Redis, other issuers.
const RESERVED: usize = 128;
/// Connections of the local socket: people, not programs.
const LOCAL_CONNECTIONS: usize = 32;
/// What a listener gets where the file limit leaves next to nothing.
const MIN_CONNECTIONS: usize = 16;

/// What one listener gives its clients.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Connections, in all and per address or, at the local socket, per process.
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
    /// Longest time in which the client takes less than [`MIN_TAKEN`](super::MIN_TAKEN) of what waits for it.
    pub write: Duration,
    /// How long open requests may take to end when the connection is closed in good order.
    pub drain: Duration,
    /// HTTP/2: requests at the same time on one connection.
    pub h2_streams: u32,
    /// HTTP/2: bytes of one request that are taken before somebody reads them.
    pub h2_stream_window: u32,
    /// HTTP/2: the same for all requests of a connection together.
    pub h2_connection_window: u32,
    /// HTTP/2: bytes of one answer that are kept for a client that does not take them.
    pub h2_send_buffer: usize,
    /// Bytes of requests by callers who are not known yet that are held at the same time.
    pub stranger_bytes: usize,
    /// Bytes of requests by known callers that are held at the same time.
    pub caller_bytes: usize,
    /// How long a request waits for room when all bytes are taken.
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

    /// For REST with this many connections.
    pub fn api(connections: usize) -> Self {
        Self::new(connections, connections / 4)
    }

    /// For agents. Only hosts without a certificate count for their address. Idle connections are kept for longer than the heartbeats of
    /// an agent on long-poll are apart, or every other heartbeat would find its connection closed.
    pub fn link(connections: usize) -> Self {
        Self {
            body: Duration::from_secs(60),
            h2_streams: 32,
            h2_stream_window: 256 * 1024,
            h2_connection_window: 512 * 1024,
            ..Self::new(connections, connections / 4 * 3)
        }
    }

    /// For whoever sits at the server. One process has at most half of the places: streams that it has open are never ended for another.
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

/// Limits of all listeners of a server process.
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
    /// Shares the descriptors of the process out, so that a flood on one listener leaves the others theirs.
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
            // Whoever only asks needs places, too.
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
