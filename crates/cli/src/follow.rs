//! Waits for a task or an allocation, and prints phases and log lines to stderr as they happen.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use gpuaas_api::client::{AllocationWatchEvent, WatchEvent, WatchUntil};
use gpuaas_api::dto::{Allocation, Task, TaskLogLine, TaskLogsQuery};
use gpuaas_api::{Client, ClientError};
use gpuaas_contract::state::AllocationState;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::alloc_view::{is_worked_on, state};
use crate::error::CliError;
use crate::output::text::printable;

/// Number of log lines per request.
const LOG_PAGE: u32 = 1000;
/// How often to retry, once per second, if the server is unreachable while following logs.
const LOG_PATIENCE: u32 = 60;

/// Shortest time between two requests for lines that do not exist yet.
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// How waiting for a task ended.
pub(crate) enum Waited {
    /// The task has ended.
    Ended(Box<Task>),
    /// The user interrupted the wait, or the time limit did. The task continues.
    GaveUp,
}

/// Waits until the task has ended, and prints its progress to stderr.
pub(crate) async fn wait(client: &Client, task: &str, with_logs: bool, limit: Option<Duration>) -> Result<Waited, CliError> {
    let teller = Teller::new();
    let deadline = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = until_ended(client, task, with_logs, &teller) => result.map(Waited::Ended),
        () = deadline => Ok(Waited::GaveUp),
        () = interrupted() => Ok(Waited::GaveUp),
    };
    teller.finish();
    result
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler, the signal ends the program by itself.
        std::future::pending::<()>().await;
    }
}

/// How waiting for an allocation ended.
pub(crate) enum WaitedFor {
    /// The condition holds.
    Done(Box<Allocation>),
    /// The user interrupted the wait. The allocation continues.
    GaveUp,
}

/// Waits until `is_done` holds for an allocation, and prints its progress to stderr.
pub(crate) async fn allocation(
    client: &Client,
    allocation: &str,
    is_done: impl Fn(&Allocation) -> bool,
) -> Result<WaitedFor, CliError> {
    let teller = Teller::new();
    let until_done = async {
        let mut watch = client.allocation_watch(allocation, WatchUntil::Over).boxed();
        while let Some(event) = watch.next().await {
            match event? {
                AllocationWatchEvent::Allocation(now) => {
                    teller.allocation(&now);
                    if is_done(&now) {
                        return Ok(now);
                    }
                }
                AllocationWatchEvent::Progress(progress) => teller.phase(&progress.phase, &progress.message),
                AllocationWatchEvent::Reconnecting => teller.line("lost the server; trying again"),
            }
        }
        Err(CliError::internal("the server ended the watch before the allocation was there"))
    };
    let result = tokio::select! {
        result = until_done => result.map(WaitedFor::Done),
        () = interrupted() => Ok(WaitedFor::GaveUp),
    };
    teller.finish();
    result
}

enum Heard {
    Task(Result<WatchEvent, ClientError>),
    Log(Result<TaskLogLine, ClientError>),
}

async fn until_ended(client: &Client, task: &str, with_logs: bool, teller: &Teller) -> Result<Box<Task>, CliError> {
    let watch = client.task_watch(task).map(Heard::Task).boxed();
    let logs = if with_logs { logs(client, task, 0, true).map(Heard::Log).boxed() } else { futures::stream::empty().boxed() };
    let mut both = futures::stream::select(watch, logs);
    let mut last = None;
    while let Some(heard) = both.next().await {
        match heard {
            Heard::Task(event) => match event? {
                WatchEvent::Task(task) => {
                    teller.state(&task);
                    last = Some(task);
                }
                WatchEvent::Progress(progress) => teller.phase(&progress.phase, &progress.message),
                WatchEvent::Reconnecting => teller.line("lost the server; trying again"),
            },
            Heard::Log(line) => teller.line(&log_text(&line?)),
        }
    }
    last.filter(|task| task.ended()).ok_or_else(|| CliError::internal("the server ended the watch before the task ended"))
}

