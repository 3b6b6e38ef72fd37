//! Watches tasks and allocations, and listens to events, through dropped connections and server restarts.

use futures::Stream;

use super::sse::Event;
use super::stream::EventStream;
use super::{Client, ClientError, to_value};
use crate::dto::{Allocation, CloudEvent, EventsQuery, Task, TaskProgress};
use crate::routes;

/// An item of the stream of [`Client::task_watch`].
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// The current state of the task: once at the start, then after every change. In the last one the task has ended.
    Task(Box<Task>),
    /// The running task entered another phase.
    Progress(TaskProgress),
    /// The connection was lost, and the watch tries to reconnect. For display; programs can ignore it.
    Reconnecting,
}

/// An item of the stream of [`Client::allocation_watch`].
#[derive(Clone, Debug, PartialEq)]
pub enum AllocationWatchEvent {
    /// The current state of the allocation: once at the start, then after every change. The last one is in the awaited state.
    Allocation(Box<Allocation>),
    /// The running task of the allocation entered another phase.
    Progress(TaskProgress),
    /// The connection was lost, and the watch tries to reconnect. For display; programs can ignore it.
    Reconnecting,
}

/// When the watch of an allocation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchUntil {
    /// When the allocation is released or has failed.
    Over,
    /// When nothing more happens without a new request: the allocation is active, failed, released or blocked.
    Settled,
}

impl WatchUntil {
    /// Name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Over => "over",
            Self::Settled => "settled",
        }
    }

    fn is_reached(self, allocation: &Allocation) -> bool {
        match self {
            Self::Over => allocation.is_terminal(),
            Self::Settled => allocation.settled(),
        }
    }
}

/// An item of the streams of [`Client::project_events`] and [`Client::events`].
#[derive(Clone, Debug, PartialEq)]
pub enum HeardEvent {
    /// An event. After a lost connection the same event may arrive twice; duplicates have the same id.
    Event(Box<CloudEvent>),
    /// The connection was lost; the stream resumes where it stopped. For display; programs can ignore it.
    Reconnecting,
}

impl Client {
    /// Watches a task until it ends. Dropped connections are reopened; the stream ends with an error only if the server is unreachable for
    /// a minute or refuses the request.
    pub fn task_watch(&self, task: &str) -> impl Stream<Item = Result<WatchEvent, ClientError>> + Send + use<> {
        let stream = EventStream::new(self, routes::TASK_WATCH, Some(task), serde_json::Value::Null);
        watch(stream, routes::EVENT_TASK, Task::ended, |heard| match heard {
            Heard::Document(task) => Some(WatchEvent::Task(task)),
            Heard::Progress(progress) => Some(WatchEvent::Progress(progress)),
            Heard::Reconnecting => Some(WatchEvent::Reconnecting),
        })
    }

    /// Watches an allocation, like [`Client::task_watch`].
    pub fn allocation_watch(
        &self,
        allocation: &str,
        until: WatchUntil,
    ) -> impl Stream<Item = Result<AllocationWatchEvent, ClientError>> + Send + use<> {
        let query = serde_json::json!({ "until": until.as_str() });
        let stream = EventStream::new(self, routes::ALLOCATION_WATCH, Some(allocation), query);
        let is_last = move |allocation: &Allocation| until.is_reached(allocation);
        watch(stream, routes::EVENT_ALLOCATION, is_last, |heard| match heard {
            Heard::Document(allocation) => Some(AllocationWatchEvent::Allocation(allocation)),
            Heard::Progress(progress) => Some(AllocationWatchEvent::Progress(progress)),
            Heard::Reconnecting => Some(AllocationWatchEvent::Reconnecting),
        })
    }

    /// Streams the events of a project, without end. Resumes where it stopped after a dropped connection.
    pub fn project_events(
        &self,
        project: &str,
        query: &EventsQuery,
    ) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        self.hear(routes::PROJECT_EVENTS, Some(project), query)
    }

    /// Streams the events of the whole platform, without end. Resumes where it stopped after a dropped connection.
    pub fn events(&self, query: &EventsQuery) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        self.hear(routes::EVENTS, None, query)
    }

    fn hear(
        &self,
        route: &'static str,
        segment: Option<&str>,
        query: &EventsQuery,
    ) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        // Does not fail: the query consists of a number and a text.
        let stream = EventStream::new(self, route, segment, to_value(query).unwrap_or_default());
        let never = |_: &CloudEvent| false;
        watch(stream, routes::EVENT_CLOUD_EVENT, never, |heard| match heard {
            Heard::Document(event) => Some(HeardEvent::Event(event)),
            Heard::Reconnecting => Some(HeardEvent::Reconnecting),
            // Streams of events do not report the progress of tasks.
            Heard::Progress(_) => None,
        })
    }
}

/// An item of a stream whose main events carry one type of document.
enum Heard<T> {
    Document(Box<T>),
    Progress(TaskProgress),
    Reconnecting,
}

struct Watch<T, L> {
    stream: EventStream,
    /// The name of the event that carries the document.
    name: &'static str,
    is_last: L,
    last: Option<Box<T>>,
    done: bool,
}

fn watch<T, L, S, E>(
    stream: EventStream,
    name: &'static str,
    is_last: L,
    say: S,
) -> impl Stream<Item = Result<E, ClientError>> + Send + use<T, L, S, E>
where
    T: serde::de::DeserializeOwned + Clone + PartialEq + Send,
    L: Fn(&T) -> bool + Send,
    S: Fn(Heard<T>) -> Option<E> + Send,
    E: Send,
{
    let watch = Watch { stream, name, is_last, last: None, done: false };
    futures::stream::unfold((watch, say), |(mut watch, say)| async move {
        loop {
            let item = watch.next().await?;
            watch.done |= item.is_err();
            if let Some(item) = item.map(&say).transpose() {
                return Some((item, (watch, say)));
            }
        }
    })
}

impl<T, L> Watch<T, L>
where
    T: serde::de::DeserializeOwned + Clone + PartialEq,
    L: Fn(&T) -> bool,
{
    async fn next(&mut self) -> Option<Result<Heard<T>, ClientError>> {
        loop {
            if self.done {
                return None;
            }
            let event = match self.stream.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Some(Ok(Heard::Reconnecting)),
                Err(error) => return Some(Err(error)),
            };
            match self.understand(&event) {
                Ok(Some(heard)) => return Some(Ok(heard)),
                Ok(None) => {}
                Err(source) => return Some(Err(self.stream.malformed(source))),
            }
        }
    }

    fn understand(&mut self, event: &Event) -> Result<Option<Heard<T>>, serde_json::Error> {
        if event.name == self.name {
            let document: Box<T> = serde_json::from_str(&event.data)?;
            self.stream.is_well();
            self.done = (self.is_last)(&document);
            // After a reconnect the server sends the current document again.
            if self.last.as_ref() == Some(&document) {
                return Ok(None);
            }
            self.last = Some(document.clone());
            return Ok(Some(Heard::Document(document)));
        }
        if event.name == routes::EVENT_PROGRESS {
            return Ok(Some(Heard::Progress(serde_json::from_str(&event.data)?)));
        }
        // Ignores kinds of events that a newer server may add.
        Ok(None)
    }
}
