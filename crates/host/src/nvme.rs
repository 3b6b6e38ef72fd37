//! `nvme`, the tool for NVMe drives: erasures that only the drive itself can do.
//!
//! A sanitize operation erases every namespace of a drive, so it is used only on a drive with a single namespace. The tool
//! returns the drive's own structures (`--raw-binary`) and not a text: their layout is fixed by the NVM Express base
//! specification, while the text changes with every version of the tool. There was no NVMe hardware to capture them from, so the
//! tests build them from the specification.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exec::{Exec, ExecError, first_installed};
use crate::guests::{MachinePaths, Progress};
use crate::{HostError, block, sysfs};

const NVME: &[&str] = &["/usr/sbin/nvme"];
/// Longest time without progress. A sanitize operation cannot be stopped and may take hours.
const SANITIZE_SILENCE: Duration = Duration::from_secs(60 * 60);
const SANITIZE_POLL: Duration = Duration::from_secs(2);
/// Formatting reports nothing while it runs.
const FORMAT_DEADLINE: Duration = Duration::from_secs(2 * 60 * 60);
const FAILED: &str = "drive_failed";

/// An erasure method of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Erasure {
    /// Sanitize: erase every block.
    SanitizeBlocks,
    /// Sanitize: erase the encryption key.
    SanitizeKey,
    /// Format: erase the encryption key.
    FormatKey,
    /// Format: erase all user data.
    FormatData,
}

/// An NVMe drive with one namespace, and the tool for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nvme {
    program: PathBuf,
    /// The node of its controller.
    controller: PathBuf,
    /// The number of its namespace.
    nsid: u32,
}

impl Nvme {
    /// Returns the drive with this kernel name, if it is a local NVMe drive with one namespace and one controller and the tool is
    /// installed.
    pub(crate) fn find(machine: &MachinePaths, name: &str) -> Option<Self> {
        let controller = only_controller(&machine.sys, name)?;
        Some(Self {
            program: first_installed(NVME)?,
            controller: machine.dev.join(controller),
            nsid: sysfs::number(machine.sys.join("block").join(name).join("nsid"))?,
        })
    }

    /// Returns the erasures that the drive supports, best first. Empty if it has namespaces that the kernel does not show.
    pub(crate) async fn erasures(&self) -> Result<Vec<Erasure>, HostError> {
        let identity = self.ask("id-ctrl", &self.controller, &["--raw-binary"]).await?;
        let abilities = Abilities::parse(&identity).ok_or_else(|| unreadable("id-ctrl"))?;
        if abilities.manages_namespaces {
            let list = self.ask("list-ns", &self.controller, &["--all"]).await?;
            if parse_namespaces(&String::from_utf8_lossy(&list)) != Some(vec![self.nsid]) {
                return Ok(Vec::new());
            }
        }
        Ok(abilities.erasures())
    }

    /// Waits for the end of an erasure that was started before, by an earlier agent process or another program.
    pub(crate) async fn settle(&self, progress: Progress<'_>) -> Result<(), HostError> {
        // Drives without sanitize have no such log.
        let Ok(log) = self.log().await else { return Ok(()) };
        match log.state {
            Sanitize::Running => self.wait(progress).await,
            Sanitize::Never | Sanitize::Done | Sanitize::Failed => Ok(()),
        }
    }

    /// Erases, and returns when it is done.
    pub(crate) async fn erase(&self, erasure: Erasure, progress: Progress<'_>) -> Result<(), HostError> {
        match erasure {
            Erasure::SanitizeBlocks => self.sanitize("--sanact=2", progress).await,
            Erasure::SanitizeKey => self.sanitize("--sanact=4", progress).await,
            Erasure::FormatData => self.format("--ses=1").await,
            Erasure::FormatKey => self.format("--ses=2").await,
        }
    }

    async fn sanitize(&self, action: &str, progress: Progress<'_>) -> Result<(), HostError> {
        // Allows unrestricted exit: otherwise a drive whose sanitize failed would refuse all commands.
        self.ask("sanitize", &self.controller, &[action, "--ause"]).await?;
        self.wait(progress).await
    }