/// Returns the log lines of a task after this sequence number. With `follow`, the stream lasts until the task has ended.
pub(crate) fn logs(
    client: &Client,
    task: &str,
    after: u64,
    follow: bool,
) -> impl Stream<Item = Result<TaskLogLine, ClientError>> + Send + use<> {
    struct State {
        client: Client,
        task: String,
        after: u64,
        follow: bool,
        done: bool,
    }
    let state = State { client: client.clone(), task: task.to_owned(), after, follow, done: false };
    let pages = futures::stream::unfold(state, |mut state| async move {
        if state.done {
            return None;
        }
        let query = TaskLogsQuery { after: Some(state.after), limit: Some(LOG_PAGE), follow: Some(state.follow) };
        let mut patience = LOG_PATIENCE;
        let asked = tokio::time::Instant::now();
        let page = loop {
            match state.client.task_logs(&state.task, &query).await {
                // The server may be restarting. The lines are still there afterwards.
                Err(error) if state.follow && error.is_transient() && patience > 0 => {
                    patience -= 1;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                result => break result,
            }
        };
        let items: Vec<Result<TaskLogLine, ClientError>> = match page {
            Ok(page) => {
                let stuck = page.lines.is_empty() && !page.at_end;
                state.done = page.complete || (page.at_end && !state.follow) || stuck;
                state.after = page.next_after.max(state.after);
                // A server that responds without waiting, for example because it is shutting down, is not asked again without a pause.
                if page.lines.is_empty() && !state.done {
                    tokio::time::sleep_until(asked + MIN_PAUSE).await;
                }
                page.lines.into_iter().map(Ok).collect()
            }
            Err(error) => {
                state.done = true;
                vec![Err(error)]
            }
        };
        Some((futures::stream::iter(items), state))
    });
    pages.flatten()
}

/// Formats one log line for a person.
pub(crate) fn log_text(line: &TaskLogLine) -> String {
    let dropped = if line.dropped > 0 { format!("[{} lines were dropped by the host]\n", line.dropped) } else { String::new() };
    // The lines are the output of the task, so only what the agent adds is marked.
    let mark = match line.stream.as_str() {
        "stdout" => "",
        "stderr" => "err | ",
        _ => "agent | ",
    };
    format!("{dropped}{} {mark}{}", line.at, printable(&line.text))
}

/// Prints progress to stderr: with a spinner on a terminal, as plain lines otherwise.
struct Teller {
    spinner: Option<ProgressBar>,
    told_state: std::cell::RefCell<String>,
    told_phase: std::cell::RefCell<String>,
}

// The cells are only borrowed between await points of one task.
impl Teller {
    fn new() -> Self {
        use std::io::IsTerminal as _;
        let spinner = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { spinner, told_state: std::cell::RefCell::default(), told_phase: std::cell::RefCell::default() }
    }

    fn state(&self, task: &Task) {
        let text = if task.cancel_requested_at.is_some() && !task.ended() {
            format!("{} {}{}: cancelling", task.id, task.task_type, task.on_node())
        } else {
            format!("{} {}{}: {}", task.id, task.task_type, task.on_node(), task.state)
        };
        if self.told_state.replace(text.clone()) != text {
            self.now(&printable(&text));
        }
        if let Some(progress) = task.progress.as_ref().filter(|_| !task.ended()) {
            self.phase(&progress.phase, &progress.message);
        }
    }

    fn allocation(&self, allocation: &Allocation) {
        let doing = match &allocation.pending_power_action {
            Some(requested) => format!("{requested} requested"),
            None if allocation.state == AllocationState::Active && allocation.release_requested => "release requested".to_owned(),
            None => state(allocation),
        };
        let why = allocation.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        let text = format!("{} ({}): {doing}{why}", allocation.name, allocation.sku);
        if self.told_state.replace(text.clone()) != text {
            self.now(&printable(&text));
        }
        if let Some(phase) = allocation.phase.as_ref().filter(|_| is_worked_on(allocation)) {
            self.phase(&phase.phase, &phase.message);
        }
    }

    fn phase(&self, phase: &str, message: &str) {
        let text = if message.is_empty() { format!("  phase {phase}") } else { format!("  phase {phase}: {message}") };
        if self.told_phase.replace(text.clone()) != text {
            self.now(&printable(&text));
        }
    }

    /// Prints a line, and shows it next to the spinner as the current state.
    fn now(&self, text: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(text.to_owned());
        }
        self.line(text);
    }

    /// Prints a line that stays.
    fn line(&self, text: &str) {
        match &self.spinner {
            Some(spinner) => spinner.println(text),
            None => eprintln!("{text}"),
        }
    }

    fn finish(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
