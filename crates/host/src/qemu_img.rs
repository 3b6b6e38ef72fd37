//! `qemu-img`, for one purpose: writing an image to a drive.
//!
//! The format of the source is always given, never guessed, and [`crate::image::format`] has checked the source before. The drive
//! is passed as an open file: the program gets it as its standard input and opens it again through that. So it writes to the
//! device that was checked, even if the names in `/dev` change, and the lock on the drive lasts as long as the program.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use gpuaas_contract::guest::ImageFormat;
use tokio_util::sync::CancellationToken;

use crate::HostError;
use crate::exec::{Exec, ExecError};
use crate::guests::Progress;
use crate::image::format::{self, Declared, HEAD_BYTES, Image};

const QEMU_IMG: &str = "/usr/bin/qemu-img";
/// The path of the drive in the program.
const HELD: &str = "/proc/self/fd/0";
/// Longest silence. The program prints at every percent, and a percent of the largest image takes a minute on the slowest useful
/// drive.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// Returns the size of the disk in an image, whose format must be the declared one.
pub(crate) fn disk_bytes(source: &Path, format: ImageFormat) -> Result<u64, HostError> {
    let unreadable = |error: std::io::Error| {
        HostError::because("image_missing", &format!("cannot read the stored image {}", source.display()), &error)
    };
    let file = File::open(source).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut head = Vec::new();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(unreadable)?;
    let declared = match format {
        ImageFormat::Qcow2 => Declared::Qcow2,
        ImageFormat::Raw => Declared::Raw,
    };
    match format::inspect(&head, declared) {
        Ok(Image::Qcow2 { virtual_bytes }) => Ok(virtual_bytes),
        Ok(Image::Raw) => Ok(bytes),
        Err(refused) => Err(HostError::new(refused.code(), refused.to_string())),
    }
}

/// Writes the image to the drive from its first byte on. `drive` is open for writing and locked. When `stop` fires, all writes
/// have ended by the time this returns. The content of the drive after the end of the image stays.
pub(crate) async fn convert(
    source: &Path,
    format: ImageFormat,
    drive: File,
    progress: Progress<'_>,
    stop: &CancellationToken,
) -> Result<(), HostError> {
    let total = disk_bytes(source, format)?;
    let format = match format {
        ImageFormat::Qcow2 => "qcow2",
        ImageFormat::Raw => "raw",
    };
    let cache = source_cache(source);
    let fixed = ["convert", "-f", format, "-O", "raw", "-n", "-t", "none", "-T", cache, "-W", "-m", "16", "-p", "--"];
    let exec = fixed.iter().fold(Exec::new(QEMU_IMG), |exec, arg| exec.arg(arg)).arg(source).arg(HELD);
    let meter = Mutex::new(Meter::default());
    let on_text = |text: &[u8]| {
        let Ok(mut meter) = meter.lock() else { return };
        if let Some(hundredths) = meter.hear(text) {
            let done = u128::from(total) * u128::from(hundredths) / 10_000;
            progress(u64::try_from(done).unwrap_or(total).min(total), total);
        }
    };
    match exec.holding(drive).deadline(SILENCE).run_watched(&on_text, stop).await {
        Ok(_) => Ok(()),
        Err(error @ ExecError::Stopped { .. }) => Err(HostError::because("cancelled", "writing the image was stopped", &error)),
        Err(error) => Err(HostError::because("image_not_written", "the image could not be written to the drive", &error)),
    }
}

/// Returns the cache mode. An image is read once, so the page cache is not useful; but not every file system supports direct I/O.
fn source_cache(source: &Path) -> &'static str {
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or(0);
    match File::options().read(true).custom_flags(direct).open(source) {
        Ok(_) => "none",
        Err(_) => "writeback",
    }
}

/// Parses the progress of `qemu-img -p`: `    (12.34/100%)`, a carriage return, and so on.
#[derive(Debug, Default)]
struct Meter {
    /// The start of a number that is not complete yet.
    rest: Vec<u8>,
}

impl Meter {
    /// Reads output and returns the progress in hundredths of a percent, if there was any.
    fn hear(&mut self, text: &[u8]) -> Option<u64> {
        let mut last = None;
        for byte in text {
            match byte {
                b'\r' | b'\n' => {
                    last = parse_progress(&self.rest).or(last);
                    self.rest.clear();
                }
                // Longer than any known output: discard it.
                _ if self.rest.len() >= 64 => self.rest.clear(),
                _ => self.rest.push(*byte),
            }
        }
        last
    }
}

fn parse_progress(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (percent, fraction) = text.strip_prefix('(')?.strip_suffix("/100%)")?.split_once('.')?;
    if fraction.len() != 2 {
        return None;
    }
    let (percent, fraction) = (percent.parse::<u64>().ok()?, fraction.parse::<u64>().ok()?);
    (percent <= 100).then_some((percent * 100 + fraction).min(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_what_qemu_img_prints_however_it_is_cut() {
        let printed = include_bytes!("../testdata/qemu-img-convert-progress");
        for size in [1, 7, 16, 4096] {
            let mut meter = Meter::default();
            let heard: Vec<u64> = printed.chunks(size).filter_map(|chunk| meter.hear(chunk)).collect();
            assert!(heard.is_sorted() && heard.last() == Some(&10_000), "{size}: {heard:?}");
            assert!(size > 16 || heard.len() > 50, "{size}: {heard:?}");
        }
    }

    #[test]
    fn other_text_is_no_progress() {
        for (line, wanted) in [
            ("    (12.34/100%)", Some(1234)),
            ("(0.00/100%)", Some(0)),
            ("(100.00/100%)", Some(10_000)),
            ("(101.00/100%)", None),
            ("(-1.00/100%)", None),
            ("(1.5/100%)", None),
            ("(nan/100%)", None),
            ("qemu-img: error", None),
            ("", None),
        ] {
            assert_eq!(parse_progress(line.as_bytes()), wanted, "{line}");
        }
        let mut meter = Meter::default();
        assert_eq!(meter.hear(&[b'x'; 100_000]), None);
        assert!(meter.rest.len() <= 64, "bounded");
    }

    #[test]
    fn an_image_has_the_size_of_its_disk_and_is_what_it_is_said_to_be() {
        let folder = tempfile::tempdir().expect("folder");
        let raw = folder.path().join("image.raw");
        std::fs::write(&raw, vec![0_u8; 3 * 512]).expect("written");
        assert_eq!(disk_bytes(&raw, ImageFormat::Raw), Ok(3 * 512));
        assert_eq!(disk_bytes(&raw, ImageFormat::Qcow2).expect_err("no qcow2").code, "image_mislabeled");
        assert_eq!(disk_bytes(&folder.path().join("no"), ImageFormat::Raw).expect_err("missing").code, "image_missing");
    }
}
