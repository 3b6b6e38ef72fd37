//! Version negotiation of the link protocol, and tolerance for messages from a peer of another version.
//!
//! The version covers everything that travels over the link, including signed documents. Additions to the link's own messages need no new
//! version, because unknown fields and kinds are ignored. Signed documents are parsed strictly: a side that adds to one of them raises
//! [`PROTOCOL`] and leaves the addition out on links that use an older version.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::Hello;

/// Newest protocol version that this program speaks. Version 2 added the proof for resuming a link; version 1 has none and is refused.
pub const PROTOCOL: u32 = 2;
/// Oldest protocol version that this program speaks: the one of the previous release.
pub const OLDEST_PROTOCOL: u32 = 2;

/// The range of versions that one side speaks, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest version.
    pub oldest: u32,
    /// Newest version.
    pub newest: u32,
}

/// The two sides have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outdated {
    /// This side is too old for the peer.
    Us,
    /// The peer is too old for this side.
    Peer,
}

impl Versions {
    /// The versions that this program speaks.
    pub const OURS: Self = Self { oldest: OLDEST_PROTOCOL, newest: PROTOCOL };

    /// The versions that the agent stated in its hello.
    pub const fn of(hello: &Hello) -> Self {
        // Agents that speak a single version leave the oldest out.
        let oldest = if hello.oldest_protocol == 0 { hello.protocol } else { hello.oldest_protocol };
        Self { oldest, newest: hello.protocol }
    }

    /// The newest version that both sides speak.
    pub fn in_common(self, peer: Self) -> Result<u32, Outdated> {
        let newest = self.newest.min(peer.newest);
        if newest < self.oldest {
            Err(Outdated::Peer)
        } else if newest < peer.oldest {
            Err(Outdated::Us)
        } else {
            Ok(newest)
        }
    }

    /// Whether `version` is in the range.
    pub const fn contains(self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { oldest, newest } if oldest == newest => write!(f, "link protocol {newest}"),
            Self { oldest, newest } => write!(f, "link protocols {oldest} to {newest}"),
        }
    }
}

/// Reads the message of a [`super::FromNode`] or [`super::ToNode`] from JSON. As in protobuf, an unknown kind is `None`; malformed content
/// of a known kind is an error.
pub(super) fn known_kind<'de, D, M>(deserializer: D) -> Result<Option<M>, D::Error>
where
    D: Deserializer<'de>,
    M: DeserializeOwned,
{
    let Some(content) = Option::<serde_json::Value>::deserialize(deserializer)? else { return Ok(None) };
    let kind = content.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.keys().next());
    if let Some(kind) = kind
        && let Err(KindError::Unknown) = M::deserialize(StrDeserializer::new(kind))
    {
        return Ok(None);
    }
    serde_json::from_value(content).map(Some).map_err(D::Error::custom)
}

/// Outcome of reading the name of a message kind without its content.
#[derive(Debug)]
enum KindError {
    /// This version has no such kind.
    Unknown,
    /// The kind exists; only its content is missing.
    Known(String),
}

impl std::fmt::Display for KindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown kind of message"),
            Self::Known(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for KindError {}

impl serde::de::Error for KindError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Known(message.to_string())
    }

    fn unknown_variant(_: &str, _: &'static [&'static str]) -> Self {
        Self::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{FromNode, Messages, from_node, to_node};

    const fn versions(oldest: u32, newest: u32) -> Versions {
        Versions { oldest, newest }
    }

    #[test]
    fn neighbors_agree_on_the_newest_version_that_both_speak() {
        assert_eq!(versions(2, 3).in_common(versions(2, 2)), Ok(2));
        assert_eq!(versions(2, 2).in_common(versions(2, 3)), Ok(2));
        assert_eq!(versions(2, 3).in_common(versions(3, 4)), Ok(3));
    }

    #[test]
    fn the_side_that_must_be_upgraded_is_named() {
        assert_eq!(versions(3, 4).in_common(versions(1, 2)), Err(Outdated::Peer));
        assert_eq!(versions(1, 2).in_common(versions(3, 4)), Err(Outdated::Us));
    }

    #[test]
    fn an_agent_that_names_no_oldest_version_speaks_one() {
        let hello = Hello { protocol: 2, ..Hello::default() };
        assert_eq!(Versions::of(&hello), versions(2, 2));
        let hello = Hello { protocol: 4, oldest_protocol: 3, ..Hello::default() };
        assert_eq!(Versions::of(&hello), versions(3, 4));
    }

    #[test]
    fn a_kind_of_message_of_a_newer_peer_is_skipped_and_those_around_it_are_read() {
        let json = r#"{"messages":[{"message":{"ping":{"nonce":1}}},{"message":{"invented":{"a":[1]}},"new":2},
            {"message":{"cancel":{"task_id":"t","reason":"r","new":true}}}]}"#;
        let messages: Messages = serde_json::from_str(json).expect("read");
        let kinds: Vec<_> = messages.messages.into_iter().map(|message| message.message).collect();
        assert!(
            matches!(kinds.as_slice(), [Some(to_node::Message::Ping(_)), None, Some(to_node::Message::Cancel(_))]),
            "{kinds:?}"
        );
    }

    #[test]
    fn a_known_kind_with_a_broken_content_is_refused() {
        for broken in
            [r#"{"message":{"ack":7}}"#, r#"{"message":"ack"}"#, r#"{"message":{"ack":{},"pong":{}}}"#, r#"{"message":7}"#]
        {
            assert!(serde_json::from_str::<FromNode>(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn what_is_written_as_json_is_read_back() {
        let message = FromNode::from(from_node::Message::Pong(crate::link::Pong { nonce: u64::MAX }));
        let json = serde_json::to_string(&message).expect("write");
        assert_eq!(serde_json::from_str::<FromNode>(&json).expect("read"), message);
    }
}
