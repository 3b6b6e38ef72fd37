//! Drives: their identity, their users, writing an image and wiping with proof.
//!
//! All writes to a drive go through [`open::Locked`]. It exists only for the right drive that is not in use, and keeps other
//! users out as long as it lives.

mod open;
mod sample;
mod wipe;

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gpuaas_contract::cleanup::DriveProof;
use gpuaas_contract::guest::ImageFormat;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::guests::{DriveInfo, DriveRef, MachinePaths, Progress};
use crate::{HostError, qemu_img};

/// How long a writer of an earlier agent process may keep a drive.
const LOCK_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// How often a thread that works on a drive reports its progress.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Checks that a drive is the right one and not in use. Blocks briefly.
pub(crate) fn check(machine: &MachinePaths, drive: &DriveRef) -> Result<DriveInfo, HostError> {
    match open::try_claim(machine, drive)? {
        open::Attempt::Ours(locked) => Ok(locked.info().clone()),
        open::Attempt::Taken => {
            Err(HostError::new("drive_in_use", format!("drive {} is being written or wiped now", drive.serial)))
        }
        open::Attempt::Used(error) => Err(error),
    }
}

/// Writes an image to a drive, from the first byte on, and returns when it is durable.
pub(crate) async fn write_image(
    machine: &MachinePaths,
    drive: &DriveRef,
    image: (&Path, ImageFormat),
    progress: Progress<'_>,
    stop: &CancellationToken,
) -> Result<(), HostError> {
    let (source, format) = image;
    let needed = {
        let source = source.to_owned();
        on_thread(progress, move |_| qemu_img::disk_bytes(&source, format)).await??
    };
    let locked = tokio::select! {
        locked = open::lock(machine, drive, LOCK_PATIENCE, progress) => locked?,
        () = stop.cancelled() => return Err(HostError::new("cancelled", "writing the image was stopped before it began")),
    };
    let size = locked.info().size_bytes;
    // A disk is counted in sectors, so a raw image may end within one.
    if needed.div_ceil(512).saturating_mul(512) > size {
        let message = format!("the image's disk has {needed} bytes and drive {} only {size}; use a smaller image", drive.serial);
        return Err(HostError::new("image_too_large", message));
    }
    qemu_img::convert(source, format, locked.share()?, progress, stop).await?;
    let (machine, drive) = (machine.clone(), drive.clone());
    on_thread(progress, move |_| {
        locked.file().sync_all().map_err(|error| open::failed(&drive, "the image did not reach the drive", &error))?;
        locked.still(&machine, &drive)
    })
    .await?
}

/// Wipes a drive with the best method it supports and proves it. A failure after the first write is in the proof.
pub(crate) async fn wipe(machine: &MachinePaths, drive: &DriveRef, progress: Progress<'_>) -> Result<DriveProof, HostError> {
    let locked = open::lock(machine, drive, LOCK_PATIENCE, progress).await?;
    wipe::run(machine, drive, locked, progress).await
}

/// Connects a working thread with its caller: progress, and cancellation.
struct Reporter {
    sender: watch::Sender<(u64, u64)>,
    told: Mutex<Option<Instant>>,
    stop: CancellationToken,
}

impl Reporter {
    /// Reports the progress. Most calls do nothing.
    fn tell(&self, done: u64, all: u64) {
        let Ok(mut told) = self.told.lock() else { return };
        if done >= all || told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            *told = Some(Instant::now());
            self.sender.send_replace((done, all));
        }
    }

    /// Returns whether the caller has stopped waiting.
    fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }
}

/// Runs blocking work on its own thread and forwards its progress. If this is dropped, the work is cancelled.
async fn on_thread<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce(&Reporter) -> T + Send + 'static,
) -> Result<T, HostError> {
    let (sender, mut receiver) = watch::channel((0, 0));
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let reporter = Reporter { sender, told: Mutex::new(None), stop };
    let mut thread = tokio::task::spawn_blocking(move || work(&reporter));
    loop {
        tokio::select! {
            // The last progress is forwarded before the end.
            biased;
            Ok(()) = receiver.changed() => {
                let (done, all) = *receiver.borrow_and_update();
                progress(done, all);
            }
            result = &mut thread => {
                return result.map_err(|error| HostError::because("host_error", "a thread of the agent ended", &error));
            }
        }
    }
}

#[cfg(test)]
mod tests;