    async fn wait(&self, progress: Progress<'_>) -> Result<(), HostError> {
        let (mut last, mut moved) = (None, tokio::time::Instant::now());
        loop {
            let log = self.log().await?;
            match log.state {
                Sanitize::Running => progress(u64::from(log.progress), 65_536),
                Sanitize::Done => return Ok(()),
                Sanitize::Never => return Err(HostError::new(FAILED, "the drive reports that it was never sanitized")),
                Sanitize::Failed => {
                    // Makes the drive writable again for another wipe method.
                    let _ = self.ask("sanitize", &self.controller, &["--sanact=1"]).await;
                    return Err(HostError::new(FAILED, "the drive reports that its sanitize operation failed"));
                }
            }
            if last != Some(log.progress) {
                (last, moved) = (Some(log.progress), tokio::time::Instant::now());
            }
            if moved.elapsed() > SANITIZE_SILENCE {
                return Err(HostError::new(FAILED, "the drive's sanitize operation has not moved for an hour"));
            }
            // The drive reports the end to its driver and not to us, so this polls.
            tokio::time::sleep(SANITIZE_POLL).await;
        }
    }

    async fn format(&self, how: &str) -> Result<(), HostError> {
        let nsid = format!("--namespace-id={}", self.nsid);
        let identity = self.ask("id-ns", &self.controller, &[&nsid, "--raw-binary"]).await?;
        let format = current_format(&identity).ok_or_else(|| unreadable("id-ns"))?;
        let Some(format) = format else {
            return Err(HostError::new(FAILED, "the namespace has metadata, which formatting could change"));
        };
        let (format, timeout) = (format!("--lbaf={format}"), format!("--timeout={}", FORMAT_DEADLINE.as_millis()));
        // Through the controller: through the namespace, the tool would look for partitions afterwards, and fail because the
        // drive is locked. With `--force`, because it would otherwise wait for an interruption.
        self.ask("format", &self.controller, &[&nsid, &format, how, "--force", &timeout]).await.map(drop)
    }

    async fn log(&self) -> Result<SanitizeLog, HostError> {
        let log = self.ask("sanitize-log", &self.controller, &["--raw-binary"]).await?;
        SanitizeLog::parse(&log).ok_or_else(|| unreadable("sanitize-log"))
    }

    async fn ask(&self, command: &str, node: &Path, args: &[&str]) -> Result<Vec<u8>, HostError> {
        let exec = args.iter().fold(Exec::new(&self.program).arg(command).arg(node), |exec, arg| exec.arg(arg));
        let deadline = if command == "format" { FORMAT_DEADLINE + Duration::from_secs(60) } else { Duration::from_secs(120) };
        let failed = |error: ExecError| HostError::because(FAILED, &format!("nvme {command}"), &error);
        Ok(exec.deadline(deadline).run().await.map_err(failed)?.stdout)
    }
}

fn unreadable(command: &str) -> HostError {
    HostError::new(FAILED, format!("nvme {command} printed something else than the drive's own structure"))
}

/// Returns the controller of a namespace, if there is one controller and one namespace, on a local bus.
fn only_controller(sys: &Path, name: &str) -> Option<String> {
    if !block::is_namespace(name) {
        return None;
    }
    // Its parent is its controller or, with multipathing, its subsystem, which links to the controllers.
    let around = sysfs::real_path(sys.join("block").join(name)).parent()?.to_owned();
    let namespaces =
        |folder: &Path| sysfs::entries(folder).iter().filter(|entry| block::is_namespace(&sysfs::name(entry))).count();
    let controller = if sysfs::name(&around).starts_with("nvme-subsys") {
        let mut controllers = controllers_of(&around);
        if controllers.len() != 1 || namespaces(&around) != 1 {
            return None;
        }
        controllers.pop()?
    } else {
        if namespaces(&around) != 1 {
            return None;
        }
        sysfs::name(&around)
    };
    // Without multipathing, only the subsystem knows other controllers of the same drive.
    let subsystems = sysfs::entries(sys.join("class/nvme-subsystem"));
    let of = subsystems.iter().map(|subsystem| controllers_of(subsystem)).find(|controllers| controllers.contains(&controller));
    if of.is_some_and(|controllers| controllers.len() != 1) {
        return None;
    }
    let folder = sys.join("class/nvme").join(&controller);
    let local = sysfs::text(folder.join("transport")) == "pcie" && !folder.join("device/physfn").exists();
    (local && is_controller(&controller)).then_some(controller)
}

fn controllers_of(subsystem: &Path) -> Vec<String> {
    sysfs::entries(subsystem).iter().map(|entry| sysfs::name(entry)).filter(|name| is_controller(name)).collect()
}

/// Returns whether this is the name of a controller, such as `nvme0`.
fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The relevant part of the structure "Identify Controller".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Abilities {
    is_virtual: bool,
    formats: bool,
    manages_namespaces: bool,
    sanitizes_blocks: bool,
    sanitizes_key: bool,
    formats_key: bool,
}

