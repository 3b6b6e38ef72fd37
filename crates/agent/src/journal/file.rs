//! The journal's file: pre-allocated, scanned at open, repaired where possible.
//!
//! A clean end is zeros. Anything else that is not a valid record is copied to `journal.damaged-<n>` beside the journal,
//! reported, and removed: a torn tail is zeroed, damage between records becomes a filler. Every readable record is kept.
//!
//! Layout of the file's own header, little-endian:
//! `magic [u8; 8] | version u32 | crc32 u32 | confirmed end u64 | crc32 u32 | journal id [u8; 16] | crc32 u32`. Everything before
//! the confirmed end was synced before any caller relied on it. So an unreadable record there is lost, and invalid bytes after it
//! are an interrupted write that no caller relied on.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::record::{self, Decoded, FILLER_MAGIC, HEADER, Location, MAGIC};

/// Bytes before the first record.
pub(super) const FILE_HEADER: u64 = 4096;
const FILE_MAGIC: &[u8; 8] = b"GPUAASJ\0";
const FILE_VERSION: u32 = 1;
/// The position of the confirmed end in the header.
const CONFIRMED_AT: u64 = 16;
/// The position of the journal's id in the header.
const ID_AT: u64 = 28;
/// The value of the confirmed end during a repair: nothing is confirmed by it.
pub(super) const REPAIRING: u64 = u64::MAX;
/// Maximum number of copies of damaged stretches.
const MAX_DAMAGED_FILES: u32 = 16;
const CHUNK: usize = 64 * 1024;

/// The result of a scan, besides the records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// The position of the next record.
    pub(super) end: u64,
    /// Sequence of the last record.
    pub(super) last_sequence: u64,
    /// Everything before this was synced and relied on; `None` if the value is damaged.
    pub(super) confirmed: Option<u64>,
    /// Messages about repairs.
    pub(super) notices: Vec<String>,
    /// Whether there is damage before a valid record (and not only at the tail).
    pub(super) damaged_inside: bool,
}

/// Creates an empty journal of `capacity` bytes at `path`, with its space allocated.
pub(super) fn create(path: &Path, capacity: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    allocate(&file, capacity)?;
    write_header(&file)?;
    confirm(&file, FILE_HEADER)?;
    file.sync_all()?;
    Ok(file)
}

/// The unique id of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalId([u8; 16]);

impl JournalId {
    /// Generates an id.
    pub(super) fn generate() -> io::Result<Self> {
        let mut bytes = [0; 16];
        match gpuaas_runtime::random(&mut bytes) {
            true => Ok(Self(bytes)),
            false => Err(io::Error::other("the system has no random numbers")),
        }
    }
}

impl std::fmt::Display for JournalId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&gpuaas_contract::hex(&self.0))
    }
}

/// Reads the journal's id, or returns `None` if it has none yet, or a damaged one.
pub(super) fn read_id(file: &File) -> io::Result<Option<JournalId>> {
    let mut bytes = [0_u8; 20];
    match file.read_exact_at(&mut bytes, ID_AT) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (id, checksum) = bytes.split_at(16);
    // All zeros means that no id was written.
    let sound = id.iter().any(|byte| *byte != 0) && crc32fast::hash(id) == record::word(checksum, 0);
    Ok(id.try_into().ok().map(JournalId).filter(|_| sound))
}

/// Writes the journal's id.
pub(super) fn write_id(file: &File, id: JournalId) -> io::Result<()> {
    let mut bytes = [0_u8; 20];
    bytes[..16].copy_from_slice(&id.0);
    bytes[16..].copy_from_slice(&crc32fast::hash(&id.0).to_le_bytes());
    file.write_all_at(&bytes, ID_AT)
}

/// Records that everything before `end` is on disk. It is synced with the next write: an older value is only more cautious.
pub(super) fn confirm(file: &File, end: u64) -> io::Result<()> {
    let mut bytes = [0_u8; 12];
    bytes[..8].copy_from_slice(&end.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&bytes, CONFIRMED_AT)
}

/// Returns the confirmed end, or `None` if it is damaged.
pub(super) fn confirmed_end(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0_u8; 12];
    match file.read_exact_at(&mut bytes, CONFIRMED_AT) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (end, checksum) = bytes.split_at(8);
    let sound = crc32fast::hash(end) == record::word(checksum, 0);
    Ok(end.try_into().ok().map(u64::from_le_bytes).filter(|_| sound))
}

