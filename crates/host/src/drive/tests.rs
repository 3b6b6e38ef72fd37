//! Tests on loop devices, which are real block devices. They need root.

use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gpuaas_contract::cleanup::{WipeMethod, WipeStatus};
use rustix::fs::{FileType, Mode, OFlags, makedev, mknodat};

use super::wipe::{Wipe, wipe_by};
use super::*;
use crate::block;
use crate::exec::Exec;
use crate::skip::skipped;

/// From Debian's qemu-utils, like qemu-io.
const QEMU_IMG: &str = "/usr/bin/qemu-img";
const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// A drive for a test: a loop device that disappears with its last open file, even if the test is killed.
struct Lab {
    // Dropped before the folder is removed.
    keeper: std::fs::File,
    folder: tempfile::TempDir,
    machine: MachinePaths,
    drive: DriveRef,
    name: String,
}

impl Lab {
    /// Creates a drive. Returns `None` and prints a line if that is not possible.
    async fn new(size: u64) -> Option<Self> {
        Self::with_room(size, None).await
    }

    /// Creates a drive for tests that use programs of QEMU.
    async fn for_images(size: u64) -> Option<Self> {
        if !Path::new(QEMU_IMG).is_file() {
            skipped("qemu-img is not installed (Debian package qemu-utils)");
            return None;
        }
        Self::new(size).await
    }

    /// Creates a drive. With `room`, writes beyond it fail.
    async fn with_room(size: u64, room: Option<u64>) -> Option<Self> {
        let skip = |why: &str| {
            skipped(why);
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("loop devices need root");
        }
        let folder = tempfile::tempdir().expect("folder");
        let store = folder.path().join("store");
        std::fs::create_dir(&store).expect("folder");
        if let Some(room) = room {
            let mount = Exec::new("/bin/mount").arg("-t").arg("tmpfs").arg("-o").arg(format!("size={room}")).arg("none");
            if let Err(error) = mount.arg(&store).run().await {
                return skip(&error.to_string());
            }
        }
        let backing = store.join("drive.raw");
        std::fs::File::create(&backing).and_then(|file| file.set_len(size)).expect("backing file");
        let made = Exec::new("/usr/sbin/losetup").arg("--find").arg("--show").arg(&backing).run().await;
        if room.is_some() {
            // It stays as long as the loop device has its file open.
            Exec::new("/bin/umount").arg("--lazy").arg(&store).run().await.expect("unmounted");
        }
        let node = match made {
            Ok(printed) => String::from_utf8(printed.stdout).expect("text").trim().to_owned(),
            Err(error) => return skip(&error.to_string()),
        };
        let keeper = std::fs::File::open(&node).expect("opened");
        // Detaching an open device takes effect when it is closed.
        Exec::new("/usr/sbin/losetup").arg("--detach").arg(&node).run().await.expect("detached");
        let name = node.trim_start_matches("/dev/").to_owned();
        let dev = folder.path().join("dev");
        std::fs::create_dir_all(dev.join("disk/by-id")).expect("folder");
        let number: u32 = name.trim_start_matches("loop").parse().expect("number");
        let here = std::fs::File::open(&dev).expect("opened");
        mknodat(&here, name.as_str(), FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(7, number)).expect("node");
        symlink(format!("../../{name}"), dev.join("disk/by-id/loop-lab")).expect("link");
        let machine = MachinePaths { dev, ..MachinePaths::default() };
        let serial = block::identity(&machine.sys.join("block").join(&name));
        assert!(serial.starts_with("loop-") && serial.len() == 21, "{serial}");
        let drive = DriveRef { path: "/dev/disk/by-id/loop-lab".to_owned(), serial };
        Some(Self { keeper, folder, machine, drive, name })
    }

    /// Whether the loop device passes on the request for zeroes. On a tmpfs it does not.
    fn writes_zeroes(&self) -> bool {
        let limit = Path::new("/sys/block").join(&self.name).join("queue/write_zeroes_max_bytes");
        crate::sysfs::number::<u64>(limit).is_some_and(|bytes| bytes > 0)
    }

    fn node(&self) -> PathBuf {
        self.machine.dev.join(&self.name)
    }

    /// Creates another link to the drive.
    fn link(&self, name: &str, target: &str) -> DriveRef {
        symlink(target, self.machine.dev.join("disk/by-id").join(name)).expect("link");
        DriveRef { path: format!("/dev/disk/by-id/{name}"), serial: self.drive.serial.clone() }
    }