impl Abilities {
    fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != 4096 {
            return None;
        }
        let u16_at = |at: usize| bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes);
        let u32_at = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        // CMIC, OACS, SANICAP and FNA in the specification.
        let (shared, commands, sanitize, format) = (*bytes.get(76)?, u16_at(256)?, u32_at(328)?, *bytes.get(524)?);
        Some(Self {
            is_virtual: shared & (1 << 2) != 0,
            formats: commands & (1 << 1) != 0,
            manages_namespaces: commands & (1 << 3) != 0,
            sanitizes_blocks: sanitize & (1 << 1) != 0,
            sanitizes_key: sanitize & 1 != 0,
            formats_key: format & (1 << 2) != 0,
        })
    }

    fn erasures(self) -> Vec<Erasure> {
        if self.is_virtual {
            return Vec::new();
        }
        let format = if self.formats_key { Erasure::FormatKey } else { Erasure::FormatData };
        let sanitizes = self.sanitizes_blocks || self.sanitizes_key;
        [
            (self.sanitizes_blocks, Erasure::SanitizeBlocks),
            (self.sanitizes_key, Erasure::SanitizeKey),
            // An overwriting sanitize takes days on a large drive and is no better than writing zeros.
            (self.formats && !sanitizes, format),
        ]
        .into_iter()
        .filter(|(can, _)| *can)
        .map(|(_, erasure)| erasure)
        .collect()
    }
}

/// Parses numbers of namespaces in lines like `[   0]:0x1`.
fn parse_namespaces(text: &str) -> Option<Vec<u32>> {
    let number = |line: &str| {
        let (place, number) = line.split_once("]:")?;
        place.trim().strip_prefix('[')?.trim().parse::<u32>().ok()?;
        u32::from_str_radix(number.trim().strip_prefix("0x")?, 16).ok()
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(number).collect()
}

/// Returns the current format from the structure "Identify Namespace". The inner `None` means a format with metadata.
fn current_format(bytes: &[u8]) -> Option<Option<u8>> {
    if bytes.len() != 4096 {
        return None;
    }
    // FLBAS and DPS: the low bits of the number, whether metadata is part of the data, two more bits; and the data protection.
    let (format, protection) = (*bytes.get(26)?, *bytes.get(29)?);
    let number = (format & 0x0f) | ((format >> 1) & 0x30);
    // Each format has four bytes; the first two are the size of its metadata.
    let at = 128 + 4 * usize::from(number);
    let metadata = bytes.get(at..at + 2)?;
    let plain = format & 0x10 == 0 && protection & 0x07 == 0 && metadata == [0, 0];
    Some(plain.then_some(number))
}

/// The state of the last sanitize operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitize {
    Never,
    Done,
    Running,
    Failed,
}

/// The relevant part of the log page "Sanitize Status".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SanitizeLog {
    state: Sanitize,
    /// Of 65536.
    progress: u16,
}

