//! Waits for results from other threads.

use tokio::task::JoinHandle;

/// Waits for a result from another thread, such as a database or a journal.
///
/// In a simulation the result must arrive before the simulated time continues; otherwise the outcome would depend on the load of
/// the machine.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub fn answer<F: Future>(future: F) -> F {
    future
}

/// Waits for a result from another thread, such as a database or a journal.
///
/// In a simulation the result must arrive before the simulated time continues; otherwise the outcome would depend on the load of
/// the machine.
#[cfg(feature = "simulation")]
pub async fn answer<F: Future>(future: F) -> F::Output {
    match crate::simulation::here() {
        None => future.await,
        Some(place) => {
            place.host.disk_delay().await;
            let output = crate::simulation::wait(future);
            place.host.disk_delay().await;
            output
        }
    }
}

/// Like [`answer`], for work that leaves something durable behind, which the simulation checks afterwards.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub fn recorded<F: Future>(future: F) -> F {
    future
}

/// Like [`answer`], for work that leaves something durable behind, which the simulation checks afterwards.
#[cfg(feature = "simulation")]
pub async fn recorded<F: Future>(future: F) -> F::Output {
    let place = crate::simulation::here();
    let output = answer(async {
        let output = future.await;
        if let Some(place) = &place {
            place.host.note_activity();
        }
        output
    });
    output.await
}

/// Runs work that may block, beside the asynchronous tasks. In a simulation it takes no time.
pub fn blocking<F, T>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    #[cfg(feature = "simulation")]
    if let Some(place) = crate::simulation::here() {
        return tokio::spawn(async move {
            let output = work();
            place.host.note_activity();
            output
        });
    }
    tokio::task::spawn_blocking(work)
}

/// Starts a thread. In a simulation it belongs to the same host as its caller.
pub fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    #[cfg(feature = "simulation")]
    let work = {
        let here = tokio::runtime::Handle::try_current().ok().filter(|_| crate::simulation::here().is_some());
        move || {
            let _entered = here.as_ref().map(tokio::runtime::Handle::enter);
            work();
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
