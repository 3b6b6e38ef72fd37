//! Wipes a drive: writes canaries, wipes with the best method, checks that the canaries and everything else are gone.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuaas_contract::cleanup::{DriveProof, WipeMethod, WipeStatus};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::open::{Locked, failed};
use super::sample::{After, Aligned, Before, Clean, NotMarked, Plan, mark, verify};
use super::{Reporter, on_thread};
use crate::HostError;
use crate::guests::{DriveRef, MachinePaths, Progress};
use crate::nvme::{Erasure, Nvme};

/// Bytes of one discard. The work can be stopped between two of them.
const DISCARD_PIECE: u64 = 1 << 30;
/// Bytes of one write: more than any drive needs for its full speed.
const ZERO_PIECE: usize = 4 << 20;
/// Two writers, so that the drive always has the next write queued.
const ZERO_WRITERS: usize = 2;

/// One method to wipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wipe {
    /// By the drive itself.
    Nvme(Nvme, Erasure),
    /// Discards every block. The kernel guarantees zeros afterwards.
    Discard,
    /// Writes zeros over everything.
    Zero,
}

impl Wipe {
    fn method(&self) -> WipeMethod {
        match self {
            Self::Nvme(_, Erasure::SanitizeBlocks | Erasure::FormatData) => WipeMethod::Sanitize,
            Self::Nvme(_, Erasure::SanitizeKey | Erasure::FormatKey) => WipeMethod::CryptoErase,
            Self::Discard => WipeMethod::Discard,
            Self::Zero => WipeMethod::Zero,
        }
    }

    fn clean(&self) -> Clean {
        match self {
            Self::Nvme(..) => Clean::Changed,
            Self::Discard | Self::Zero => Clean::Zeros,
        }
    }
}

/// Why a method failed.
enum NotWiped {
    /// The drive does not support this method.
    Unsupported,
    Failed(HostError),
}

/// Tries every method of the drive until one is proven.
pub(super) async fn run(
    machine: &MachinePaths,
    drive: &DriveRef,
    locked: Locked,
    progress: Progress<'_>,
) -> Result<DriveProof, HostError> {
    let mut ways = Vec::new();
    if let Some(nvme) = Nvme::find(machine, &locked.info().name) {
        nvme.settle(progress).await?;
        match nvme.erasures().await {
            Ok(erasures) => ways.extend(erasures.into_iter().map(|erasure| Wipe::Nvme(nvme.clone(), erasure))),
            Err(error) => tracing::warn!(drive = drive.serial, %error, "the drive does not report its erase methods"),
        }
    }
    ways.extend([Wipe::Discard, Wipe::Zero]);
    wipe_by(&ways, machine, drive, locked, progress).await
}

/// Wipes with these methods.
pub(super) async fn wipe_by(
    ways: &[Wipe],
    machine: &MachinePaths,
    drive: &DriveRef,
    locked: Locked,
    progress: Progress<'_>,
) -> Result<DriveProof, HostError> {
    let locked = Arc::new(locked);
    let bytes = locked.info().size_bytes;
    let nothing = DriveProof { status: WipeStatus::Failed, bytes, ..DriveProof::skipped(&drive.serial) };
    let mut last = None;
    for way in ways {
        let before = match marked(&locked, progress).await? {
            Ok(before) => Arc::new(before),
            Err(NotMarked { written: 0, error }) if last.is_none() => return Err(failed(drive, "cannot be marked", &error)),
            Err(NotMarked { written, error }) => {
                tracing::warn!(drive = drive.serial, %error, "the canaries cannot be written to the drive");
                last = Some(DriveProof { canaries_written: written, ..nothing.clone() });
                continue;
            }
        };
        let wiped = wiped(&locked, way, drive, progress).await?;
        let after = verified(&locked, before, way.clean(), progress).await?;
        let mut proof = DriveProof {
            method: way.method(),
            canaries_written: after.canaries_written,
            canaries_gone: after.canaries_gone,
            samples_clean: after.samples_clean,
            samples: after.samples,
            ..nothing.clone()
        };
        match wiped {
            Ok(()) => proof.status = WipeStatus::Verified,
            Err(NotWiped::Unsupported) => tracing::debug!(drive = drive.serial, ?way, "unsupported wipe method"),
            Err(NotWiped::Failed(error)) => {
                tracing::warn!(drive = drive.serial, ?way, %error, "the drive was not wiped with this method")
            }
        }
        if proof.is_clean() && still(machine, drive, &locked, progress).await?.is_ok() {
            return Ok(proof);
        }
        proof.status = WipeStatus::Failed;
        last = Some(proof);
    }
    Ok(last.unwrap_or(nothing))
}