impl SanitizeLog {
    fn parse(bytes: &[u8]) -> Option<Self> {
        // SPROG and SSTAT in the specification. The tool prints the whole page, of which only the start is used.
        let [p0, p1, s0, ..] = bytes else { return None };
        if bytes.len() < 32 {
            return None;
        }
        let state = match s0 & 0x07 {
            0 => Sanitize::Never,
            // 4: done, and the blocks were deallocated although that was not requested.
            1 | 4 => Sanitize::Done,
            2 => Sanitize::Running,
            3 => Sanitize::Failed,
            _ => return None,
        };
        Some(Self { state, progress: u16::from_le_bytes([*p0, *p1]) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A fake drive that can sanitize blocks: a folder with its answers, and the tool that prints them.
    pub(crate) struct Fake {
        pub(crate) state: tempfile::TempDir,
        pub(crate) nvme: Nvme,
    }

    impl Fake {
        pub(crate) fn new() -> Self {
            let state = tempfile::tempdir().expect("folder");
            std::fs::create_dir(state.path().join("later")).expect("folder");
            let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fake-nvme");
            let nvme = Nvme { program, controller: state.path().to_owned(), nsid: 1 };
            let fake = Self { state, nvme };
            fake.put("id-ctrl", &identify(&[(328, 0b010), (256, 0b1010)]));
            fake.put("id-ns", &identify(&[(26, 1)]));
            fake.put("list-ns", b"[   0]:0x1\n");
            fake.put("log", &log(0, 0xffff));
            fake.put("begun", &log(2, 0x1000));
            fake.put("later/1", &log(1, 0xffff));
            fake
        }

        pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.state.path().join(name), bytes).expect("written");
        }

        fn asked(&self) -> String {
            std::fs::read_to_string(self.state.path().join("asked")).unwrap_or_default()
        }
    }

    fn log(status: u8, progress: u16) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..2].copy_from_slice(&progress.to_le_bytes());
        (bytes[2], bytes[3]) = (status, 1);
        bytes
    }

    fn identify(fields: &[(usize, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for (at, byte) in fields {
            bytes[*at] = *byte;
        }
        bytes
    }

    #[test]
    fn a_drives_abilities_become_erasures_best_first() {
        let erasures = |fields: &[(usize, u8)]| Abilities::parse(&identify(fields)).expect("parses").erasures();
        assert_eq!(erasures(&[(328, 0b011), (256, 0b010)]), [Erasure::SanitizeBlocks, Erasure::SanitizeKey]);
        assert_eq!(erasures(&[(328, 0b001)]), [Erasure::SanitizeKey]);
        assert_eq!(erasures(&[(256, 0b010), (524, 0b100)]), [Erasure::FormatKey]);
        assert_eq!(erasures(&[(256, 0b010), (328, 0b100)]), [Erasure::FormatData], "overwriting is not used");
        assert_eq!(erasures(&[]), []);
        assert_eq!(erasures(&[(328, 0b011), (76, 0b100)]), [], "a virtual function shares its drive");
        assert!(Abilities::parse(&identify(&[(256, 0b1000)])).expect("parses").manages_namespaces);
        assert_eq!(Abilities::parse(b"{}"), None);
    }

    #[test]
    fn the_format_in_use_is_kept_and_metadata_is_left_alone() {
        assert_eq!(current_format(&identify(&[])), Some(Some(0)));
        assert_eq!(current_format(&identify(&[(26, 0x01), (128 + 4 + 2, 12)])), Some(Some(1)));
        assert_eq!(current_format(&identify(&[(26, 0x21)])), Some(Some(0x11)), "the upper bits of the number");
        assert_eq!(current_format(&identify(&[(26, 0x01), (128 + 4, 8)])), Some(None), "metadata");
        assert_eq!(current_format(&identify(&[(29, 0x01)])), Some(None), "protection");
        assert_eq!(current_format(&identify(&[(26, 0x10)])), Some(None));
        assert_eq!(current_format(b""), None);
    }

    #[test]
    fn the_sanitize_log_says_how_far_it_is() {
        let log = |status: u8, progress: u16| SanitizeLog::parse(&log(status, progress));
        assert_eq!(log(2, 0x8000), Some(SanitizeLog { state: Sanitize::Running, progress: 0x8000 }));
        for (status, state) in [(0, Sanitize::Never), (1, Sanitize::Done), (3, Sanitize::Failed), (4, Sanitize::Done)] {
            assert_eq!(log(status, 0xffff).map(|log| log.state), Some(state));
        }
        // The bits above the state are numbers of passes.
        assert_eq!(log(0b1010, 0).map(|log| log.state), Some(Sanitize::Running));
        assert_eq!((log(5, 0), SanitizeLog::parse(b"error")), (None, None));
    }

    #[tokio::test]
    async fn a_sanitize_is_begun_and_followed_to_its_end() {
        let fake = Fake::new();
        assert_eq!(fake.nvme.erasures().await, Ok(vec![Erasure::SanitizeBlocks]));
        let told = std::sync::Mutex::new(Vec::new());
        let progress = |done: u64, all: u64| told.lock().expect("told").push((done, all));
        fake.nvme.erase(Erasure::SanitizeBlocks, &progress).await.expect("erased");
        assert_eq!(fake.asked(), "--sanact=2 --ause\n");
        assert_eq!(told.lock().expect("told").as_slice(), [(0x1000, 0x1_0000)]);
    }

    #[tokio::test]
    async fn a_sanitize_that_fails_is_told_and_the_drive_let_go() {
        let fake = Fake::new();
        fake.put("later/1", &log(3, 0x8000));
        let error = fake.nvme.erase(Erasure::SanitizeKey, &|_, _| {}).await.expect_err("failed");
        assert_eq!((error.code, fake.asked().as_str()), ("drive_failed", "--sanact=4 --ause\n--sanact=1\n"));
    }

    #[tokio::test]
    async fn an_erasure_of_an_earlier_life_is_waited_for_and_none_is_begun() {
        let fake = Fake::new();
        fake.put("log", &log(2, 0x4000));
        fake.nvme.settle(&|_, _| {}).await.expect("settled");
        assert_eq!((fake.asked().as_str(), fake.nvme.log().await.expect("log").state), ("", Sanitize::Done));
        std::fs::remove_file(fake.state.path().join("log")).expect("removed");
        fake.nvme.settle(&|_, _| {}).await.expect("a drive without a log has nothing to wait for");
    }

    #[tokio::test]
    async fn a_drive_with_a_namespace_that_is_not_shown_is_not_erased() {
        let fake = Fake::new();
        for list in ["[   0]:0x1\n[   1]:0x2\n", "[   0]:0x2\n", "", "no list"] {
            fake.put("list-ns", list.as_bytes());
            assert_eq!(fake.nvme.erasures().await, Ok(vec![]), "{list}");
        }
    }

    #[tokio::test]
    async fn formatting_keeps_the_format() {
        let fake = Fake::new();
        fake.nvme.erase(Erasure::FormatKey, &|_, _| {}).await.expect("formatted");
        assert_eq!(fake.asked(), "--namespace-id=1 --lbaf=1 --ses=2 --force --timeout=7200000\n");
        fake.put("id-ns", &identify(&[(26, 1), (29, 1)]));
        assert_eq!(fake.nvme.erase(Erasure::FormatData, &|_, _| {}).await.expect_err("protected data").code, "drive_failed");
    }

    #[test]
    fn namespaces_are_listed() {
        assert_eq!(parse_namespaces(include_str!("../testdata/nvme-list-ns")), Some(vec![1, 2, 0x10]));
        assert_eq!(parse_namespaces("[   0]:0x1\n"), Some(vec![1]));
        assert_eq!(parse_namespaces(""), Some(vec![]));
        assert_eq!(parse_namespaces("NVMe status: Invalid Field"), None);
    }

    /// Creates a machine with an NVMe drive as the kernel shows it, with or without multipathing.
    fn machine(multipath: bool) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        let at = |path: &str| root.path().join(path);
        let controller = "devices/pci0000:00/0000:00:01.0/nvme/nvme0";
        let around = if multipath { "devices/virtual/nvme-subsystem/nvme-subsys0" } else { controller };
        for folder in [controller, "devices/virtual/nvme-subsystem/nvme-subsys0", "block", "class/nvme", "class/nvme-subsystem"] {
            std::fs::create_dir_all(at(folder)).expect("folder");
        }
        std::fs::create_dir_all(at(around).join("nvme0n1")).expect("folder");
        std::fs::write(at(controller).join("transport"), "pcie\n").expect("written");
        symlink(at(around).join("nvme0n1"), at("block/nvme0n1")).expect("link");
        symlink(at(controller), at("class/nvme/nvme0")).expect("link");
        symlink(at("devices/pci0000:00/0000:00:01.0"), at(controller).join("device")).expect("link");
        symlink(at("devices/virtual/nvme-subsystem/nvme-subsys0"), at("class/nvme-subsystem/nvme-subsys0")).expect("link");
        symlink(at(controller), at("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0")).expect("link");
        root
    }

    #[test]
    fn a_drive_with_one_namespace_has_a_controller_and_any_other_has_none() {
        for multipath in [false, true] {
            let found = |change: &dyn Fn(&Path)| {
                let root = machine(multipath);
                change(root.path());
                only_controller(root.path(), "nvme0n1")
            };
            let around = if multipath { "class/nvme-subsystem/nvme-subsys0" } else { "class/nvme/nvme0" };
            assert_eq!(found(&|_| {}).as_deref(), Some("nvme0"));
            let second_namespace = |sys: &Path| std::fs::create_dir(sys.join(around).join("nvme0n2")).expect("folder");
            assert_eq!(found(&second_namespace), None);
            let second_controller =
                |sys: &Path| std::fs::create_dir(sys.join("class/nvme-subsystem/nvme-subsys0/nvme1")).expect("folder");
            assert_eq!(found(&second_controller), None);
            let remote = |sys: &Path| std::fs::write(sys.join("class/nvme/nvme0/transport"), "tcp\n").expect("written");
            assert_eq!(found(&remote), None);
            let virtual_function = |sys: &Path| std::fs::create_dir(sys.join("class/nvme/nvme0/device/physfn")).expect("folder");
            assert_eq!(found(&virtual_function), None);
        }
        assert_eq!(only_controller(Path::new("/sys"), "loop0"), None);
    }
}
