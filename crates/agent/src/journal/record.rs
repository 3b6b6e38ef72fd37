//! One record of the journal: what happened, and how it lies in the file.
//!
//! Layout, little-endian, at an offset that is a multiple of 8:
//! `magic u32 | body length u32 | crc32 u32 | json length u32 | sequence u64 | json | blob | zeros to the next 8`.
//! The checksum covers everything behind it. The blob is the envelope or the receipt, byte for byte.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{CorrelationId, TaskId};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{envelope, receipt};

/// Starts every record.
pub(super) const MAGIC: u32 = 0x4a52_4543;
/// Starts a stretch that was damaged and is skipped: `magic xor crc32 of the length u32 | stretch length u32`.
pub(super) const FILLER_MAGIC: u32 = 0x4a46_494c;
/// Bytes before the body.
pub(super) const HEADER: usize = 24;
/// Room for the JSON part of any record.
const MAX_JSON: usize = 8 * 1024;
/// Highest number of a record. Nobody gets there by counting; a number above it is damage, and must not stop the counting.
const MAX_SEQUENCE: u64 = u64::MAX / 2;
/// Longest body.
pub(super) const MAX_BODY: usize = receipt::MAX_BYTES + MAX_JSON;

/// Something that happened to a task or to the node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// The envelope passed every check and will be run. Blob: the envelope.
    Accepted { task: TaskNote, issued_at: Timestamp, deadline: Timestamp },
    /// Effects may exist from here on.
    Started { task: TaskNote, attempt: u32, at: Timestamp },
    /// A handler reached a phase.
    Phase { task_id: TaskId, phase: String, at: Timestamp },
    /// It is over. Blob: the signed receipt.
    Finished { task_id: TaskId, start_by: Timestamp, sequence: u64, receipt_digest: Digest },
    /// The control plane has the receipt.
    Reported { task_id: TaskId },
    /// No authenticated time before this one counts as now.
    HighestTime { at: Timestamp },
    /// A new enrollment: the tasks of the old one are void, receipts count from 1 again.
    EpochReset { node_epoch: u64 },
    /// The enrollment that the records before this one belong to, when the record of it was lost to damage.
    EpochKnown { node_epoch: u64 },
    /// Last receipt of the chain, when the receipt itself is no longer kept.
    Chain { sequence: u64, receipt_digest: Digest },
    /// A task that is finished and reported, and whose receipt is no longer kept: duplicates are still known.
    Remembered { task_id: TaskId, start_by: Timestamp },
    /// Records were lost to damage: unknown tasks signed until then may have run already.
    Fence { issued_until: Timestamp },
}

/// What every later record of a task needs to know of it, repeated so that one lost record does not lose the task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskNote {
    pub(crate) task_id: TaskId,
    pub(crate) task_type: String,
    pub(crate) digest: Digest,
    pub(crate) correlation_id: CorrelationId,
    pub(crate) start_by: Timestamp,
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(super) offset: u64,
    /// Header, body and padding.
    pub(super) length: u64,
}

/// A record as read from the file.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) sequence: u64,
    pub(super) record: Record,
    pub(super) blob: Vec<u8>,
    pub(super) length: usize,
}

/// Bytes a body of this length takes in the file.
pub(super) fn padded(body: usize) -> usize {
    (HEADER + body).next_multiple_of(8)
}

/// The record's bytes, padded; `None` if it is too large to be one.
pub(super) fn encode(record: &Record, blob: &[u8], sequence: u64) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(record).ok()?;
    let body = json.len() + blob.len();
    if body > MAX_BODY || json.len() > MAX_JSON || blob.len() > envelope::MAX_BYTES.max(receipt::MAX_BYTES) {
        return None;
    }
    let mut bytes = Vec::with_capacity(padded(body));
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body).ok()?.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&u32::try_from(json.len()).ok()?.to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(blob);
    let checksum = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    bytes.resize(padded(body), 0);
    Some(bytes)
}

/// Length of the body that this header announces, if it is a header.
pub(super) fn body_length(header: &[u8; HEADER]) -> Option<usize> {
    let length = usize::try_from(word(header, 4)).ok()?;
    (word(header, 0) == MAGIC && length <= MAX_BODY).then_some(length)
}

/// The record in `bytes` (header and body); `None` if it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<Decoded> {
    let header: &[u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
    let body = body_length(header)?;
    let bytes = bytes.get(..HEADER + body)?;
    if crc32fast::hash(&bytes[12..]) != word(bytes, 8) {
        return None;
    }
    let json_length = usize::try_from(word(bytes, 12)).ok()?;
    let sequence = Some(u64::from_le_bytes(bytes[16..24].try_into().ok()?)).filter(|sequence| *sequence <= MAX_SEQUENCE)?;
    let (json, blob) = bytes[HEADER..].split_at_checked(json_length)?;
    let record = serde_json::from_slice(json).ok()?;
    Some(Decoded { sequence, record, blob: blob.to_vec(), length: padded(body) })
}

/// The little-endian number at `at`; the caller knows that it is there.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_every_flipped_bit_is_noticed() {
        let record = Record::Reported { task_id: TaskId::from_bytes([7; 16]) };
        let bytes = encode(&record, b"blob", 42).expect("encodes");
        let decoded = decode(&bytes).expect("decodes");
        assert_eq!((decoded.sequence, &decoded.record, decoded.blob.as_slice()), (42, &record, b"blob".as_slice()));
        assert_eq!(decoded.length, bytes.len());
        let body_end = HEADER + usize::try_from(word(&bytes, 4)).expect("fits");
        for bit in 0..body_end * 8 {
            let mut rotten = bytes.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&rotten).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_that_is_too_large_is_not_made() {
        let record = Record::Reported { task_id: TaskId::from_bytes([7; 16]) };
        assert!(encode(&record, &vec![0; receipt::MAX_BYTES + 1], 1).is_none());
    }
}
