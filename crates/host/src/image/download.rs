//! Downloads an image with as many requests as necessary, each for the missing rest.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use super::flight::Report;
use super::http::{Answer, Client, DownloadFailure, DownloadRequest, Remedy, broken, silent};
use super::part::{Part, Source};
use super::store::Store;
use super::url::Url;
use super::{blocking, open_part};
use crate::HostError;
use crate::guests::ImageWanted;

/// Maximum number of consecutive requests without progress.
const MAX_TRIES: u32 = 5;
/// Longest wait between two of them.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// Chunks between the network and the disk.
const QUEUE: usize = 16;
/// Longest ETag that is stored.
const MAX_ETAG: usize = 256;

/// Downloads an image into the store. Returns its size.
pub(super) async fn run(store: &Arc<Store>, wanted: &ImageWanted, url: &str, report: &Report) -> Result<u64, HostError> {
    let source = Source::of(url);
    let url = Url::parse(url)
        .map_err(|why| HostError::new("image_unreachable", format!("the image cannot be fetched from this address: {why}")))?;
    let mut client = Client::new(store);
    let mut again = false;
    loop {
        let part = open_part(store, &wanted.sha256, Some(&source), report).await?;
        let part = complete(store, &mut client, wanted, (&url, &source), part).await?;
        let resumed = part.was_resumed();
        match blocking(move |_| part.finish()).await {
            // The file may have changed on the server between two requests, or a power cut may have lost data.
            Err(error) if resumed && !again && error.code == "image_digest_mismatch" => {
                again = true;
                tracing::warn!(image = %wanted.sha256, error = %error, "a resumed image has a wrong digest; starting over");
            }
            finished => return finished,
        }
    }
}

/// Sends requests until nothing is missing.
async fn complete(
    store: &Arc<Store>,
    client: &mut Client,
    wanted: &ImageWanted,
    (url, source): (&Url, &Source),
    mut part: Part,
) -> Result<Part, HostError> {
    let (mut tries, mut most) = (0, part.position());
    while !part.is_complete() {
        let download = DownloadRequest {
            url,
            allowed: &wanted.allowed_prefixes,
            private_networks: &wanted.private_networks,
            from: part.position(),
            etag: part.source().and_then(|source| source.etag.as_deref()),
        };
        let failure = match client.get(&download).await {
            Ok(answer) => match take(store, answer, source, part).await? {
                (whole, None) => return Ok(whole),
                (rest, Some(failure)) => {
                    part = rest;
                    failure
                }
            },
            Err(failure) => failure,
        };
        // Only progress beyond all earlier attempts counts: a server that always restarts and always breaks makes none.
        tries = if part.position() > most { 1 } else { tries + 1 };
        most = most.max(part.position());
        if failure.remedy == Remedy::Never || tries >= MAX_TRIES {
            return Err(failure.error);
        }
        tracing::info!(image = %wanted.sha256, bytes = part.position(), error = %failure.error, "requesting an image again");
        if failure.remedy == Remedy::Anew {
            part = blocking(move |_| part.clear().map(|()| part)).await?;
        }
        tokio::time::sleep(backoff(store.settings.backoff, tries)).await;
    }
    Ok(part)
}

/// Returns the delay, which doubles each time, with jitter so that hosts do not retry at the same moment.
fn backoff(base: Duration, tries: u32) -> Duration {
    let longest = base.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(MAX_BACKOFF);
    let chance = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    longest.mul_f64(0.5 + chance / 2.0)
}

/// Reads an answer until it ends or breaks.
async fn take(
    store: &Arc<Store>,
    answer: Answer,
    source: &Source,
    part: Part,
) -> Result<(Part, Option<DownloadFailure>), HostError> {
    let begin = match judge(&answer, source, &part) {
        Ok(begin) => begin,
        Err(failure) => return Ok((part, Some(failure))),
    };
    let (pieces, queue) = mpsc::channel(QUEUE);
    let writer = blocking(move |_| Ok(write(part, begin, queue)));
    let ((part, written), end) = match tokio::join!(writer, read(answer, pieces, store.settings.stall)) {
        (Ok(written), end) => (written, end),
        (Err(error), _) => return Err(error),
    };
    written?;
    let short = || DownloadFailure::again(HostError::new("image_unreachable", "the server sent less than it announced"));
    let failure = match end {
        Ok(()) if part.total_is_missing() || part.is_complete() => None,
        Ok(()) => Some(short()),
        Err(failure) => Some(failure),
    };
    Ok((part, failure))
}