    /// Reads its content from the drive, not from a cache.
    fn read(&self, from: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).expect("size")];
        rustix::fs::fadvise(&self.keeper, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
        self.keeper.read_exact_at(&mut bytes, from).expect("read");
        bytes
    }

    /// Fills it with data like a tenant's.
    fn fill(&self) {
        let file = std::fs::File::options().write(true).open(self.node()).expect("opened");
        let content: Vec<u8> = (0..MIB).map(|n| u8::try_from(n % 251).expect("small") | 1).collect();
        for at in (0..self.size()).step_by(1 << 20) {
            let rest = usize::try_from(MIB.min(self.size() - at)).expect("size");
            file.write_all_at(&content[..rest], at).expect("written");
        }
        file.sync_all().expect("synced");
    }

    fn size(&self) -> u64 {
        block::extra_drive(&self.machine, &self.drive.path).expect("there").size_bytes
    }

    async fn image(&self, name: &str, format: &str, bytes: u64, content: &[u8]) -> PathBuf {
        let raw = self.folder.path().join(format!("{name}.content"));
        let file = std::fs::File::create(&raw).expect("created");
        file.set_len(bytes).expect("sized");
        file.write_all_at(content, bytes / 4).expect("written");
        let image = self.folder.path().join(name);
        let args = ["convert", "-f", "raw", "-O", format];
        let exec = args.iter().fold(Exec::new(QEMU_IMG), |exec, arg| exec.arg(arg));
        exec.arg(&raw).arg(&image).run().await.expect("converted");
        image
    }
}

fn silent(_: u64, _: u64) {}

#[tokio::test]
async fn a_drive_is_known_by_its_number_and_its_serial() {
    let Some(lab) = Lab::new(SIZE).await else { return };
    let info = check(&lab.machine, &lab.drive).expect("the right drive");
    assert_eq!(info, DriveInfo { name: lab.name.clone(), size_bytes: SIZE });
    assert_eq!(check(&lab.machine, &lab.link("absolute", &format!("/dev/{}", lab.name))).expect("the same"), info);

    for serial in ["S64H0", "", "loop-0000000000000000"] {
        let other = DriveRef { serial: serial.to_owned(), ..lab.drive.clone() };
        assert_eq!(check(&lab.machine, &other).expect_err("another drive").code, "drive_serial_mismatch", "{serial}");
        let wiped = wipe(&lab.machine, &other, &silent).await;
        assert_eq!(wiped.expect_err("another drive").code, "drive_serial_mismatch", "{serial}");
    }
    std::fs::write(lab.machine.dev.join("file"), "no drive").expect("written");
    let file = lab.link("file", "../../file");
    let twice = lab.link("twice", "../../disk/by-id/loop-lab");
    let linked = {
        symlink(lab.node(), lab.machine.dev.join("linked")).expect("link");
        lab.link("linked", "../../linked")
    };
    let gone = lab.link("gone", "../../loop999");
    let outside = lab.link("outside", "../../../../../../../dev/loop0");
    let plain = DriveRef { path: format!("/dev/{}", lab.name), ..lab.drive.clone() };
    let above = DriveRef { path: "/dev/disk/by-id/../../x".to_owned(), ..lab.drive.clone() };
    for drive in [file, twice, linked, gone, outside, plain, above] {
        assert_eq!(check(&lab.machine, &drive).expect_err("no drive").code, "drive_missing", "{}", drive.path);
    }
}

#[tokio::test]
async fn a_partition_is_never_a_drive() {
    let Some(lab) = Lab::new(SIZE).await else { return };
    // What the kernel would show for a partition with the number of our drive.
    let sys = lab.folder.path().join("sys");
    let number = std::fs::read_to_string(format!("/sys/block/{}/dev", lab.name)).expect("number");
    let part = sys.join("devices").join(&lab.name).join(format!("{}p1", lab.name));
    std::fs::create_dir_all(&part).expect("folder");
    std::fs::create_dir_all(sys.join("dev/block")).expect("folder");
    std::fs::write(part.join("partition"), "1\n").expect("written");
    symlink(&part, sys.join("dev/block").join(number.trim())).expect("link");
    let machine = MachinePaths { sys, ..lab.machine.clone() };
    let error = check(&machine, &lab.drive).expect_err("a partition");
    assert!(error.code == "drive_missing" && error.message.contains("partition"), "{error}");
}

