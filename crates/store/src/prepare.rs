//! Converts a decision into rows. The callers of commit do this in parallel, so that the single writer only has to write.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gpuaas_contract::id::{ClusterId, ServerId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::audit_chain::AuditRow;
use gpuaas_domain::decision::AuditEntry;
use gpuaas_domain::{Change, Decision, Wakeup};

use crate::db::Arg;
use crate::error::StoreError;
use crate::table::{Row, Table};
use crate::{api_token, certificate, enrollment, envelope, join_token, log, node, receipt, resource, slot, task};

/// Tables whose rows have a version, in the order in which they are locked and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Aggregate {
    Node,
    JoinToken,
    Enrollment,
    ApiToken,
    Task,
    Slot,
    Resource,
}

impl Aggregate {
    pub(crate) const ALL: [Self; 7] =
        [Self::Node, Self::JoinToken, Self::Enrollment, Self::ApiToken, Self::Task, Self::Slot, Self::Resource];

    pub(crate) const fn table(self) -> &'static Table {
        match self {
            Self::Node => &node::TABLE,
            Self::JoinToken => &join_token::TABLE,
            Self::Enrollment => &enrollment::TABLE,
            Self::ApiToken => &api_token::TABLE,
            Self::Task => &task::TABLE,
            Self::Slot => &slot::TABLE,
            Self::Resource => &resource::TABLE,
        }
    }

    /// Returns whether rows are kept forever. If a row can be deleted, a new row with the same id starts at version 1 again.
    pub(crate) const fn stays(self) -> bool {
        match self {
            Self::Node | Self::JoinToken | Self::Enrollment | Self::ApiToken | Self::Task | Self::Slot => true,
            Self::Resource => false,
        }
    }
}

/// Tables whose rows are only added, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    Certificate,
    Envelope,
    Receipt,
    Log,
}

impl Record {
    pub(crate) const ALL: [Self; 4] = [Self::Certificate, Self::Envelope, Self::Receipt, Self::Log];

    pub(crate) const fn table(self) -> &'static Table {
        match self {
            Self::Certificate => &certificate::TABLE,
            Self::Envelope => &envelope::TABLE,
            Self::Receipt => &receipt::TABLE,
            Self::Log => &log::TABLE,
        }
    }

    pub(crate) const fn on_conflict(self) -> &'static str {
        match self {
            Self::Log => log::ON_CONFLICT,
            Self::Certificate | Self::Envelope | Self::Receipt => "",
        }
    }
}

/// One versioned row that a decision writes.
pub(crate) struct Write {
    pub(crate) aggregate: Aggregate,
    pub(crate) id: String,
    /// The version to overwrite, or none for a new row.
    pub(crate) over: Option<i64>,
    /// For tasks, the state after the write.
    pub(crate) state: &'static str,
    pub(crate) row: Row,
}

/// A statement that runs after the rows of the whole group are written, because it must see them.
pub(crate) struct Afterwards {
    pub(crate) doing: &'static str,
    /// The SQL for each engine.
    pub(crate) sqlite: &'static str,
    pub(crate) postgres: &'static str,
    pub(crate) args: Row,
    /// Receives the number of affected rows, if a caller needs it.
    pub(crate) touched: Option<Arc<AtomicU64>>,
}

/// A decision that is ready to be written.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) writes: Vec<Write>,
    pub(crate) records: Vec<(Record, Row)>,
    pub(crate) afterwards: Vec<Afterwards>,
    pub(crate) servers: Vec<(ServerId, Timestamp)>,
    pub(crate) events: Vec<Row>,
    pub(crate) audit: Vec<AuditEntry>,
    pub(crate) wakeups: Vec<Wakeup>,
}

impl Prepared {
    /// Splits a decision into rows.
    pub(crate) fn new(decision: Decision, cluster: ClusterId) -> Result<Self, StoreError> {
        let Decision { changes, events, audit, wakeups, endings } = decision;
        if let Some(ending) = endings.first() {
            let what = format!("{} ends in it, and it does not decide about its slots", ending.task.id);
            return Err(StoreError::BadDecision { what });
        }
        let mut prepared = Self { wakeups, ..Self::default() };
        for change in changes {
            prepared.add(change)?;
        }
        prepared.events =
            events.iter().map(|event| crate::outbox::to_row(event, cluster)).collect::<Result<Vec<_>, StoreError>>()?;
        if !prepared.events.is_empty() {
            // Added here, so that no caller can forget it.
            prepared.wakeups.push(Wakeup::Outbox);
        }
        prepared.audit = audit.into_iter().map(without_nul).collect();
        prepared.check_each_row_once()?;
        Ok(prepared)
    }