/// Allocates space until the file has this many bytes.
pub(super) fn allocate(file: &File, capacity: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, capacity) {
        Ok(()) => Ok(()),
        // On a file system without allocation, writing zeros takes the space too.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let mut writer = file;
            writer.seek(SeekFrom::Start(0))?;
            io::copy(&mut io::repeat(0).take(capacity), &mut writer)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn write_header(file: &File) -> io::Result<()> {
    let mut header = [0_u8; 16];
    header[..8].copy_from_slice(FILE_MAGIC);
    header[8..12].copy_from_slice(&FILE_VERSION.to_le_bytes());
    let checksum = crc32fast::hash(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&header, 0)
}

/// The state of the file's own header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileHeader {
    /// It is valid.
    Good,
    /// It was written by a newer agent.
    Newer(u32),
    /// It is damaged, or not a journal.
    Bad,
}

pub(super) fn read_header(file: &File) -> io::Result<FileHeader> {
    let mut header = [0_u8; 16];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(FileHeader::Bad),
        Err(error) => return Err(error),
    }
    let sound = &header[..8] == FILE_MAGIC && crc32fast::hash(&header[..12]) == record::word(&header, 12);
    Ok(match record::word(&header, 8) {
        _ if !sound => FileHeader::Bad,
        FILE_VERSION => FileHeader::Good,
        version => FileHeader::Newer(version),
    })
}

/// Returns whether there is any valid record.
pub(super) fn has_records(file: &File, capacity: u64) -> io::Result<bool> {
    Ok(next_record(file, FILE_HEADER, capacity, 0)?.is_some())
}

/// Repairs the header.
pub(super) fn repair_header(file: &File) -> io::Result<()> {
    write_header(file)?;
    file.sync_all()
}

/// Reads every record, repairs what is not one, and calls `on` for each record and each gap, in order.
pub(super) fn scan(file: &File, path: &Path, capacity: u64, mut on: impl FnMut(Found<'_>)) -> io::Result<Scan> {
    let mut scan = Scan { end: FILE_HEADER, confirmed: confirmed_end(file)?, ..Scan::default() };
    let mut offset = FILE_HEADER;
    loop {
        if let Some(decoded) = record_at(file, offset, capacity)?.filter(|d| d.sequence > scan.last_sequence) {
            let at = Location { offset, length: length_of(&decoded) };
            on(Found::Record(at, &decoded));
            scan.last_sequence = decoded.sequence;
            offset += at.length;
            scan.end = offset;
            continue;
        }
        if let Some(length) = filler_at(file, offset, capacity)? {
            offset += length;
            scan.end = offset;
            continue;
        }
        let Some(dirty) = first_non_zero(file, offset, capacity)? else {
            return Ok(scan);
        };
        let next = next_record(file, dirty, capacity, scan.last_sequence)?;
        on(Found::Damage);
        match next {
            Some(next) => {
                let copy = save_damaged(file, path, offset, next)?;
                // A repair is complete when its fence is recorded; until then every start completes it.
                confirm(file, REPAIRING)?;
                file.sync_data()?;
                write_filler(file, offset, next - offset)?;
                scan.damaged_inside = true;
                scan.notices.push(format!(
                    "the journal was damaged at byte {offset} ({} bytes); every other record was kept, the damaged bytes are in {copy}",
                    next - offset
                ));
                offset = next;
            }
            None => {
                let end = end_of_dirt(file, offset, capacity)?;
                let copy = save_damaged(file, path, offset, end)?;
                zero(file, offset, end)?;
                let cut_off = scan.confirmed.is_some_and(|confirmed| confirmed <= offset);
                let why = if cut_off { " (a write was cut off)" } else { "" };
                scan.notices.push(format!(
                    "the journal ended in {} bytes that are no record{why}; they were removed and kept in {copy}",
                    end - offset
                ));
                return Ok(scan);
            }
        }
    }
}

/// Like [`scan`], but changes nothing. Returns the end of the records.
pub(super) fn walk(file: &File, capacity: u64, mut on: impl FnMut(Found<'_>)) -> io::Result<u64> {
    let (mut offset, mut last) = (FILE_HEADER, 0);
    loop {
        if let Some(decoded) = record_at(file, offset, capacity)?.filter(|d| d.sequence > last) {
            let at = Location { offset, length: length_of(&decoded) };
            on(Found::Record(at, &decoded));
            last = decoded.sequence;
            offset += at.length;
        } else if let Some(length) = filler_at(file, offset, capacity)? {
            offset += length;
        } else if let Some(dirty) = first_non_zero(file, offset, capacity)? {
            on(Found::Damage);
            match next_record(file, dirty, capacity, last)? {
                Some(next) => offset = next,
                None => return Ok(offset),
            }
        } else {
            return Ok(offset);
        }
    }
}

/// An item of a scan.
pub(super) enum Found<'a> {
    /// A valid record.
    Record(Location, &'a Decoded),
    /// Bytes that are not a record.
    Damage,
}

/// Reads the record at `location` and checks it again, because the disk may have changed.
pub(super) fn read(file: &File, location: Location) -> io::Result<Decoded> {
    let capacity = location.offset + location.length;
    record_at(file, location.offset, capacity)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("the journal is damaged at byte {}", location.offset)))
}