#[tokio::test]
async fn a_drive_that_somebody_has_for_himself_is_refused() {
    let Some(lab) = Lab::new(SIZE).await else { return };
    let held = rustix::fs::open(lab.node(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).expect("held");
    assert_eq!(check(&lab.machine, &lab.drive).expect_err("held").code, "drive_in_use");
    assert_eq!(wipe(&lab.machine, &lab.drive, &silent).await.expect_err("held").code, "drive_in_use");
    drop(held);
    check(&lab.machine, &lab.drive).expect("free");
}

#[tokio::test]
async fn a_drive_that_is_mounted_anywhere_is_refused() {
    if !crate::skip::root_is_a_mount() {
        return skipped("`/` is not a mount here, as in a chroot");
    }
    let Some(lab) = Lab::new(SIZE).await else { return };
    Exec::new("/usr/sbin/mkfs.ext4").arg("-q").arg(lab.node()).run().await.expect("made");
    let (stop, error) = (CancellationToken::new(), std::sync::Mutex::new(None));
    // In its own namespace, so that the mount ends with the program, and our mount list does not show it.
    let script = format!("mount {} /mnt && echo mounted && exec sleep 600", lab.node().display());
    let exec = Exec::new("/usr/bin/unshare").arg("--mount").arg("/bin/sh").arg("-c").arg(script);
    let on_text = |_: &[u8]| {
        *error.lock().expect("error") = check(&lab.machine, &lab.drive).err();
        stop.cancel();
    };
    let ended = exec.run_watched(&on_text, &stop).await.expect_err("stopped");
    let error = error.lock().expect("error").take();
    assert_eq!(error.map(|error| error.code), Some("drive_in_use"), "{ended}");
}

#[tokio::test]
async fn a_drive_that_a_guest_has_open_is_refused() {
    let Some(lab) = Lab::for_images(SIZE).await else { return };
    let (stop, error) = (CancellationToken::new(), std::sync::Mutex::new(None));
    // QEMU does not claim a drive, so neither the kernel nor the lock knows about it. It answers once it has the drive open.
    let exec = Exec::new("/usr/bin/qemu-io").arg("-f").arg("raw").arg("-n").arg("-c").arg("read 0 512");
    let exec = exec.arg("-c").arg("sleep 600000").arg(lab.node());
    let watch = async {
        let ended = exec.run_watched(&|_| {}, &stop).await.expect_err("stopped");
        assert!(matches!(ended, crate::exec::ExecError::Stopped { .. }), "{ended}");
    };
    let look = async {
        for _ in 0..400 {
            if let Err(found) = check(&lab.machine, &lab.drive) {
                *error.lock().expect("error") = Some(found);
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        stop.cancel();
    };
    tokio::join!(watch, look);
    let error = error.lock().expect("error").take().expect("refused");
    assert!(error.code == "drive_in_use" && error.message.contains("guest"), "{error}");
    check(&lab.machine, &lab.drive).expect("free");
}

#[tokio::test]
async fn an_image_is_written_and_read_back_the_same() {
    let Some(lab) = Lab::for_images(SIZE).await else { return };
    let content: Vec<u8> = (0..5 * MIB).map(|n| u8::try_from(n % 253).expect("small")).collect();
    for (format, name) in [(ImageFormat::Qcow2, "qcow2"), (ImageFormat::Raw, "raw")] {
        lab.fill();
        let image = lab.image(name, name, 32 * MIB, &content).await;
        let told = AtomicU64::new(0);
        let progress = |done: u64, all: u64| {
            assert!(done <= all && all <= 32 * MIB);
            told.fetch_max(done, Ordering::Relaxed);
        };
        write_image(&lab.machine, &lab.drive, (&image, format), &progress, &CancellationToken::new()).await.expect("written");
        assert_eq!(told.load(Ordering::Relaxed), 32 * MIB);
        let read = lab.read(0, 32 * MIB);
        let wanted = std::fs::read(lab.folder.path().join(format!("{name}.content"))).expect("read");
        assert!(read == wanted, "{name}: the drive holds the image, and zeros where it is empty");
        check(&lab.machine, &lab.drive).expect("free again");
    }
}

#[tokio::test]
async fn an_image_that_is_too_large_or_no_image_is_not_written() {
    let Some(lab) = Lab::for_images(SIZE).await else { return };
    let large = lab.image("large", "qcow2", SIZE + MIB, b"x").await;
    let stop = CancellationToken::new();
    let error = write_image(&lab.machine, &lab.drive, (&large, ImageFormat::Qcow2), &silent, &stop).await.expect_err("too large");
    assert_eq!(error.code, "image_too_large");
    let error =
        write_image(&lab.machine, &lab.drive, (&large, ImageFormat::Raw), &silent, &stop).await.expect_err("no raw image");
    assert_eq!(error.code, "image_mislabeled");
    assert!(lab.read(0, SIZE).iter().all(|byte| *byte == 0), "nothing was written");
}

/// Returns whether any program has the drive open, by the kernel's own list.
fn is_open(node: &Path) -> bool {
    let pids = std::fs::read_dir("/proc").expect("list").filter_map(Result::ok);
    let others =
        pids.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok_and(|pid| pid != std::process::id()));
    others.into_iter().any(|entry| {
        let files = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().filter_map(Result::ok);
        files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == node))
    })
}

