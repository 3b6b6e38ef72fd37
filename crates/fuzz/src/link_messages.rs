//! Target `link_messages`: link messages in both formats, protobuf on the stream and JSON over long-poll.

use std::fmt::Debug;

use gpuaas_contract::link::{FromNode, MAX_MESSAGE_BYTES, ToNode};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::input::Input;

/// Returns true if the bytes decode to a message that is not empty.
pub fn link_messages(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    match input.byte() % 2 {
        0 => check::<FromNode>(input.rest()).is_some_and(|message| message.message.is_some()),
        _ => check::<ToNode>(input.rest()).is_some_and(|message| message.message.is_some()),
    }
}

fn check<M: Message + Default + PartialEq + Debug + Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    assert_eq!(M::decode(encoded.as_slice()).as_ref(), Ok(&message), "written and read again it is another message");
    // Both transports carry the same content: a message that one can carry, the other can too.
    let json = serde_json::to_vec(&message).expect("a message serializes");
    let from_json: M = serde_json::from_slice(&json).expect("a message reads back");
    assert_eq!(from_json, message, "the two spellings differ");
    assert!(
        bytes.len() > MAX_MESSAGE_BYTES / 256 || json.len() <= MAX_MESSAGE_BYTES,
        "{} bytes became {}",
        bytes.len(),
        json.len()
    );
    Some(message)
}
