//! Watching a task or an allocation, and hearing what happens, through dropped connections and server restarts.

use futures::Stream;

use super::sse::Event;
use super::stream::EventStream;
use super::{Client, ClientError, to_value};
use crate::dto::{Allocation, CloudEvent, EventsQuery, Task, TaskProgress};
use crate::routes;

/// What a watcher of a task hears.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// The task as it stands now: first of all, then after every change. The last one has ended.
    Task(Box<Task>),
    /// The running task went into another phase.
    Progress(TaskProgress),
    /// The connection is gone; the watch goes on trying. For people, not for programs.
    Reconnecting,
}

/// What a watcher of an allocation hears.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocationWatchEvent {
    /// The allocation as it stands now: first of all, then after every change. The last one is what was waited for.
    Allocation(Box<Allocation>),
    /// Its host went into another phase.
    Progress(TaskProgress),
    /// The connection is gone; the watch goes on trying. For people, not for programs.
    Reconnecting,
}

/// How long an allocation is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchUntil {
    /// Until it is released or has failed.
    Over,
    /// Until nothing happens unless somebody says something: active, failed, released or blocked.
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

/// What a listener hears.
#[derive(Clone, Debug, PartialEq)]
pub enum HeardEvent {
    /// Something happened. The same event may be heard twice after the connection broke; its id says so.
    Event(Box<CloudEvent>),
    /// The connection is gone; listening goes on where it stopped. For people, not for programs.
    Reconnecting,
}

impl Client {
    /// Watches a task until it ends. Connections that drop are opened again; the stream ends with an error only if the
    /// server stays away for a minute or refuses.
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

    /// Hears what happens in a project, without end. After a dropped connection it goes on where it stopped.
    pub fn project_events(
        &self,
        project: &str,
        query: &EventsQuery,
    ) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        self.hear(routes::PROJECT_EVENTS, Some(project), query)
    }

    /// Hears what happens on the whole platform, without end. After a dropped connection it goes on where it stopped.
    pub fn events(&self, query: &EventsQuery) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        self.hear(routes::EVENTS, None, query)
    }

    fn hear(
        &self,
        route: &'static str,
        segment: Option<&str>,
        query: &EventsQuery,
    ) -> impl Stream<Item = Result<HeardEvent, ClientError>> + Send + use<> {
        // A number and a text always have a JSON form.
        let stream = EventStream::new(self, route, segment, to_value(query).unwrap_or_default());
        let never = |_: &CloudEvent| false;
        watch(stream, routes::EVENT_CLOUD_EVENT, never, |heard| match heard {
            Heard::Document(event) => Some(HeardEvent::Event(event)),
            Heard::Reconnecting => Some(HeardEvent::Reconnecting),
            // Of no task that a listener has asked for.
            Heard::Progress(_) => None,
        })
    }
}

/// What comes out of a stream whose main events carry documents of one kind.
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
            // After a reconnect the server says again what is known already.
            if self.last.as_ref() == Some(&document) {
                return Ok(None);
            }
            self.last = Some(document.clone());
            return Ok(Some(Heard::Document(document)));
        }
        if event.name == routes::EVENT_PROGRESS {
            return Ok(Some(Heard::Progress(serde_json::from_str(&event.data)?)));
        }
        // Events that a newer server may add.
        Ok(None)
    }
}
