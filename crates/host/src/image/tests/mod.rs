//! The store with real servers and real files.

mod addresses;
mod downloads;
mod files;
mod server;
mod sharing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_contract::Digest;
use gpuaas_contract::address::Network;

use super::{Images, Settings};
use crate::HostError;
use crate::guests::{ImageStored, ImageWanted, Layout};

/// A folder for a store, removed with the test.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("owner")).expect("a folder");
        Self { folder }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// Returns the folder of the host's owner.
    fn owner(&self) -> PathBuf {
        self.folder.path().join("owner")
    }

    fn layout(&self, image_cache_bytes: u64) -> Layout {
        let at = |name: &str| self.folder.path().join(name);
        Layout {
            leases: at("leases"),
            instances: at("instances"),
            images: self.store(),
            image_folders: vec![at("missing"), self.owner()],
            image_cache_bytes,
            dhcp_hosts: at("dhcp"),
            dnsmasq_pid: at("pid"),
            console_bytes: 0,
            huge_pages: false,
        }
    }

    /// Creates a store with long time limits and short delays.
    fn images(&self) -> Images {
        self.images_with(u64::MAX, Duration::from_secs(60))
    }

    fn images_with(&self, budget: u64, stall: Duration) -> Images {
        self.images_trusting(budget, stall, vec![])
    }

    fn images_trusting(&self, budget: u64, stall: Duration, ca_bundles: Vec<PathBuf>) -> Images {
        let settings = Settings { stall, backoff: Duration::from_millis(1), ca_bundles };
        Images::with_settings(&self.layout(budget), settings)
    }

    /// Returns the names in the store's folder.
    fn names(&self) -> Vec<String> {
        names(&self.store())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

fn name_of(file: &[u8]) -> String {
    Digest::of(file).as_str().replace(':', "-")
}

/// Returns a file of this size without repetitions.
fn file_of(seed: u32, size: usize) -> Bytes {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..size).map(next).collect()
}

/// Allows loopback: the servers of these tests are on this machine.
fn loopback() -> Vec<Network> {
    ["127.0.0.0/8", "::1"].map(|network| network.parse().expect("a network")).to_vec()
}

fn wanted(file: &[u8], url: &str) -> ImageWanted {
    ImageWanted {
        sha256: Digest::of(file),
        path: None,
        url: Some(url.to_owned()),
        allowed_prefixes: vec![],
        private_networks: loopback(),
    }
}

fn wanted_path(file: &[u8], path: &str) -> ImageWanted {
    ImageWanted {
        sha256: Digest::of(file),
        path: Some(path.to_owned()),
        url: None,
        allowed_prefixes: vec![],
        private_networks: loopback(),
    }
}

async fn fetch(images: &Images, wanted: &ImageWanted) -> Result<ImageStored, HostError> {
    images.fetch(wanted, &|_, _| ()).await
}

async fn fails(images: &Images, wanted: &ImageWanted) -> HostError {
    fetch(images, wanted).await.expect_err("refused")
}

fn stored(file: &[u8], was_cached: bool) -> ImageStored {
    ImageStored { bytes: file.len() as u64, was_cached }
}

/// Waits until a condition holds.
async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let wait = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}

/// Records the reported progress.
#[derive(Clone, Default)]
struct Told(Arc<std::sync::Mutex<Vec<(u64, u64)>>>);

impl Told {
    fn tell(&self, done: u64, total: u64) {
        self.0.lock().expect("what was told").push((done, total));
    }

    fn all(&self) -> Vec<(u64, u64)> {
        self.0.lock().expect("what was told").clone()
    }
}