    fn add(&mut self, change: Change) -> Result<(), StoreError> {
        use Aggregate::{ApiToken, Enrollment, JoinToken, Node, Resource, Slot, Task};
        match change {
            Change::NodeInsert(node) => self.write(Node, &node.id, None, "", node::to_row(&node)?),
            Change::NodeUpdate(node) => self.write(Node, &node.id, Some(node.version), "", node::to_row(&node)?),
            Change::EnrollmentInsert(request) => self.write(Enrollment, &request.id, None, "", enrollment::to_row(&request)?),
            Change::EnrollmentUpdate(request) => {
                self.write(Enrollment, &request.id, Some(request.version), "", enrollment::to_row(&request)?)
            }
            Change::JoinTokenInsert(token) => self.write(JoinToken, &token.id, None, "", join_token::to_row(&token)?),
            Change::JoinTokenUpdate(token) => {
                self.write(JoinToken, &token.id, Some(token.version), "", join_token::to_row(&token)?);
            }
            Change::ApiTokenInsert(token) => self.write(ApiToken, &token.id, None, "", api_token::to_row(&token)?),
            Change::ApiTokenUpdate(token) => self.write(ApiToken, &token.id, Some(token.version), "", api_token::to_row(&token)?),
            Change::SlotInsert(slot) => self.write(Slot, &slot.id, None, "", slot::to_row(&slot)?),
            Change::SlotUpdate(slot) => self.write(Slot, &slot.id, Some(slot.version), "", slot::to_row(&slot)?),
            Change::TaskInsert(task) => self.write(Task, &task.id, None, task.state.as_str(), task::to_row(&task)),
            Change::TaskUpdate(task) => {
                self.write(Task, &task.id, Some(task.version), task.state.as_str(), task::to_row(&task));
            }
            Change::ResourceInsert(document) => self.write(Resource, &document.id, None, "", resource::to_row(&document)?),
            Change::ResourceUpdate(document) => {
                self.write(Resource, &document.id, Some(document.version), "", resource::to_row(&document)?);
            }
            Change::ResourcesForget { before } => self.afterwards.push(resource::forget(before)),
            Change::CertificateInsert(certificate) => {
                self.records.push((Record::Certificate, certificate::to_row(&certificate)));
            }
            Change::CertificatesRevoke { node_id, up_to_epoch, at } => {
                self.afterwards.push(certificate::revoke(node_id, up_to_epoch, at));
            }
            Change::EnvelopeInsert { task_id, digest, envelope, key_id, signed_at } => {
                let row =
                    vec![Arg::id(task_id), Arg::id(digest), Arg::Bytes(Some(envelope)), Arg::id(key_id), Arg::time(signed_at)];
                self.records.push((Record::Envelope, row));
            }
            Change::ReceiptInsert { task_id, node_id, node_epoch, sequence, digest, previous, receipt, received_at } => {
                let row = vec![
                    Arg::id(task_id),
                    Arg::id(node_id),
                    Arg::count(node_epoch),
                    Arg::count(sequence),
                    Arg::id(digest),
                    Arg::opt_id(previous),
                    Arg::Bytes(Some(receipt)),
                    Arg::time(received_at),
                ];
                self.records.push((Record::Receipt, row));
            }
            Change::ServerSeen { server, at } => self.servers.push((server, at)),
            Change::LogAppend(lines) => {
                self.records.extend(lines.iter().filter_map(log::to_row).map(|row| (Record::Log, row)));
            }
        }
        Ok(())
    }

    fn write(&mut self, aggregate: Aggregate, id: &impl ToString, over: Option<i64>, state: &'static str, row: Row) {
        self.writes.push(Write { aggregate, id: id.to_string(), over, state, row });
    }

    /// Rejects a decision that writes one row twice: the second write would always conflict with the first.
    fn check_each_row_once(&self) -> Result<(), StoreError> {
        let mut seen = std::collections::HashSet::new();
        match self.writes.iter().find(|write| !seen.insert(&write.id)) {
            Some(write) => Err(StoreError::BadDecision { what: format!("it writes {} twice", write.id) }),
            None => Ok(()),
        }
    }

    /// Estimates the number of bytes sent to the database.
    pub(crate) fn weight(&self) -> usize {
        let of_row = |row: &Row| {
            let of_arg = |arg: &Arg| match arg {
                Arg::Text(text) => text.as_ref().map_or(0, String::len),
                Arg::Bytes(bytes) => bytes.as_ref().map_or(0, Vec::len),
                Arg::Int(_) => 8,
            };
            row.iter().map(of_arg).sum::<usize>()
        };
        let rows = self.writes.iter().map(|write| &write.row).chain(self.records.iter().map(|(_, row)| row)).chain(&self.events);
        rows.map(of_row).sum()
    }

    /// Returns whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { writes, records, afterwards, servers, events, audit, wakeups: _ } = self;
        writes.is_empty()
            && records.is_empty()
            && afterwards.is_empty()
            && servers.is_empty()
            && events.is_empty()
            && audit.is_empty()
    }
}

/// Removes NUL characters from an audit entry. The columns of its row must match its hashed text, and columns cannot hold NUL.
fn without_nul(entry: AuditEntry) -> AuditEntry {
    let clean = |text: String| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    AuditEntry { actor: clean(entry.actor), target: clean(entry.target), ..entry }
}

/// Returns the rows of audit entries that follow `head`, and the new head.
pub(crate) fn chain<'a>(
    head: gpuaas_domain::audit_chain::Head,
    entries: impl IntoIterator<Item = &'a AuditEntry>,
) -> Result<(gpuaas_domain::audit_chain::Head, Vec<AuditRow>), StoreError> {
    let mut head = head;
    let mut rows = Vec::new();
    for entry in entries {
        let row = gpuaas_domain::audit_chain::append(&head, entry)
            .map_err(|error| StoreError::BadDecision { what: format!("{error}: {}", error.source) })?;
        head.seq = row.seq;
        head.hash.clone_from(&row.hash);
        rows.push(row);
    }
    Ok((head, rows))
}