async fn marked(locked: &Arc<Locked>, progress: Progress<'_>) -> Result<Result<Before, NotMarked>, HostError> {
    let locked = Arc::clone(locked);
    on_thread(progress, move |_| {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| NotMarked { written: 0, error: std::io::Error::other(error.to_string()) })?;
        // The host's cached data must not reach the drive after the wipe.
        locked.file().sync_all().map_err(|error| NotMarked { written: 0, error })?;
        mark(locked.file(), Plan::new(locked.info().size_bytes, &seed))
    })
    .await
}

async fn wiped(
    locked: &Arc<Locked>,
    way: &Wipe,
    drive: &DriveRef,
    progress: Progress<'_>,
) -> Result<Result<(), NotWiped>, HostError> {
    let work = match way {
        Wipe::Nvme(nvme, erasure) => return Ok(nvme.erase(*erasure, progress).await.map_err(NotWiped::Failed)),
        Wipe::Discard => discard,
        Wipe::Zero => zero,
    };
    let (locked, drive) = (Arc::clone(locked), drive.clone());
    on_thread(progress, move |reporter| {
        let done = work(locked.file(), locked.info().size_bytes, reporter).and_then(|()| locked.file().sync_all());
        done.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => NotWiped::Unsupported,
            _ => NotWiped::Failed(failed(&drive, "was not wiped", &error)),
        })
    })
    .await
}

async fn verified(locked: &Arc<Locked>, before: Arc<Before>, clean: Clean, progress: Progress<'_>) -> Result<After, HostError> {
    let locked = Arc::clone(locked);
    on_thread(progress, move |_| {
        // An erasure by the drive itself leaves old content in the host's cache, where the next reader would find it.
        let _ = rustix::fs::fadvise(locked.file(), 0, None, rustix::fs::Advice::DontNeed);
        verify(locked.file(), &before, clean)
    })
    .await
}

async fn still(
    machine: &MachinePaths,
    drive: &DriveRef,
    locked: &Arc<Locked>,
    progress: Progress<'_>,
) -> Result<Result<(), HostError>, HostError> {
    let (machine, drive, locked) = (machine.clone(), drive.clone(), Arc::clone(locked));
    on_thread(progress, move |_| {
        let still = locked.still(&machine, &drive);
        if let Err(error) = &still {
            tracing::error!(drive = drive.serial, %error, "another drive has the name of the wiped one now");
        }
        still
    })
    .await
}

fn stopped() -> std::io::Error {
    std::io::Error::other("the caller stopped waiting")
}

/// Discards every block.
fn discard(drive: &File, size: u64, reporter: &Reporter) -> std::io::Result<()> {
    let mut at = 0;
    while at < size {
        if reporter.is_stopped() {
            return Err(stopped());
        }
        let length = DISCARD_PIECE.min(size - at);
        rustix::fs::fallocate(drive, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, length)?;
        at += length;
        reporter.tell(at, size);
    }
    Ok(())
}

/// Writes zeros over everything.
fn zero(drive: &File, size: u64, reporter: &Reporter) -> std::io::Result<()> {
    let zeros = Aligned::zeros(ZERO_PIECE);
    let piece = ZERO_PIECE as u64;
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let write = || -> std::io::Result<()> {
        loop {
            let at = next.fetch_add(piece, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            if reporter.is_stopped() {
                return Err(stopped());
            }
            let length = piece.min(size - at);
            let zeros = zeros.get().get(..usize::try_from(length).unwrap_or(ZERO_PIECE)).unwrap_or_default();
            if let Err(error) = drive.write_all_at(zeros, at) {
                // The other writer need not continue.
                next.store(u64::MAX - (ZERO_WRITERS as u64 + 1) * piece, Ordering::Relaxed);
                return Err(error);
            }
            reporter.tell(done.fetch_add(length, Ordering::Relaxed) + length, size);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..ZERO_WRITERS).map(|_| scope.spawn(write)).collect();
        let mut result = write();
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread of the agent ended")));
            result = result.and(ended);
        }
        result
    })
}
