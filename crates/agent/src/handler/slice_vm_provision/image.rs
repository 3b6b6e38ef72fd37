//! The phases that concern the image: it is fetched, always verified, and written to the drive of the first slot.

use gpuaas_host::guests::{DriveMark, DriveRef, ImageWanted};

use super::host::note;
use super::{TaskFailure, Work};
use crate::guests::cleanup::{Teller, ensure_absent};

pub(super) async fn image_stat_download(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let wanted = ImageWanted {
        sha256: params.guest.image.sha256.clone(),
        path: params.guest.image.path.clone(),
        url: params.guest.image.url.clone(),
        allowed_prefixes: work.context.rules.image_sources().to_vec(),
        private_networks: work.context.rules.image_private_networks.clone(),
    };
    let teller = Teller::new(&work.context.phases, "image_stat_download", "fetching the image".to_owned());
    let tell = |done, all| teller.tell(done, all);
    // Stopping the task ends only the wait: the download continues, for the next guest.
    let stored = work.unless_stopped(work.host().image_fetch(&wanted, &tell)).await?;
    work.image_was_cached = stored.was_cached;
    Ok(())
}

pub(super) async fn image_digest_verify(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let image = &work.params.guest.image;
    work.disk_bytes = work.unless_stopped(work.host().image_verify(&image.sha256, image.format)).await?;
    Ok(())
}

pub(super) async fn image_write_convert(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let Some(first) = params.slots.first() else {
        return Err(TaskFailure::failed("params_invalid", "there is no slot".to_owned()));
    };
    // A guest from an earlier attempt at this task may still be about to start.
    ensure_absent(work.host(), params.allocation_id).await?;
    note(work, |lease| lease.drive = DriveMark::Dirty).await?;
    let teller = Teller::new(&work.context.phases, "image_write_convert", "writing the image to the drive".to_owned());
    let tell = |done, all| teller.tell(done, all);
    let image = (&params.guest.image.sha256, params.guest.image.format);
    let written = work.host().drive_write_image(&DriveRef::of(&first.spec), image, &tell, &work.context.stop).await;
    if work.context.stop.is_cancelled() {
        return Err(TaskFailure::stopped());
    }
    Ok(written?)
}
