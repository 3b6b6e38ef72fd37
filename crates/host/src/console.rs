//! A guest's serial console: a file that another process appends to, kept within a budget.
//!
//! Positions count from the start of the guest. Old content is removed in place by punching a hole, so the appending process is
//! not affected and nothing it writes in the meantime is lost. virtlogd, which writes the file on most hosts, renames it to
//! `console.log.0` when it is large (2 MiB by default) and starts a new one; `console.base` records where each file begins.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use gpuaas_contract::id::AllocationId;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::HostError;
use crate::guests::{ConsoleFrom, ConsolePart, InstanceFile};
use crate::instance;
use crate::openat2::{Access, Folder};

/// The file with the start positions of the console's files.
const BASE: &str = "console.base";
/// Size limit of that file.
const BASE_BYTES: u64 = 16 * 1024;
/// virtlogd's own limit of files.
const MOST_FILES: usize = 32;
/// Maximum size of one read, in bytes.
const MOST_READ: usize = 4 * 1024 * 1024;

/// Reads a part of a guest's console, up to a limit.
pub(crate) fn read(instances: &Path, id: AllocationId, from: ConsoleFrom, most: usize) -> Result<ConsolePart, HostError> {
    let Some(folder) = instance::find(instances, id)? else { return Ok(ConsolePart { start: 0, bytes: Vec::new() }) };
    let pieces = pieces(&folder)?;
    let begin = pieces.first().map_or(0, Piece::begin);
    let end = pieces.last().map_or(0, Piece::end);
    let start = match from {
        ConsoleFrom::Tail(bytes) => end.saturating_sub(bytes).max(begin),
        ConsoleFrom::Position(position) => position.clamp(begin, end),
    };
    let mut bytes = Vec::new();
    let mut room = most.min(MOST_READ);
    for piece in &pieces {
        let at = start + bytes.len() as u64;
        if room == 0 || at >= piece.end() {
            continue;
        }
        let want = usize::try_from(piece.end() - at).unwrap_or(usize::MAX).min(room);
        let read = read_at(&piece.file, at.saturating_sub(piece.start), want).map_err(|error| failed("read", id, &error))?;
        let short = read.len() < want;
        room -= read.len();
        bytes.extend_from_slice(&read);
        // The file was cut in the meantime: the rest would be at the wrong position.
        if short {
            break;
        }
    }
    Ok(ConsolePart { start, bytes })
}

/// Trims a guest's console to the budget.
pub(crate) fn trim(instances: &Path, id: AllocationId, budget: u64) -> Result<(), HostError> {
    let Some(folder) = instance::find(instances, id)? else { return Ok(()) };
    let mut pieces = pieces(&folder)?;
    let mut size: u64 = pieces.iter().map(Piece::size).sum();
    while size > budget && pieces.len() > 1 {
        let oldest = pieces.remove(0);
        folder.remove_file(&oldest.name).map_err(instance::failed)?;
        size -= oldest.size();
    }
    let Some(last) = pieces.last_mut() else { return Ok(()) };
    let punched = last.skip;
    if last.size() > budget {
        last.skip = last.length - budget / 2;
    }
    // Recorded first, so that the hole is never taken for guest output.
    let known: Vec<_> = read_base(&folder)?.iter().map(Base::cut).collect();
    let bases: Vec<Base> = pieces.iter().map(Piece::base).collect();
    if bases.iter().map(Base::cut).ne(known) {
        write_base(&folder, &bases)?;
    }
    let Some(last) = pieces.last() else { return Ok(()) };
    if last.skip == punched {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(&last.file, hole, 0, last.skip) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => cut_by_copy(&folder, last).map_err(|error| failed("cut", id, &error))?,
        Err(errno) => Err(failed("cut", id, &errno.into())),
    }
}

/// Trims a file on a file system without holes. What the guest writes at this moment may appear before its earlier output.
fn cut_by_copy(folder: &Folder, last: &Piece) -> std::io::Result<Result<(), HostError>> {
    let kept = read_at(&last.file, last.skip, usize::try_from(last.length - last.skip).unwrap_or(usize::MAX))?;
    last.file.set_len(0)?;
    rustix::fs::fcntl_setfl(&last.file, rustix::fs::OFlags::APPEND)?;
    (&last.file).write_all(&kept)?;
    Ok(write_base(folder, &[Base { start: last.start + last.skip, skip: 0, ..last.base() }]))
}

/// A file with a part of the console.
struct Piece {
    file: File,
    name: String,
    inode: u64,
    /// Position of its first byte.
    start: u64,
    /// Number of its bytes that are removed.
    skip: u64,
    length: u64,
}

impl Piece {
    fn begin(&self) -> u64 {
        self.start + self.skip
    }

    fn end(&self) -> u64 {
        self.start + self.length
    }

    fn size(&self) -> u64 {
        self.length - self.skip
    }

    fn base(&self) -> Base {
        Base { inode: self.inode, start: self.start, skip: self.skip, length: self.length }
    }
}

