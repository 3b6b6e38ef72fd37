//! Access to the Temporal server of the tests.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "shared by test programs")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gpuaas_temporal::{Temporal, TemporalConfig, Url};

/// The environment variable with the URL of a Temporal server. `cargo xtask test` sets it.
const URL_VARIABLE: &str = "GPUAAS_TEST_TEMPORAL_URL";

/// Returns the URL of the server. Reports the test as skipped if there is none.
pub fn url() -> Option<Url> {
    let url = std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        let why = format!("{URL_VARIABLE} is not set; run `cargo xtask test`, which starts a private Temporal");
        gpuaas_testkit::skip("a test on Temporal", &why);
    }
    url.map(|url| url.parse().unwrap())
}

/// Connects with a task queue of its own, so that concurrent tests do not take each other's runs.
pub async fn connect() -> Option<Arc<Temporal>> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let config = TemporalConfig {
        task_queue: format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)),
        step_timeout: Duration::from_secs(5),
        ..TemporalConfig::new(url()?)
    };
    Some(Arc::new(Temporal::connect(config).await.unwrap()))
}
