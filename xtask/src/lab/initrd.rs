//! The root file system of an emulated host: an archive that the kernel unpacks into memory.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use super::program::{read, run};

/// The content of the archive, by path without the leading `/`. The order puts a folder in front of its content.
#[derive(Default)]
pub(super) struct Initrd {
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    /// File type and permissions, as in `st_mode`.
    mode: u32,
    content: Vec<u8>,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Initrd {
    /// Adds an empty folder.
    pub(super) fn folder(&mut self, at: &str) {
        self.add(at, FOLDER, vec![]);
    }

    /// Adds a file with this content.
    pub(super) fn file(&mut self, at: &str, content: impl Into<Vec<u8>>) {
        self.add(at, FILE, content.into());
    }

    /// Adds an executable file with this content.
    pub(super) fn script(&mut self, at: &str, content: impl Into<Vec<u8>>) {
        self.add(at, PROGRAM, content.into());
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, at: &str, target: &str) {
        self.add(at, LINK, target.as_bytes().to_vec());
    }

    /// Adds a program of this machine, with its libraries at the paths at which the program expects them.
    pub(super) fn program(&mut self, from: &Path, at: &str) -> Result<(), String> {
        self.script(at, read(from)?);
        // `ldd` fails for a static program, which has no libraries.
        let listed = run(Command::new("ldd").arg(from)).unwrap_or_default();
        for library in libraries(&listed) {
            if !self.entries.contains_key(library.trim_start_matches('/')) {
                self.script(library, read(Path::new(library))?);
            }
        }
        Ok(())
    }

    /// Writes the archive in the "newc" cpio format, which the kernel reads.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let written = std::fs::File::create(path).and_then(|file| {
            let mut archive = BufWriter::new(file);
            for (number, (name, entry)) in (1..).zip(&self.entries) {
                write_entry(&mut archive, number, name, entry.mode, &entry.content)?;
            }
            write_entry(&mut archive, 0, "TRAILER!!!", 0, &[])?;
            archive.flush()
        });
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn add(&mut self, at: &str, mode: u32, content: Vec<u8>) {
        let name = at.trim_matches('/');
        for (end, _) in name.match_indices('/') {
            self.entries.entry(name[..end].to_owned()).or_insert(Entry { mode: FOLDER, content: vec![] });
        }
        self.entries.insert(name.to_owned(), Entry { mode, content });
    }
}

/// Returns the paths in the output of `ldd`: `name => path (address)`, or `path (address)` for the dynamic loader.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Writes one entry: a header of hexadecimal numbers, the name and the content, each padded to four bytes.
fn write_entry(archive: &mut impl Write, number: u32, name: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
    let too_large = |_| std::io::Error::from(std::io::ErrorKind::FileTooLarge);
    let size = u32::try_from(content.len()).map_err(too_large)?;
    let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
    // Inode, mode, owner, group, links, modification time, size, four device numbers, name size, and a checksum that this format
    // does not use.
    let header = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    write!(archive, "070701")?;
    for field in header {
        write!(archive, "{field:08x}")?;
    }
    archive.write_all(name.as_bytes())?;
    archive.write_all(&[0])?;
    let padding = |length: usize| vec![0; length.next_multiple_of(4) - length];
    archive.write_all(&padding(6 + 13 * 8 + name.len() + 1))?;
    archive.write_all(content)?;
    archive.write_all(&padding(content.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_folders_before_what_is_in_them() {
        let mut initrd = Initrd::default();
        initrd.script("/init", "#!/bin/sh\n");
        initrd.file("lib/modules/vfio.ko", vec![1, 2, 3]);
        let names: Vec<&str> = initrd.entries.keys().map(String::as_str).collect();
        assert_eq!(names, ["init", "lib", "lib/modules", "lib/modules/vfio.ko"]);
    }

    #[test]
    fn an_entry_is_filled_up_to_four_bytes() {
        let mut archive = vec![];
        write_entry(&mut archive, 1, "init", PROGRAM, b"abc").expect("writes");
        let expected = "07070100000001000081ed000000000000000000000001000000000000000300000000000000000000000000000000\
                        0000000500000000init\0\0abc\0";
        assert_eq!(String::from_utf8_lossy(&archive), expected);
        assert_eq!(archive.len() % 4, 0);
    }

    #[test]
    fn libraries_are_found_by_their_paths() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n";
        let found: Vec<&str> = libraries(listed).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