#[tokio::test]
async fn writing_an_image_stops_when_it_is_told_and_nothing_writes_any_more() {
    let Some(lab) = Lab::for_images(1024 * MIB).await else { return };
    // Content everywhere, so that there is something to write for a while.
    let image = lab.folder.path().join("image");
    let file = std::fs::File::create(&image).expect("created");
    let mut piece = vec![0_u8; 1 << 20];
    for at in 0..512 {
        getrandom::fill(&mut piece[..4096]).expect("chance");
        file.write_all_at(&piece, at * MIB).expect("written");
    }
    for _ in 0..10 {
        let stop = CancellationToken::new();
        let progress = |done: u64, _: u64| {
            if done > 0 {
                stop.cancel();
            }
        };
        let result = write_image(&lab.machine, &lab.drive, (&image, ImageFormat::Raw), &progress, &stop).await;
        assert!(!is_open(&lab.node()), "the writer has ended");
        check(&lab.machine, &lab.drive).expect("free again");
        // On a busy machine it may be done before its start is reported.
        let Err(error) = result else { continue };
        assert_eq!(error.code, "cancelled");
        let stopped = write_image(&lab.machine, &lab.drive, (&image, ImageFormat::Raw), &silent, &stop).await;
        assert_eq!(stopped.expect_err("stopped before").code, "cancelled");
        return;
    }
    panic!("it was never stopped while it wrote");
}

#[tokio::test]
async fn a_wiped_drive_is_zero_and_proven_by_every_way() {
    // The second ends within a block of ours.
    for size in [SIZE, 17 * MIB + 512] {
        for (way, method) in [(Wipe::Discard, WipeMethod::Discard), (Wipe::Zero, WipeMethod::Zero)] {
            let Some(lab) = Lab::new(size).await else { return };
            lab.fill();
            let told = AtomicU64::new(0);
            let progress = |done: u64, _: u64| {
                told.fetch_max(done, Ordering::Relaxed);
            };
            let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
            let proof = wipe_by(&[way], &lab.machine, &lab.drive, locked, &progress).await.expect("wiped");
            assert!(proof.is_clean(), "{proof:?}");
            assert_eq!((proof.method, proof.bytes, proof.serial.as_str()), (method, size, lab.drive.serial.as_str()));
            assert!(proof.canaries_written >= 60 && proof.samples >= 250, "nearly as many as on a large drive: {proof:?}");
            assert_eq!(told.load(Ordering::Relaxed), size);
            assert!(lab.read(0, size).iter().all(|byte| *byte == 0), "{method:?}");
        }
    }
}