fn length_of(decoded: &Decoded) -> u64 {
    u64::try_from(decoded.length).unwrap_or(u64::MAX)
}

fn record_at(file: &File, offset: u64, capacity: u64) -> io::Result<Option<Decoded>> {
    let mut header = [0_u8; HEADER];
    if !read_within(file, &mut header, offset, capacity)? {
        return Ok(None);
    }
    let Some(body) = record::body_length(&header) else { return Ok(None) };
    let mut bytes = vec![0; record::padded(body)];
    if !read_within(file, &mut bytes, offset, capacity)? {
        return Ok(None);
    }
    // Padding must be zero, so that a bit flip there is detected and nothing can hide in it.
    let clean_padding = bytes[HEADER + body..].iter().all(|byte| *byte == 0);
    Ok(record::decode(&bytes).filter(|_| clean_padding))
}

/// Fills `buffer` if it is within the file.
fn read_within(file: &File, buffer: &mut [u8], offset: u64, capacity: u64) -> io::Result<bool> {
    let length = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
    if offset.saturating_add(length) > capacity {
        return Ok(false);
    }
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the length of the filler at `offset`. It is valid only if it ends where a record or another filler starts.
fn filler_at(file: &File, offset: u64, capacity: u64) -> io::Result<Option<u64>> {
    let mut bytes = [0_u8; 8];
    if !read_within(file, &mut bytes, offset, capacity)? {
        return Ok(None);
    }
    let Some(length) = filler_length(&bytes) else { return Ok(None) };
    let mut next = [0_u8; 8];
    let follows = read_within(file, &mut next, offset + length, capacity)?;
    let known = record::word(&next, 0) == MAGIC || filler_length(&next).is_some();
    Ok((follows && known).then_some(length))
}

/// Returns the length in these bytes, if they start a filler. A damaged length must neither skip readable records nor hide
/// unreadable ones.
fn filler_length(bytes: &[u8; 8]) -> Option<u64> {
    let length = record::word(bytes, 4);
    let sound = length > 0 && length.is_multiple_of(8) && record::word(bytes, 0) == filler_magic(length);
    sound.then_some(length.into())
}

/// Returns the magic of a filler. There is room for eight bytes only, so the length's checksum is part of the magic.
fn filler_magic(length: u32) -> u32 {
    FILLER_MAGIC ^ crc32fast::hash(&length.to_le_bytes())
}

fn write_filler(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let length = u32::try_from(length).map_err(|_| io::Error::other("the damaged stretch is longer than 4 GiB"))?;
    let mut bytes = [0_u8; 8];
    bytes[..4].copy_from_slice(&filler_magic(length).to_le_bytes());
    bytes[4..].copy_from_slice(&length.to_le_bytes());
    file.write_all_at(&bytes, offset)?;
    file.sync_data()
}

/// Returns the offset (a multiple of 8, at least `from`) of the first byte group that is not zero.
fn first_non_zero(file: &File, from: u64, capacity: u64) -> io::Result<Option<u64>> {
    find(file, from, capacity, |group| group.iter().any(|byte| *byte != 0))
}

/// Finds the next valid record at or after `from` whose sequence is above `last`.
fn next_record(file: &File, from: u64, capacity: u64, last: u64) -> io::Result<Option<u64>> {
    let mut from = from;
    while let Some(candidate) = find(file, from, capacity, |group| record::word(group, 0) == MAGIC)? {
        if record_at(file, candidate, capacity)?.is_some_and(|decoded| decoded.sequence > last) {
            return Ok(Some(candidate));
        }
        from = candidate + 8;
    }
    Ok(None)
}

/// Finds the first aligned group of 8 bytes that is `wanted`.
fn find(file: &File, from: u64, capacity: u64, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Option<u64>> {
    let mut buffer = vec![0_u8; CHUNK];
    // Most of the file is zeros, which are never searched for.
    let zeros = vec![0_u8; CHUNK];
    let mut offset = from;
    while offset < capacity {
        let room = usize::try_from(capacity - offset).unwrap_or(CHUNK).min(CHUNK);
        let count = read_some(file, &mut buffer[..room], offset)?;
        if count == 0 {
            break;
        }
        if buffer[..count] != zeros[..count]
            && let Some(position) = buffer[..count].chunks(8).position(&wanted)
        {
            return Ok(Some(offset + u64::try_from(position * 8).unwrap_or(0)));
        }
        offset += u64::try_from(count).unwrap_or(0);
    }
    Ok(None)
}

fn read_some(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + u64::try_from(filled).unwrap_or(0)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Returns the end of the last byte that is not zero, rounded up to a multiple of 8.
fn end_of_dirt(file: &File, from: u64, capacity: u64) -> io::Result<u64> {
    let mut buffer = vec![0_u8; CHUNK];
    let zeros = vec![0_u8; CHUNK];
    let (mut offset, mut end) = (from, from);
    while offset < capacity {
        let room = usize::try_from(capacity - offset).unwrap_or(CHUNK).min(CHUNK);
        let count = read_some(file, &mut buffer[..room], offset)?;
        if count == 0 {
            break;
        }
        if buffer[..count] != zeros[..count]
            && let Some(last) = buffer[..count].iter().rposition(|byte| *byte != 0)
        {
            end = offset + u64::try_from(last + 1).unwrap_or(0);
        }
        offset += u64::try_from(count).unwrap_or(0);
    }
    Ok(end.next_multiple_of(8).min(capacity))
}

fn zero(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0_u8; CHUNK];
    let mut offset = from;
    while offset < to {
        let count = usize::try_from(to - offset).unwrap_or(CHUNK).min(CHUNK);
        file.write_all_at(&zeros[..count], offset)?;
        offset += u64::try_from(count).unwrap_or(0);
    }
    file.sync_data()
}

/// Copies a damaged stretch to a file beside the journal and returns its name. Best effort: on a full disk the repair matters
/// more.
fn save_damaged(file: &File, path: &Path, from: u64, to: u64) -> io::Result<String> {
    let Some(copy) = free_damaged_name(path) else {
        return Ok(format!("no file ({MAX_DAMAGED_FILES} copies exist already)"));
    };
    let result = copy_stretch(file, &copy, from, to);
    match result {
        Ok(()) => Ok(copy.display().to_string()),
        Err(error) => {
            let _ = std::fs::remove_file(&copy);
            Ok(format!("no file (it could not be written: {error})"))
        }
    }
}

fn copy_stretch(file: &File, copy: &Path, from: u64, to: u64) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy)?;
    let mut buffer = vec![0_u8; CHUNK];
    let mut offset = from;
    while offset < to {
        let room = usize::try_from(to - offset).unwrap_or(CHUNK).min(CHUNK);
        let count = read_some(file, &mut buffer[..room], offset)?;
        if count == 0 {
            break;
        }
        target.write_all(&buffer[..count])?;
        offset += u64::try_from(count).unwrap_or(0);
    }
    target.sync_all()
}

/// Returns a free name for a copy.
pub(super) fn free_damaged_name(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    (1..=MAX_DAMAGED_FILES).map(|n| path.with_file_name(format!("{name}.damaged-{n}"))).find(|copy| !copy.exists())
}
