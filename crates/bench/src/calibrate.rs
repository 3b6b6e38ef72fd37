//! The limits of this machine, which bound every row.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::Result;
use crate::measure::{count, number};
use crate::times::{TimeUnit, Times};

/// The speed of basic operations on this machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Calibration {
    /// Median time to append and fsync 4 KiB, in microseconds.
    pub(crate) fsync_p50_us: f64,
    /// The same at the 99th percentile.
    pub(crate) fsync_p99_us: f64,
    /// Median round trip of 64 bytes over loopback TCP, in microseconds.
    pub(crate) tcp_round_trip_p50_us: f64,
    /// Ed25519 signatures over 512 bytes per second, on one core.
    pub(crate) ed25519_sign_per_second: f64,
    /// Strict verifications of such signatures per second, on one core.
    pub(crate) ed25519_verify_per_second: f64,
}

/// Measures everything within a few seconds. `folder` must be on the disk that the databases use.
pub(crate) async fn calibrate(folder: &Path) -> Result<Calibration> {
    let folder = folder.to_owned();
    let (fsync_p50_us, fsync_p99_us) = tokio::task::spawn_blocking(move || fsync(&folder)).await??;
    let tcp_round_trip_p50_us = tcp_round_trip().await?;
    let key = gpuaas_contract::key::SigningKey::from_seed(&[7; 32]);
    let public = key.verifying_key();
    let message = [0x5a; 512];
    let signature = key.sign(&message);
    let ed25519_sign_per_second = per_second(|| {
        // Makes use of the result: the scalar half of a valid signature is below 2^253.
        key.sign(std::hint::black_box(&message))[63] < 0x20
    });
    let ed25519_verify_per_second = per_second(|| public.verifies(std::hint::black_box(&message), &signature));
    Ok(Calibration { fsync_p50_us, fsync_p99_us, tcp_round_trip_p50_us, ed25519_sign_per_second, ed25519_verify_per_second })
}

impl std::fmt::Display for Calibration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "this machine: fsync of 4 KiB p50 {} µs, p99 {} µs; TCP round trip {} µs; Ed25519 sign {}/s, verify {}/s",
            number(self.fsync_p50_us),
            number(self.fsync_p99_us),
            number(self.tcp_round_trip_p50_us),
            number(self.ed25519_sign_per_second),
            number(self.ed25519_verify_per_second)
        )
    }
}

fn fsync(folder: &Path) -> Result<(f64, f64)> {
    let mut file = tempfile::tempfile_in(folder)?;
    let block = [0x5a; 4096];
    let started = Instant::now();
    let mut times = Times::new()?;
    while started.elapsed() < Duration::from_secs(2) && times.len() < 5000 {
        let at = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.record(at.elapsed())?;
    }
    Ok((times.quantile(0.5, TimeUnit::Microseconds), times.quantile(0.99, TimeUnit::Microseconds)))
}

async fn tcp_round_trip() -> Result<f64> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let echo = tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await?;
        peer.set_nodelay(true)?;
        let mut word = [0; 64];
        while peer.read_exact(&mut word).await.is_ok() {
            peer.write_all(&word).await?;
        }
        std::io::Result::Ok(())
    });
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut word = [7; 64];
    let mut times = Times::new()?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        let at = Instant::now();
        stream.write_all(&word).await?;
        stream.read_exact(&mut word).await?;
        times.record(at.elapsed())?;
    }
    drop(stream);
    echo.await??;
    Ok(times.quantile(0.5, TimeUnit::Microseconds))
}

/// Returns how often per second `work` succeeds.
fn per_second(work: impl Fn() -> bool) -> f64 {
    let started = Instant::now();
    let mut done = 0;
    while started.elapsed() < Duration::from_millis(300) {
        // A failing operation would look very fast, so it is not counted.
        done += usize::from(work());
    }
    count(done) / started.elapsed().as_secs_f64()
}