/// One file with a known start position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Base {
    inode: u64,
    start: u64,
    skip: u64,
    length: u64,
}

impl Base {
    /// Returns the values that must be saved when they change.
    fn cut(&self) -> (u64, u64) {
        (self.inode, self.skip)
    }
}

/// Returns the console's files, oldest first.
fn pieces(folder: &Folder) -> Result<Vec<Piece>, HostError> {
    let current = InstanceFile::Console.name();
    let rotated = (0..MOST_FILES).map(|number| format!("{current}.{number}"));
    let mut pieces: Vec<Piece> = Vec::new();
    for (place, name) in std::iter::once(current.to_owned()).chain(rotated).enumerate() {
        let Some(file) = folder.file(&name, Access::Change).map_err(instance::failed)? else {
            // During a rotation, the first name does not exist.
            if place == 0 { continue } else { break }
        };
        let meta = file.metadata().map_err(|error| HostError::because("instance_io", &name, &error))?;
        let (inode, length) = (meta.ino(), meta.len());
        // Rotated in the meantime: the same file under its next name.
        if pieces.iter().all(|piece| piece.inode != inode) {
            pieces.push(Piece { file, name, inode, start: 0, skip: 0, length });
        }
    }
    pieces.reverse();
    place(&mut pieces, &read_base(folder)?);
    Ok(pieces)
}

/// Sets the start of each piece: by the last one with a known position, or after everything that is known.
fn place(pieces: &mut [Piece], bases: &[Base]) {
    let mut next = bases.iter().map(|base| base.start.saturating_add(base.length)).max().unwrap_or(0);
    let mut older = 0_u64;
    for piece in pieces.iter_mut() {
        if let Some(base) = bases.iter().find(|base| base.inode == piece.inode) {
            piece.skip = base.skip.min(piece.length);
            next = base.start.saturating_sub(older);
        }
        older = older.saturating_add(piece.length);
    }
    for piece in pieces {
        piece.start = next;
        next = next.saturating_add(piece.length);
    }
}