/// The content of an answer.
#[derive(Debug)]
enum Begin {
    /// The whole file.
    Whole(Source),
    /// The rest of it, and the size of the whole file.
    Rest(Option<u64>),
}

/// Determines the content of an answer from its head.
fn judge(answer: &Answer, source: &Source, part: &Part) -> Result<Begin, DownloadFailure> {
    let (head, place) = (&answer.response, answer.url.shown());
    let status = head.status();
    let reported = |what: &str| HostError::new("image_http_status", format!("{place} answered {status}{what}"));
    let text = |name: header::HeaderName| head.headers().get(name).and_then(|value| value.to_str().ok());
    // Only a strong ETag identifies the bytes.
    let etag = text(header::ETAG).filter(|etag| etag.starts_with('"') && etag.len() <= MAX_ETAG).map(str::to_owned);
    match status {
        StatusCode::OK => {
            let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
            Ok(Begin::Whole(Source { etag, length, ..source.clone() }))
        }
        StatusCode::PARTIAL_CONTENT if part.position() > 0 => {
            let other = |what| DownloadFailure::anew(reported(what));
            let range = text(header::CONTENT_RANGE).and_then(content_range);
            let (start, total) = range.ok_or_else(|| other(" without saying which part of the file that is"))?;
            let known = part.source();
            if start != part.position() {
                return Err(other(" with another part of the file than was asked for"));
            }
            if total.is_some_and(|total| known.is_some_and(|known| known.length.is_some_and(|length| length != total))) {
                return Err(other(": the file has another size than before"));
            }
            if etag.is_some() && known.is_some_and(|known| known.etag.is_some() && known.etag != etag) {
                return Err(other(": the file has changed"));
            }
            Ok(Begin::Rest(total))
        }
        StatusCode::RANGE_NOT_SATISFIABLE if part.position() > 0 => {
            Err(DownloadFailure::anew(reported(": the file is shorter than before")))
        }
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Err(DownloadFailure::again(reported("; the server has a problem"))),
        _ => Err(reported("; check the address of the image, and whether it may be read without a password").into()),
    }
}

/// Parses `bytes 5-9/10`: the start, and the size of the whole file.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    // The rest was requested, and all of it.
    (start <= end && total.is_none_or(|total: u64| total.checked_sub(1) == Some(end))).then_some((start, total))
}

/// Reads chunks from the network and queues them for the disk. Ends early if the disk side ends.
async fn read(mut answer: Answer, pieces: mpsc::Sender<Bytes>, stall: Duration) -> Result<(), DownloadFailure> {
    loop {
        let next = tokio::select! {
            next = tokio::time::timeout(stall, answer.response.body_mut().frame()) => next,
            () = pieces.closed() => return Ok(()),
        };
        match next {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(frame))) => {
                let Ok(piece) = frame.into_data() else { continue };
                if pieces.send(piece).await.is_err() {
                    return Ok(());
                }
            }
            Ok(Some(Err(error))) => return Err(DownloadFailure::again(broken(&answer.url, &error))),
            Err(_) => return Err(DownloadFailure::again(silent(&answer.url, stall))),
        }
    }
}

/// Writes the queue to the disk. Blocks.
fn write(mut part: Part, begin: Begin, mut queue: mpsc::Receiver<Bytes>) -> (Part, Result<(), HostError>) {
    let mut result = match begin {
        Begin::Whole(source) => part.begin(source),
        Begin::Rest(total) => part.go_on(total),
    };
    while result.is_ok() {
        let Some(piece) = queue.blocking_recv() else { break };
        result = part.write(&piece);
    }
    (part, result)
}
