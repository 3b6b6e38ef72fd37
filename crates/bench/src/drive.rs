//! A drive of our own, which is a real block device to everything: a loop device over a file that has no name any more. It goes away
//! with its last open file, even if we are killed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use gpuaas_host::Host;
use gpuaas_host::guests::DriveRef;

use crate::Result;
use crate::child;

/// Size of every drive here.
pub(crate) const BYTES: u64 = 1 << 30;
/// What is read and written at once when a drive is filled or looked at.
const PIECE: usize = 8 << 20;
/// Places that are spoiled between two writers, so that the next one cannot pass off the work of the one before as its own.
const SPOILED: u64 = 64;

/// What the drive's content is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A file on the disk that is measured, past the page cache. Blocks can be given back.
    Disk,
    /// A file in memory on a file system that cannot give blocks back, so the drive cannot either.
    Memory,
}

/// A drive.
pub(crate) struct Drive {
    keeper: File,
    /// Its name in `/dev`.
    pub(crate) node: PathBuf,
    link: PathBuf,
    /// Folders that were not there before.
    made: Vec<&'static str>,
    /// What the product knows it by.
    pub(crate) known_as: DriveRef,
    /// What it is filled with.
    filling: Vec<u8>,
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.link);
        for folder in self.made.iter().rev() {
            // Unless somebody else uses it by now.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

impl Drive {
    /// Makes it, with its file in `folder`; says what is missing where there can be none.
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
            // It stays for as long as the loop device has its file.
            run("umount", &["--lazy", text(&place)?]).await?;
        }
        let (keeper, node) = attached?;

        let made: Vec<&str> =
            ["/dev/disk", "/dev/disk/by-id"].into_iter().filter(|folder| std::fs::create_dir(folder).is_ok()).collect();
        let link = Path::new("/dev/disk/by-id").join("gpuaas-bench-drive");
        // What a run that was killed may have left.
        let _ = std::fs::remove_file(&link);
        let mut drive =
            Self { keeper, node, link, made, known_as: DriveRef { path: String::new(), serial: String::new() }, filling };
        let name = drive.node.file_name().ok_or("a device without a name")?;
        std::os::unix::fs::symlink(Path::new("../..").join(name), &drive.link)?;
        let path = text(&drive.link)?.to_owned();
        let found = host.drives_at(std::slice::from_ref(&path));
        let found = found.first().filter(|found| found.size_bytes == BYTES).ok_or("the loop device is not seen as a drive")?;
        drive.known_as = DriveRef { path, serial: found.serial.clone() };
        // Every block of it is there before anybody is timed.
        drive.fill()?;
        Ok(drive)
    }

    /// Fills it with what a tenant could have left.
    pub(crate) fn fill(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.node)?;
        for at in (0..BYTES).step_by(PIECE) {
            file.write_all_at(&self.filling, at)?;
        }
        self.settle(&file)
    }

    /// Changes some blocks all over it.
    pub(crate) fn spoil(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.node)?;
        for number in 0..SPOILED {
            file.write_all_at(&self.filling[..4096], BYTES / SPOILED * number)?;
        }
        self.settle(&file)
    }

    /// Reads all of it: nothing but zeros.
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

    /// What was written is on the drive, and nothing of it is left in the cache for the next one to deal with.
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

/// Makes the file and a loop device that has it alone.
async fn attach(backing: &Path, medium: Medium) -> Result<(File, PathBuf)> {
    File::create(backing)?.set_len(BYTES)?;
    // Two caches would be in the way of each other; memory is one itself.
    let direct = if medium == Medium::Disk { "--direct-io=on" } else { "--direct-io=off" };
    let printed = run("losetup", &["--find", "--show", direct, text(backing)?]).await;
    std::fs::remove_file(backing)?;
    let node = PathBuf::from(printed?.trim());
    let keeper = File::open(&node);
    // Detaching what is open takes effect when it is closed.
    run("losetup", &["--detach", text(&node)?]).await?;
    Ok((keeper?, node))
}

/// Bytes that nothing can make smaller.
pub(crate) fn fill_by_chance(bytes: &mut [u8]) -> Result<()> {
    aws_lc_rs::rand::fill(bytes).map_err(|_| "the system has no random numbers".into())
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| format!("{} is no text", path.display()).into())
}

/// Runs a program of the system to its end.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let path = child::find_program(program, &[]).ok_or_else(|| format!("{program} is not installed"))?;
    let mut command = child::command(path, Path::new("/"));
    command.args(arguments);
    child::output_of(command, program).await
}
