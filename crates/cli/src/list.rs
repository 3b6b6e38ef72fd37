//! Lists: printed once, or again whenever something changes; optionally limited to rows from some time on.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use gpuaas_api::ClientError;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::EventsQuery;
use gpuaas_contract::time::Timestamp;
use tokio::sync::Notify;

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{View, Watched};
use crate::pages::{Collected, MAX_ITEMS};
use crate::time;

/// How often a watched list is fetched even though events announce its changes: it also shows what causes no event, such as a link's age.
const SLOW_POLL: Duration = Duration::from_secs(10);
/// How often a watched list is fetched if no events announce its changes.
const POLL: Duration = Duration::from_secs(5);
/// How long to wait after a change, so that changes that come together are shown together.
const TOGETHER: Duration = Duration::from_millis(200);
/// How many times in a row the server may be unreachable before the watch ends.
const MAX_LOSSES: u32 = 12;

/// Options of every list.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct WatchArgs {
    /// Print the list again whenever it changes, until Ctrl-C: in place on a terminal, otherwise the changed rows only.
    #[arg(short, long)]
    watch: bool,
}

/// Options of every list whose rows have a time.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ListArgs {
    /// Only rows from this time on: a duration before now such as `2h` or `3d`, or UTC such as 2027-03-01T08:00Z.
    #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
    since: Option<Timestamp>,
    #[command(flatten)]
    watch: WatchArgs,
}

impl From<WatchArgs> for ListArgs {
    fn from(watch: WatchArgs) -> Self {
        Self { since: None, watch }
    }
}

impl ListArgs {
    /// Returns whether `--since` includes this time.
    pub(crate) fn includes(&self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since)
    }

    /// Returns whether `--since` was given.
    pub(crate) fn has_since(&self) -> bool {
        self.since.is_some()
    }
}

/// What announces changes of a list.
#[derive(Clone, Debug)]
pub(crate) enum Changes {
    /// Events of these kinds in a project.
    Project(String, &'static str),
    /// Events of these kinds on the platform.
    Platform(&'static str),
    /// Nothing, so the list is fetched every few seconds.
    Unannounced,
}

/// How to fetch, filter and show rows of one type.
pub(crate) struct List<T, V, A> {
    /// What announces changes of the list.
    pub(crate) changes: Changes,
    /// The time that `--since` is compared with. Rows without one are always included.
    pub(crate) time: fn(&T) -> Option<Timestamp>,
    /// Number of rows without `--limit`.
    pub(crate) limit: usize,
    /// How the rows are shown to a person.
    pub(crate) view: V,
    /// Hints that a person gets after the list.
    pub(crate) advice: A,
}

/// Returns a function that gives this hint if the list has no rows.
pub(crate) fn when_empty<'t, T>(text: &'t str) -> impl Fn(&[T]) -> Vec<String> + use<'t, T> {
    move |rows| if rows.is_empty() { vec![text.to_owned()] } else { Vec::new() }
}

impl<T, V, A> List<T, V, A>
where
    T: serde::Serialize,
    V: Fn(&[T]) -> View,
    A: Fn(&[T]) -> Vec<String>,
{
    /// Prints the list, once or until Ctrl-C. `fetch` gets the maximum number of rows to return.
    pub(crate) async fn run(
        self,
        session: &CommandContext,
        args: ListArgs,
        fetch: impl AsyncFn(usize) -> Result<Collected<T>, CliError>,
    ) -> Result<Exit, CliError> {
        let limit = session.limit_or(self.limit);
        let rows = async || {
            // With `--since`, rows are filtered before they are counted, so all of them are fetched.
            let mut found = fetch(if args.has_since() { MAX_ITEMS } else { limit }).await?;
            found.items.retain(|row| (self.time)(row).is_none_or(|time| args.includes(time)));
            found.more |= found.items.len() > limit;
            found.items.truncate(limit);
            Ok::<_, CliError>(found)
        };
        if args.watch.watch {
            let changes = self.changes.clone();
            return watch(session, changes, async || Ok(rows().await?.items), |rows| (self.view)(rows)).await;
        }
        let found = rows().await?;
        session.output.print(&found.items, |rows| (self.view)(rows))?;
        if found.more && !session.has_limit() {
            session.output.hint(&format!("there are more than these {limit}; --limit shows more"));
        }
        for advice in (self.advice)(&found.items) {
            session.output.hint(&advice);
        }
        Ok(Exit::Done)
    }
}

