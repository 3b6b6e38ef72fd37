//! The outbox: everything that happened, as CloudEvents, in the order in which it was committed.

use gpuaas_contract::id::{ClusterId, EventId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Event;

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::Kind::{Int, IntOfDatabase, Text};
use crate::table::{Row, Table};
use crate::{Result, Store};

pub(crate) const TABLE: Table = Table {
    name: "outbox",
    columns: &[
        ("position", IntOfDatabase),
        ("id", Text),
        ("subject", Text),
        ("kind", Text),
        ("body", Text),
        ("created_at", Int),
        ("published_at", IntOfDatabase),
    ],
};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Where it stands: later commits have higher positions. May have gaps.
    pub position: i64,
    /// Its id, for deduplication.
    pub id: EventId,
    /// The aggregate it belongs to.
    pub subject: String,
    /// CloudEvents type.
    pub kind: String,
    /// The whole CloudEvents 1.0 document, JSON.
    pub body: String,
    /// When it happened.
    pub created_at: Timestamp,
    /// When it was handed to the broker.
    pub published_at: Option<Timestamp>,
}

/// What consumers read.
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

pub(crate) fn to_row(event: &Event, cluster: ClusterId) -> Result<Row> {
    let Event { id, kind, subject, at, correlation_id, data } = event;
    let body = CloudEvent {
        specversion: "1.0",
        id: *id,
        source: format!("/gpuaas/{cluster}"),
        r#type: kind,
        subject,
        time: at.rfc3339(),
        datacontenttype: "application/json",
        correlationid: correlation_id.as_str(),
        data,
    };
    Ok(vec![Arg::id(id), Arg::text(subject), Arg::text(*kind), Arg::json(&body)?, Arg::time(*at)])
}

fn from_row(row: &dyn Columns) -> Result<OutboxRow> {
    let row = Reader::new(TABLE.name, row);
    Ok(OutboxRow {
        position: row.int("position")?,
        id: row.parsed("id")?,
        subject: row.text("subject")?,
        kind: row.text("kind")?,
        body: row.text("body")?,
        created_at: row.time("created_at")?,
        published_at: row.opt_time("published_at")?,
    })
}

impl Store {
    /// Events after position `after`. What is not listed yet always comes with a higher position: a reader that keeps
    /// the last position it saw misses nothing.
    pub async fn outbox_list(&self, after: i64, limit: u32) -> Result<Vec<OutboxRow>> {
        Select::new("SELECT * FROM outbox WHERE TRUE")
            .and("position >", Arg::Int(Some(after)))
            .page("position", limit)
            .fetch(self.db(), "read the outbox", from_row)
            .await
    }
}
