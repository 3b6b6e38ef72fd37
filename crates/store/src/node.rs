//! Nodes.

use constcat::concat;
use std::collections::HashMap;

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::{LinkTransport, LiveSession, Node, NodeService};

use crate::db::{Arg, Columns, Reader, Select};
use crate::error::StoreError;
use crate::table::{Row, table};
use crate::{MAX_PAGE, Result, Store};

table! {
    "nodes" as "nodes_row" {
        "id": Text,
        "version": Int,
        "name": Text,
        "fingerprint": Text,
        "epoch": Int,
        "receipt_key": Bytes,
        "tls_key_digest": Text,
        "record": Bytes,
        "service": Text,
        "service_reason": Text,
        "session_id": Text,
        "session_instance": Text,
        "session_boot": Text,
        "session_transport": Text,
        "session_since": Int,
        "session_server": Text,
        "last_seen_at": Int,
        "facts": Text,
        "rejoins": Int,
        "created_at": Int,
        "enrolled_at": Int,
    }
}

pub(crate) fn to_row(node: &Node) -> Result<Row> {
    let Node { id, version, name, fingerprint, epoch, receipt_key, tls_key_digest, record, service, service_reason, .. } = node;
    let Node { session, last_seen_at, facts, rejoins, created_at, enrolled_at, .. } = node;
    let session = session.as_ref();
    Ok(vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::text(name),
        Arg::text(fingerprint),
        Arg::count(*epoch),
        Arg::bytes(receipt_key.as_bytes()),
        Arg::id(tls_key_digest),
        Arg::bytes(record),
        Arg::text(service.as_str()),
        Arg::text(service_reason),
        Arg::opt_id(session.map(|live| live.id)),
        Arg::opt_id(session.map(|live| live.agent_instance_id)),
        session.map_or(Arg::Text(None), |live| Arg::text(&live.boot_id)),
        Arg::opt_id(session.map(|live| live.transport.as_str())),
        Arg::opt_time(session.map(|live| live.since)),
        Arg::opt_id(session.map(|live| live.server)),
        Arg::opt_time(*last_seen_at),
        Arg::json(facts)?,
        Arg::count(u64::from(*rejoins)),
        Arg::time(*created_at),
        Arg::time(*enrolled_at),
    ])
}

fn from_row(row: &dyn Columns) -> Result<Node> {
    let row = Reader::new(TABLE.name, row);
    let session = match row.opt_parsed("session_id")? {
        None => None,
        Some(id) => Some(LiveSession {
            id,
            agent_instance_id: row.parsed("session_instance")?,
            boot_id: row.text("session_boot")?,
            transport: row.named("session_transport", LinkTransport::parse)?,
            since: row.time("session_since")?,
            server: row.parsed("session_server")?,
        }),
    };
    Ok(Node {
        id: row.parsed("id")?,
        version: row.int("version")?,
        name: row.text("name")?,
        fingerprint: row.text("fingerprint")?,
        epoch: row.count("epoch")?,
        receipt_key: row.key("receipt_key")?,
        tls_key_digest: row.digest("tls_key_digest")?,
        record: row.bytes("record")?,
        service: row.named("service", NodeService::parse)?,
        service_reason: row.text("service_reason")?,
        session,
        last_seen_at: row.opt_time("last_seen_at")?,
        facts: row.json("facts")?,
        rejoins: row.count("rejoins")?,
        created_at: row.time("created_at")?,
        enrolled_at: row.time("enrolled_at")?,
    })
}

/// Which nodes to list.
#[derive(Clone, Debug, Default)]
pub struct NodeFilter {
    /// Only nodes in this state.
    pub service: Option<NodeService>,
    /// Only nodes with (`true`) or without (`false`) an open link.
    pub online: Option<bool>,
}

/// Numbers of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCounts {
    /// Nodes with an open link.
    pub online: u64,
    /// Nodes in each state; every state is listed.
    pub by_service: Vec<(NodeService, u64)>,
}

impl Store {
    /// Returns the node with this id.
    pub async fn node_get(&self, id: NodeId) -> Result<Option<Node>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM nodes WHERE id = $1");
        self.db().fetch_one("read a node", sql, vec![Arg::id(id)], from_row).await
    }

    /// Returns the names of these nodes. Unknown ids are left out.
    pub async fn node_names(&self, ids: &[NodeId]) -> Result<HashMap<NodeId, String>> {
        let read = |row: &dyn Columns| {
            let row = Reader::new(TABLE.name, row);
            Ok::<(NodeId, String), StoreError>((row.parsed("id")?, row.text("name")?))
        };
        let mut names = HashMap::with_capacity(ids.len());
        for ids in ids.chunks(usize::try_from(MAX_PAGE).unwrap_or(usize::MAX)) {
            let query = Select::new("SELECT id, name FROM nodes WHERE TRUE").of_ids(self.db().engine(), ids)?;
            names.extend(query.fetch(self.db(), "read the names of nodes", read).await?);
        }
        Ok(names)
    }

    /// Returns the node of the machine with this fingerprint.
    pub async fn node_by_fingerprint(&self, fingerprint: &str) -> Result<Option<Node>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM nodes WHERE fingerprint = $1");
        self.db().fetch_one("read a node", sql, vec![Arg::text(fingerprint)], from_row).await
    }

    /// Lists nodes in the order of their first enrollment, after `after`.
    pub async fn node_list(&self, filter: &NodeFilter, after: Option<NodeId>, limit: u32) -> Result<Vec<Node>> {
        let mut select = Select::new(concat!("SELECT ", COLUMNS, " FROM nodes WHERE TRUE"));
        if let Some(online) = filter.online {
            select = select.push(if online { " AND session_id IS NOT NULL" } else { " AND session_id IS NULL" });
        }
        select
            .and_if("service =", filter.service.map(|service| Arg::text(service.as_str())))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list nodes", from_row)
            .await
    }

    /// Lists online nodes whose link is held by a server process that was not seen since `seen_before`: their links are gone.
    pub async fn nodes_of_dead_servers(&self, seen_before: Timestamp) -> Result<Vec<Node>> {
        let sql = "SELECT nodes.* FROM nodes LEFT JOIN servers ON servers.id = nodes.session_server \
                   WHERE nodes.session_id IS NOT NULL AND (servers.id IS NULL OR servers.seen_at < $1) ORDER BY nodes.id";
        self.db().fetch("list nodes of dead servers", sql, vec![Arg::time(seen_before)], from_row).await
    }

    /// Counts the nodes in each state.
    pub async fn node_counts(&self) -> Result<NodeCounts> {
        let sql = "SELECT service, COUNT(*) AS nodes, COUNT(session_id) AS online FROM nodes GROUP BY service";
        let counted = self.db().fetch("count nodes", sql, Vec::new(), |row| {
            let row = Reader::new(TABLE.name, row);
            let counts: (NodeService, u64, u64) =
                (row.named("service", NodeService::parse)?, row.count("nodes")?, row.count("online")?);
            Ok::<_, StoreError>(counts)
        });
        let counted = counted.await?;
        let of = |service| counted.iter().find(|(other, ..)| *other == service).map_or(0, |(_, nodes, _)| *nodes);
        Ok(NodeCounts {
            online: counted.iter().map(|(.., online)| online).sum(),
            by_service: NodeService::ALL.map(|service| (service, of(service))).to_vec(),
        })
    }
}