fn read_base(folder: &Folder) -> Result<Vec<Base>, HostError> {
    let bytes = folder.read(BASE, BASE_BYTES).map_err(instance::failed)?;
    // A damaged file loses the positions, not the console.
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

fn write_base(folder: &Folder, bases: &[Base]) -> Result<(), HostError> {
    let bytes = serde_json::to_vec(bases).map_err(|error| HostError::because("instance_io", BASE, &error))?;
    folder.write(BASE, &bytes, 0o600).map_err(instance::failed)
}

fn read_at(file: &File, mut at: u64, want: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; want];
    let mut filled = 0;
    while filled < want {
        match file.read_at(&mut bytes[filled..], at) {
            Ok(0) => break,
            Ok(count) => {
                filled += count;
                at += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn failed(what: &str, id: AllocationId, error: &std::io::Error) -> HostError {
    HostError::because("instance_io", &format!("cannot {what} the console of {id}"), error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::PathBuf;

    use super::*;

    struct Guest {
        root: tempfile::TempDir,
        id: AllocationId,
        writer: File,
    }

    fn guest() -> Guest {
        let root = tempfile::tempdir().expect("folder");
        let id = AllocationId::generate();
        instance::make(root.path(), id).expect("made");
        let writer = append(&root.path().join(id.to_string()).join("console.log"));
        Guest { root, id, writer }
    }

    fn append(path: &Path) -> File {
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).expect("opened")
    }

    impl Guest {
        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(self.id.to_string()).join(name)
        }

        fn says(&mut self, text: &[u8]) {
            self.writer.write_all(text).expect("written");
        }

        fn read(&self, from: ConsoleFrom, most: usize) -> ConsolePart {
            read(self.root.path(), self.id, from, most).expect("read")
        }

        fn trim(&self, budget: u64) {
            trim(self.root.path(), self.id, budget).expect("trimmed");
        }

        /// Rotates a large file like virtlogd.
        fn rotate(&mut self, backups: usize) {
            for number in (0..backups).rev() {
                let from = if number == 0 { self.path("console.log") } else { self.path(&format!("console.log.{}", number - 1)) };
                let _ = std::fs::rename(from, self.path(&format!("console.log.{number}")));
            }
            self.writer = append(&self.path("console.log"));
        }
    }

    /// Returns bytes that differ from their neighbors, so that a wrong position is detected.
    fn stream(from: u64, count: u64) -> Vec<u8> {
        (from..from + count).map(|position| u8::try_from(position % 251).expect("small")).collect()
    }

    #[test]
    fn no_console_is_an_empty_one() {
        let root = tempfile::tempdir().expect("folder");
        let id = AllocationId::generate();
        let empty = ConsolePart { start: 0, bytes: Vec::new() };
        assert_eq!(read(root.path(), id, ConsoleFrom::Tail(10), 10).expect("read"), empty);
        trim(root.path(), id, 10).expect("nothing to do");
        instance::make(root.path(), id).expect("made");
        assert_eq!(read(root.path(), id, ConsoleFrom::Position(10), 10).expect("read"), empty);
        trim(root.path(), id, 10).expect("nothing to do");
    }

    #[test]
    fn a_part_is_read_from_a_position_or_before_the_end() {
        let mut guest = guest();
        guest.says(b"0123456789");
        assert_eq!(guest.read(ConsoleFrom::Position(3), 4), ConsolePart { start: 3, bytes: b"3456".to_vec() });
        assert_eq!(guest.read(ConsoleFrom::Tail(3), 100), ConsolePart { start: 7, bytes: b"789".to_vec() });
        assert_eq!(guest.read(ConsoleFrom::Tail(100), 100).bytes, b"0123456789");
        assert_eq!(guest.read(ConsoleFrom::Position(99), 100), ConsolePart { start: 10, bytes: Vec::new() });
    }

    #[test]
    fn positions_stay_true_through_many_trims_while_the_guest_writes() {
        let mut guest = guest();
        let budget = 100_000;
        let mut reported = 0;
        let mut read_to = 0;
        for round in 0..200_u64 {
            let count = 1 + (round * 7919) % 30_000;
            guest.says(&stream(reported, count));
            reported += count;
            if round % 3 == 0 {
                guest.trim(budget);
                let blocks = guest.path("console.log").metadata().expect("meta").blocks() * 512;
                assert!(blocks <= budget + 64 * 1024, "{blocks} bytes on disk");
            }
            let tail = guest.read(ConsoleFrom::Tail(1000), 1000);
            assert_eq!(tail.next(), reported);
            assert_eq!(tail.bytes, stream(tail.start, tail.bytes.len() as u64));
            let part = guest.read(ConsoleFrom::Position(read_to), 20_000);
            assert_eq!(part.bytes, stream(part.start, part.bytes.len() as u64), "{}", part.start);
            assert!(part.start >= read_to);
            read_to = part.next();
        }
        let oldest = guest.read(ConsoleFrom::Position(0), 1);
        assert!(oldest.start > 0 && reported - oldest.start <= budget + 90_000, "{} of {reported}", oldest.start);
    }

    #[test]
    fn a_console_that_is_moved_away_when_it_is_large_goes_on_at_the_same_position() {
        let mut guest = guest();
        let (mut reported, mut whole) = (0, 0);
        for round in 0..60_u64 {
            guest.says(&stream(reported, 7_001));
            reported += 7_001;
            whole += 7_001;
            if whole > 50_000 {
                guest.rotate(3);
                whole = 0;
            }
            if round % 4 == 0 {
                guest.trim(90_000);
            }
            let all = guest.read(ConsoleFrom::Position(0), usize::MAX);
            assert_eq!(all.next(), reported, "round {round}");
            assert_eq!(all.bytes, stream(all.start, all.bytes.len() as u64), "round {round}");
        }
        guest.trim(20_000);
        let all = guest.read(ConsoleFrom::Tail(u64::MAX), usize::MAX);
        assert!(all.bytes.len() <= 20_000 && all.next() == reported, "{} {reported}", all.bytes.len());
        assert!(!guest.path("console.log.1").exists(), "old files go first");
    }

    #[test]
    fn a_file_that_was_cut_and_then_moved_away_shows_no_hole() {
        let mut guest = guest();
        guest.says(&stream(0, 30_000));
        guest.trim(20_000);
        guest.rotate(3);
        guest.says(&stream(30_000, 1_000));
        guest.trim(20_000);
        let all = guest.read(ConsoleFrom::Position(0), usize::MAX);
        assert_eq!((all.start, all.bytes), (20_000, stream(20_000, 11_000)));
    }

    #[test]
    fn where_there_are_no_holes_the_end_is_kept_by_copy() {
        let mut guest = guest();
        guest.says(&stream(0, 10_000));
        let folder = instance::open(guest.root.path(), guest.id).expect("there");
        let mut last = pieces(&folder).expect("read").pop().expect("one");
        last.skip = 6_000;
        cut_by_copy(&folder, &last).expect("cut").expect("written down");
        assert_eq!(guest.path("console.log").metadata().expect("meta").len(), 4_000);
        guest.says(&stream(10_000, 500));
        let all = guest.read(ConsoleFrom::Position(0), usize::MAX);
        assert_eq!((all.start, all.bytes), (6_000, stream(6_000, 4_500)));
    }

    #[test]
    fn a_link_in_the_place_of_the_console_is_refused() {
        let guest = guest();
        std::fs::remove_file(guest.path("console.log")).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", guest.path("console.log")).expect("link");
        let error = read(guest.root.path(), guest.id, ConsoleFrom::Tail(10), 10).expect_err("a link");
        assert_eq!(error.code, "path_escapes");
        assert_eq!(trim(guest.root.path(), guest.id, 0).expect_err("a link").code, "path_escapes");
    }
}
