//! One record of the journal, and its layout in the file.
//!
//! Layout, little-endian, at an offset that is a multiple of 8:
//! `magic u32 | body length u32 | crc32 u32 | json length u32 | sequence u64 | json | blob | zeros to the next 8`. The checksum
//! covers everything after it. The blob is the envelope or the receipt, byte for byte.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{CorrelationId, TaskId};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{envelope, receipt};

/// The start of every record.
pub(super) const MAGIC: u32 = 0x4a52_4543;
/// The start of a damaged stretch that is skipped: `magic xor crc32 of the length u32 | stretch length u32`.
pub(super) const FILLER_MAGIC: u32 = 0x4a46_494c;
/// Bytes before the body.
pub(super) const HEADER: usize = 24;
/// Size limit of the JSON part of a record.
const MAX_JSON: usize = 8 * 1024;
/// Highest number of a record. No journal counts that far, so a higher number is damage, and must not block the numbering.
const MAX_SEQUENCE: u64 = u64::MAX / 2;
/// Longest body.
pub(super) const MAX_BODY: usize = receipt::MAX_BYTES + MAX_JSON;

/// A journal record of a task or of the node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// The envelope passed every check and will be run. Blob: the envelope.
    Accepted { task: TaskNote, issued_at: Timestamp, deadline: Timestamp },
    /// Effects may exist from here on.
    Started { task: TaskNote, attempt: u32, at: Timestamp },
    /// A handler reached a phase.
    Phase { task_id: TaskId, phase: String, at: Timestamp },
    /// The task has ended. Blob: the signed receipt.
    Finished { task_id: TaskId, start_by: Timestamp, sequence: u64, receipt_digest: Digest },
    /// The control plane has the receipt.
    Reported { task_id: TaskId },
    /// No authenticated time before this one is accepted as now.
    HighestTime { at: Timestamp },
    /// A new enrollment: the tasks of the old one are void, and receipts count from 1 again.
    EpochReset { node_epoch: u64 },
    /// The enrollment of the records before this one, when its own record was lost to damage.
    EpochKnown { node_epoch: u64 },
    /// The last receipt of the chain, when the receipt itself is no longer kept.
    Chain { sequence: u64, receipt_digest: Digest },
    /// A task that is finished and reported, and whose receipt is no longer kept: duplicates are still recognized.
    Remembered { task_id: TaskId, start_by: Timestamp },
    /// Records were lost to damage: unknown tasks signed until then may have run already.
    Fence { issued_until: Timestamp },
}

/// What every later record repeats about its task, so that one lost record does not lose the task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskNote {
    pub(crate) task_id: TaskId,
    pub(crate) task_type: String,
    pub(crate) digest: Digest,
    pub(crate) correlation_id: CorrelationId,
    pub(crate) start_by: Timestamp,
}

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(super) offset: u64,
    /// Header, body and padding.
    pub(super) length: u64,
}

/// A decoded record.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) sequence: u64,
    pub(super) record: Record,
    pub(super) blob: Vec<u8>,
    pub(super) length: usize,
}

/// Returns the size in the file of a body with this length.
pub(super) fn padded(body: usize) -> usize {
    (HEADER + body).next_multiple_of(8)
}

/// Returns the record's bytes, padded, or `None` if it is too large.
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

/// Returns the body length in this header, if it is a header.
pub(super) fn body_length(header: &[u8; HEADER]) -> Option<usize> {
    let length = usize::try_from(word(header, 4)).ok()?;
    (word(header, 0) == MAGIC && length <= MAX_BODY).then_some(length)
}

/// Decodes the record in `bytes` (header and body), or returns `None` if it is damaged.
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

/// Returns the little-endian number at `at`, which must be in range.
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