#[tokio::test]
async fn an_erasure_by_the_drive_itself_is_believed_only_if_the_marks_are_gone() {
    use crate::nvme::Erasure::SanitizeBlocks;
    let Some(lab) = Lab::new(SIZE).await else { return };
    if !lab.writes_zeroes() {
        return skipped("loop devices in this temporary folder cannot write zeroes; it is a tmpfs");
    }
    for (really, method) in [(true, WipeMethod::Sanitize), (false, WipeMethod::Discard)] {
        lab.fill();
        let fake = crate::nvme::tests::Fake::new();
        if really {
            fake.put("drive", lab.node().as_os_str().as_encoded_bytes());
        }
        let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
        let ways = [Wipe::Nvme(fake.nvme.clone(), SanitizeBlocks), Wipe::Discard];
        let proof = wipe_by(&ways, &lab.machine, &lab.drive, locked, &silent).await.expect("wiped");
        assert!(proof.is_clean() && proof.method == method, "{proof:?}");
        assert!(lab.read(0, SIZE).iter().all(|byte| *byte == 0));
    }
    lab.fill();
    let fake = crate::nvme::tests::Fake::new();
    let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
    let alone = [Wipe::Nvme(fake.nvme.clone(), SanitizeBlocks)];
    let proof = wipe_by(&alone, &lab.machine, &lab.drive, locked, &silent).await.expect("tried");
    assert!(proof.status == WipeStatus::Failed && !proof.is_clean() && proof.canaries_gone == 0, "{proof:?}");
}

#[tokio::test]
async fn a_wipe_takes_the_best_way_and_can_be_done_again() {
    let Some(lab) = Lab::new(SIZE).await else { return };
    lab.fill();
    for _ in 0..2 {
        let proof = wipe(&lab.machine, &lab.drive, &silent).await.expect("wiped");
        assert!(proof.is_clean() && proof.method == WipeMethod::Discard, "{proof:?}");
        assert!(lab.read(0, SIZE).iter().all(|byte| *byte == 0));
    }
}

#[tokio::test]
async fn a_drive_that_breaks_while_it_is_wiped_is_told_and_never_proven() {
    let Some(lab) = Lab::with_room(SIZE, Some(16 * MIB)).await else { return };
    for ways in [&[Wipe::Zero][..], &[Wipe::Zero, Wipe::Zero]] {
        let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
        let proof = wipe_by(ways, &lab.machine, &lab.drive, locked, &silent).await.expect("the marks fit");
        assert!(proof.status == WipeStatus::Failed && !proof.is_clean(), "{proof:?}");
        assert!(proof.canaries_written > 0 && proof.bytes == SIZE, "{proof:?}");
    }
    let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
    let none = wipe_by(&[], &lab.machine, &lab.drive, locked, &silent).await.expect("nothing was tried");
    assert!(none.status == WipeStatus::Failed && none.method == WipeMethod::None, "{none:?}");
}

#[tokio::test]
async fn a_writer_that_outlives_us_keeps_the_drive_until_it_ends() {
    let Some(lab) = Lab::new(SIZE).await else { return };
    let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
    // The program leaves its group and its parent, as a child of an agent that was killed does; only the drive ties it to us. It closes
    // its output when it has left, which is what the call waits for.
    let orphan = Exec::new("/usr/bin/setsid").arg("--fork").arg("/bin/sh").arg("-c").arg("exec >/dev/null 2>&1; sleep 3");
    orphan.holding(locked.share().expect("shared")).deadline(Duration::from_secs(60)).run_with_code().await.expect("started");
    drop(locked);
    assert_eq!(check(&lab.machine, &lab.drive).expect_err("being written").code, "drive_in_use");
    let error = open::lock(&lab.machine, &lab.drive, Duration::from_millis(300), &silent).await.expect_err("locked");
    assert_eq!(error.code, "drive_locked");
    let waited = AtomicU64::new(0);
    let progress = |done: u64, all: u64| {
        assert_eq!((done, all), (0, 0));
        waited.fetch_add(1, Ordering::Relaxed);
    };
    open::lock(&lab.machine, &lab.drive, Duration::from_secs(60), &progress).await.expect("ours when it has ended");
    assert!(waited.load(Ordering::Relaxed) > 0, "it was waited for");
}

#[tokio::test]
async fn a_wipe_that_nobody_waits_for_ends() {
    let Some(lab) = Lab::new(1024 * MIB).await else { return };
    let locked = open::lock(&lab.machine, &lab.drive, Duration::ZERO, &silent).await.expect("locked");
    let begun = CancellationToken::new();
    let progress = |done: u64, all: u64| {
        if done > 0 && done < all {
            begun.cancel();
        }
    };
    tokio::select! {
        () = begun.cancelled() => {}
        // On a busy machine it may be done before its start is reported.
        proof = wipe_by(&[Wipe::Zero], &lab.machine, &lab.drive, locked, &progress) => assert!(proof.expect("wiped").is_clean()),
    }
    open::lock(&lab.machine, &lab.drive, Duration::from_secs(30), &silent).await.expect("the lock is given up");
}
