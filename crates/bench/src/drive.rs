//! A drive for measurements: a loop device over an unlinked file. It is a real block device, and disappears when the last file descriptor
//! is closed, even if this process is killed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use gpuaas_host::Host;
use gpuaas_host::guests::DriveRef;

use crate::Result;
use crate::child;

/// Size of the drive in bytes.
pub(crate) const BYTES: u64 = 1 << 30;
/// Size in bytes of one read or write when a drive is filled or checked.
const PIECE: usize = 8 << 20;
/// Number of blocks that are overwritten between two writers, so that the second cannot benefit from the work of the first.
const SPOILED: u64 = 64;

/// Where the content of the drive is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A file on the measured disk, without the page cache. Blocks can be discarded.
    Disk,
    /// A file in memory on a file system that cannot discard blocks, so the drive cannot either.
    Memory,
}

pub(crate) struct Drive {
    keeper: File,
    /// Path of the device in `/dev`.
    pub(crate) node: PathBuf,
    link: PathBuf,
    /// Folders that were created for the drive, and are removed with it.
    made: Vec<&'static str>,
    /// How the product refers to the drive.
    pub(crate) known_as: DriveRef,
    /// The data that the drive is filled with, repeatedly.
    filling: Vec<u8>,
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.link);
        for folder in self.made.iter().rev() {
            // Fails if something else uses the folder by now, which is fine.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

impl Drive {
    /// Creates the drive with its file in `folder`. Returns an error if this machine cannot do that.
    pub(crate) async fn make(folder: &Path, medium: Medium, host: &Host) -> Result<Self> {
        possible()?;
        let mut filling = vec![0; PIECE];
        fill_by_chance(&mut filling)?;
        let place = folder.join(match medium {
            Medium::Disk => "disk",
            Medium::Memory => "memory",
        });
        std::fs::create_dir_all(&place)?;
        if medium == Medium::Memory {
            run("mount", &["-t", "ramfs", "none", text(&place)?]).await?;
        }
        let attached = attach(&place.join("drive.raw"), medium).await;
        if medium == Medium::Memory {
            // The file system stays as long as the loop device has its file open.
            run("umount", &["--lazy", text(&place)?]).await?;
        }
        let (keeper, node) = attached?;

        let made: Vec<&str> =
            ["/dev/disk", "/dev/disk/by-id"].into_iter().filter(|folder| std::fs::create_dir(folder).is_ok()).collect();
        let link = Path::new("/dev/disk/by-id").join("gpuaas-bench-drive");
        // A killed run may have left the link.
        let _ = std::fs::remove_file(&link);
        let mut drive =
            Self { keeper, node, link, made, known_as: DriveRef { path: String::new(), serial: String::new() }, filling };
        let name = drive.node.file_name().ok_or("a device without a name")?;
        std::os::unix::fs::symlink(Path::new("../..").join(name), &drive.link)?;
        let path = text(&drive.link)?.to_owned();
        let found = host.drives_at(std::slice::from_ref(&path));
        let found = found.first().filter(|found| found.size_bytes == BYTES).ok_or("the loop device is not seen as a drive")?;
        drive.known_as = DriveRef { path, serial: found.serial.clone() };
        // Allocates all blocks before the measurement.
        drive.fill()?;
        Ok(drive)
    }

    /// Fills the drive with incompressible data.
    pub(crate) fn fill(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.node)?;
        for at in (0..BYTES).step_by(PIECE) {
            file.write_all_at(&self.filling, at)?;
        }
        self.settle(&file)
    }

    /// Overwrites blocks that are spread evenly over the drive.
    pub(crate) fn spoil(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.node)?;
        for number in 0..SPOILED {
            file.write_all_at(&self.filling[..4096], BYTES / SPOILED * number)?;
        }
        self.settle(&file)
    }

    /// Reads the whole drive and returns whether it contains only zeros.
    pub(crate) fn is_zero(&self) -> Result<bool> {
        self.forget()?;
        let (mut piece, mut zero) = (vec![0; PIECE], true);
        for at in (0..BYTES).step_by(PIECE) {
            self.keeper.read_exact_at(&mut piece, at)?;
            zero &= piece.iter().all(|byte| *byte == 0);
        }
        self.forget()?;
        Ok(zero)
    }

    /// Flushes the written data to the drive and empties the cache, so that the next writer is not affected.
    fn settle(&self, file: &File) -> Result<()> {
        file.sync_all()?;
        self.forget()
    }

    fn forget(&self) -> Result<()> {
        Ok(rustix::fs::fadvise(&self.keeper, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

fn possible() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("loop devices need root".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("there are no loop devices here (/dev/loop-control is missing)".into());
    }
    Ok(())
}

/// Creates the file and a loop device for it.
async fn attach(backing: &Path, medium: Medium) -> Result<(File, PathBuf)> {
    File::create(backing)?.set_len(BYTES)?;
    // Direct I/O, because two caches would interfere. A file in memory is a cache itself.
    let direct = if medium == Medium::Disk { "--direct-io=on" } else { "--direct-io=off" };
    let printed = run("losetup", &["--find", "--show", direct, text(backing)?]).await;
    std::fs::remove_file(backing)?;
    let node = PathBuf::from(printed?.trim());
    let keeper = File::open(&node);
    // Detaching an open device takes effect when it is closed.
    run("losetup", &["--detach", text(&node)?]).await?;
    Ok((keeper?, node))
}

/// Fills `bytes` with random data, which cannot be compressed.
pub(crate) fn fill_by_chance(bytes: &mut [u8]) -> Result<()> {
    aws_lc_rs::rand::fill(bytes).map_err(|_| "the system has no random numbers".into())
}

/// Returns a path as an argument.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| format!("{} is no text", path.display()).into())
}

/// Runs a system program and returns its output.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let path = child::find_program(program, &[]).ok_or_else(|| format!("{program} is not installed"))?;
    let mut command = child::command(path, Path::new("/"));
    command.args(arguments);
    child::output_of(command, program).await
}
