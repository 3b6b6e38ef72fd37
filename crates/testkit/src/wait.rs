//! Waits for a condition, never for a fixed time.

use std::time::{Duration, Instant};

/// Time between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(20);

/// Calls `probe` until it returns a value, and panics with `what` if there is none after `timeout`.
///
/// Blocks the thread. Use [`eventually_async`] in an async test that also runs the other side in the same process.
#[track_caller]
pub fn eventually<T>(timeout: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(started.elapsed() < timeout, "this did not happen within {timeout:?}: {what}");
        std::thread::sleep(INTERVAL);
    }
}

/// Like [`eventually`], for a probe that is a future. The timeout does not interrupt a running probe.
pub async fn eventually_async<T, F>(timeout: Duration, what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(started.elapsed() < timeout, "this did not happen within {timeout:?}: {what}");
        tokio::time::sleep(INTERVAL).await;
    }
}
