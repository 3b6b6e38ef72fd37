//! The outbox: all events as CloudEvents, in the order in which they were committed.

use constcat::concat;
use gpuaas_contract::id::{ClusterId, EventId, ProjectId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::OutboxEvent;

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "outbox" as "outbox_row" {
        "position": IntOfDatabase,
        "id": Text,
        "subject": Text,
        "kind": Text,
        "body": Text,
        "created_at": Int,
        "lane": Int,
        "project": Text,
    }
}

/// The number of lanes that can be published at the same time. The events of one subject are always in one lane, in order.
pub const OUTBOX_LANES: u32 = 16;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its position: later commits have higher positions. There may be gaps.
    pub position: i64,
    /// Its id, for deduplication.
    pub id: EventId,
    /// The aggregate it belongs to.
    pub subject: String,
    /// The CloudEvents type.
    pub kind: String,
    /// The whole CloudEvents 1.0 document, JSON.
    pub body: String,
    /// The time of the event.
    pub created_at: Timestamp,
}

/// The document that consumers read.
#[derive(serde::Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: EventId,
    source: String,
    r#type: &'a str,
    subject: &'a str,
    time: String,
    datacontenttype: &'static str,
    correlationid: &'a str,
    data: &'a serde_json::Value,
}

pub(crate) fn to_row(event: &OutboxEvent, cluster: ClusterId) -> Result<Row> {
    let OutboxEvent { id, kind, subject, at, correlation_id, data } = event;
    let body = CloudEvent {
        specversion: "1.0",
        id: *id,
        source: format!("/gpuaas/{cluster}"),
        r#type: kind.as_str(),
        subject,
        time: at.rfc3339(),
        datacontenttype: "application/json",
        correlationid: correlation_id.as_str(),
        data,
    };
    let lane = Arg::count(u64::from(lane_of(subject)));
    let project = data.get("project_id").and_then(serde_json::Value::as_str).map_or(Arg::Text(None), Arg::text);
    Ok(vec![Arg::id(id), Arg::text(subject), Arg::text(kind.as_str()), Arg::json(&body)?, Arg::time(*at), lane, project])
}

/// Returns the lane of a subject: its 32-bit FNV-1a hash, modulo the number of lanes. This must never change: an event in another
/// lane than the previous event of its subject could overtake it. The schema computes the same lane for events from before there
/// were lanes.
pub(crate) fn lane_of(subject: &str) -> u32 {
    let hash = subject.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % OUTBOX_LANES
}

pub(crate) fn from_row(row: &dyn Columns) -> Result<OutboxRow> {
    let row = Reader::new(TABLE.name, row);
    Ok(OutboxRow {
        position: row.int("position")?,
        id: row.parsed("id")?,
        subject: row.text("subject")?,
        kind: row.text("kind")?,
        body: row.text("body")?,
        created_at: row.time("created_at")?,
    })
}

impl Store {
    /// Lists events after position `after`. Later events always have a higher position: a reader that keeps the last position it
    /// saw misses nothing, unless it reads after [`Store::outbox_forget`] removed events.
    pub async fn outbox_list(&self, after: i64, limit: u32) -> Result<Vec<OutboxRow>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM outbox WHERE TRUE"))
            .and("position >", Arg::Int(Some(after)))
            .page("position", limit)
            .fetch(self.db(), "read the outbox", from_row)
            .await
    }

    /// Lists events of one subject after position `after`.
    pub async fn outbox_of_subject(&self, subject: &str, after: i64, limit: u32) -> Result<Vec<OutboxRow>> {
        of_subject_query(subject, after, limit).fetch(self.db(), "read the outbox", from_row).await
    }

    /// Lists events that concern one project after position `after`, with the same guarantee as [`Store::outbox_list`].
    pub async fn outbox_of_project(&self, project: ProjectId, after: i64, limit: u32) -> Result<Vec<OutboxRow>> {
        of_project_query(project, after, limit).fetch(self.db(), "read the outbox", from_row).await
    }

    /// Returns the position of the last event, or 0 if there is none.
    pub async fn outbox_end(&self) -> Result<i64> {
        let sql = "SELECT COALESCE(MAX(position), 0) AS position FROM outbox";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).int("position");
        Ok(self.db().fetch_one("read the outbox", sql, Vec::new(), read).await?.unwrap_or(0))
    }
}

pub(crate) fn of_subject_query(subject: &str, after: i64, limit: u32) -> Select {
    Select::new(concat!("SELECT ", COLUMNS, " FROM outbox WHERE TRUE"))
        .and("subject =", Arg::text(subject))
        .and("position >", Arg::Int(Some(after)))
        .page("position", limit)
}

pub(crate) fn of_project_query(project: ProjectId, after: i64, limit: u32) -> Select {
    Select::new(concat!("SELECT ", COLUMNS, " FROM outbox WHERE project IS NOT NULL"))
        .and("project =", Arg::id(project))
        .and("position >", Arg::Int(Some(after)))
        .page("position", limit)
}