/// Prints a document, once or until Ctrl-C.
pub(crate) async fn document<T: serde::Serialize>(
    session: &CommandContext,
    args: WatchArgs,
    changes: Changes,
    fetch: impl AsyncFn() -> Result<T, CliError>,
    view: impl Fn(&T) -> View,
    advise: impl Fn(&T),
) -> Result<Exit, CliError> {
    if args.watch {
        return watch(session, changes, fetch, view).await;
    }
    let now = fetch().await?;
    session.output.print(&now, view)?;
    advise(&now);
    Ok(Exit::Done)
}

/// Prints a document again whenever it changes, until Ctrl-C.
async fn watch<T: serde::Serialize>(
    session: &CommandContext,
    changes: Changes,
    fetch: impl AsyncFn() -> Result<T, CliError>,
    view: impl Fn(&T) -> View,
) -> Result<Exit, CliError> {
    // A change during a fetch is not lost: the stored permit makes the next fetch start immediately.
    let changed = Arc::new(Notify::new());
    let listening = listen(session, &changes, Arc::clone(&changed))?;
    let pause = if matches!(changes, Changes::Unannounced) { POLL } else { SLOW_POLL };
    let showing = async {
        let (mut watched, mut losses) = (Watched::default(), 0);
        loop {
            let wait = match fetch().await {
                Ok(now) => {
                    losses = 0;
                    session.output.print_watched(&mut watched, &now, &view)?;
                    pause
                }
                // The server may be restarting. The list is still there afterwards.
                Err(error) if matches!(error.exit, Exit::Unreachable | Exit::Timeout) && losses < MAX_LOSSES => {
                    if losses == 0 {
                        session.output.hint("lost the server; trying again");
                    }
                    losses += 1;
                    POLL
                }
                Err(error) => return Err(error),
            };
            // Fetch again, whether a change or the timeout ended the wait.
            let _ = tokio::time::timeout(wait, changed.notified()).await;
            tokio::time::sleep(TOGETHER).await;
        }
    };
    tokio::select! {
        result = showing => result,
        never = listening => match never {},
        _ = tokio::signal::ctrl_c() => Ok(Exit::Done),
    }
}

/// Signals every event that may affect the list. Never returns: if events are not available, it signals as often as an
/// unannounced list is fetched.
fn listen(
    session: &CommandContext,
    changes: &Changes,
    changed: Arc<Notify>,
) -> Result<impl Future<Output = Infallible> + use<>, CliError> {
    let client = session.client()?;
    let query = |kinds: &str| EventsQuery { after: None, kinds: Some(kinds.to_owned()) };
    let mut events: BoxStream<'static, Result<HeardEvent, ClientError>> = match changes {
        Changes::Project(project, kinds) => client.project_events(project, &query(kinds)).boxed(),
        Changes::Platform(kinds) => client.events(&query(kinds)).boxed(),
        Changes::Unannounced => futures::stream::pending().boxed(),
    };
    Ok(async move {
        while let Some(event) = events.next().await {
            match event {
                Ok(HeardEvent::Event(_) | HeardEvent::Reconnecting) => changed.notify_one(),
                // A caller who may see the list may not be allowed to read events. Any other error will show when the list is fetched.
                Err(_) => break,
            }
        }
        let mut ticks = tokio::time::interval(POLL);
        loop {
            ticks.tick().await;
            changed.notify_one();
        }
    })
}
