//! Hosts that wait at the second door.

use gpuaas_contract::id::EnrolmentId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::enrolment::{Enrolment, EnrolmentState};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::Kind::{Bytes, Int, Text};
use crate::table::{Row, Table};
use crate::{Result, Store};

pub(crate) const TABLE: Table = Table {
    name: "enrolments",
    columns: &[
        ("id", Text),
        ("version", Int),
        ("state", Text),
        ("email", Text),
        ("fingerprint", Text),
        ("csr_pem", Text),
        ("receipt_key", Bytes),
        ("facts", Text),
        ("poll_secret_digest", Text),
        ("reason", Text),
        ("node_id", Text),
        ("created_at", Int),
        ("expires_at", Int),
        ("address", Text),
        ("replace_node", Text),
    ],
};

pub(crate) fn to_row(enrolment: &Enrolment) -> Result<Row> {
    let Enrolment { id, version, state, email, fingerprint, csr_pem, receipt_key, facts, .. } = enrolment;
    let Enrolment { poll_secret_digest, reason, node_id, created_at, expires_at, address, replace_node, .. } = enrolment;
    Ok(vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::text(state.as_str()),
        Arg::text(email),
        Arg::text(fingerprint),
        Arg::text(csr_pem),
        Arg::bytes(receipt_key.as_bytes()),
        Arg::json(facts)?,
        Arg::id(poll_secret_digest),
        Arg::text(reason),
        Arg::opt_id(*node_id),
        Arg::time(*created_at),
        Arg::time(*expires_at),
        Arg::text(address),
        Arg::opt_id(*replace_node),
    ])
}

fn from_row(row: &dyn Columns) -> Result<Enrolment> {
    let row = Reader::new(TABLE.name, row);
    Ok(Enrolment {
        id: row.parsed("id")?,
        version: row.int("version")?,
        state: row.named("state", EnrolmentState::parse)?,
        email: row.text("email")?,
        fingerprint: row.text("fingerprint")?,
        csr_pem: row.text("csr_pem")?,
        receipt_key: row.key("receipt_key")?,
        facts: row.json("facts")?,
        poll_secret_digest: row.digest("poll_secret_digest")?,
        reason: row.text("reason")?,
        address: row.text("address")?,
        node_id: row.opt_parsed("node_id")?,
        created_at: row.time("created_at")?,
        expires_at: row.time("expires_at")?,
        replace_node: row.opt_parsed("replace_node")?,
    })
}

impl Store {
    /// The enrolment with this id.
    pub async fn enrolment_get(&self, id: EnrolmentId) -> Result<Option<Enrolment>> {
        let sql = "SELECT * FROM enrolments WHERE id = $1";
        self.db().fetch_one("read an enrolment", sql, vec![Arg::id(id)], from_row).await
    }

    /// Enrolments in the order in which the hosts asked, after `after`.
    pub async fn enrolment_list(
        &self,
        state: Option<EnrolmentState>,
        after: Option<EnrolmentId>,
        limit: u32,
    ) -> Result<Vec<Enrolment>> {
        Select::new("SELECT * FROM enrolments WHERE TRUE")
            .and_if("state =", state.map(|state| Arg::text(state.as_str())))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list enrolments", from_row)
            .await
    }

    /// How many enrolments wait for an operator at `now`.
    pub async fn enrolment_waiting(&self, now: Timestamp) -> Result<u64> {
        let sql = "SELECT COUNT(*) AS waiting FROM enrolments WHERE state = 'pending' AND expires_at >= $1";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("waiting");
        Ok(self.db().fetch_one("count enrolments", sql, vec![Arg::time(now)], read).await?.unwrap_or_default())
    }

    /// How many enrolments of this address wait for an operator at `now`.
    pub async fn enrolment_waiting_from(&self, address: &str, now: Timestamp) -> Result<u64> {
        let sql = "SELECT COUNT(*) AS waiting FROM enrolments WHERE state = 'pending' AND expires_at >= $1 AND address = $2";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("waiting");
        let values = vec![Arg::time(now), Arg::text(address)];
        Ok(self.db().fetch_one("count enrolments", sql, values, read).await?.unwrap_or_default())
    }

    /// The oldest enrolment that waits at `now` of the address with most of them.
    pub async fn enrolment_displaceable(&self, now: Timestamp) -> Result<Option<Enrolment>> {
        let sql = "SELECT * FROM enrolments WHERE state = 'pending' AND expires_at >= $1 AND address = \
                   (SELECT address FROM enrolments WHERE state = 'pending' AND expires_at >= $1 \
                    GROUP BY address ORDER BY COUNT(*) DESC, address LIMIT 1) ORDER BY id LIMIT 1";
        self.db().fetch_one("read an enrolment", sql, vec![Arg::time(now)], from_row).await
    }

    /// The newest enrolment of this machine that is undecided, or approved and not fetched, and has not lapsed at `now`.
    pub async fn enrolment_open_by_fingerprint(&self, fingerprint: &str, now: Timestamp) -> Result<Option<Enrolment>> {
        let sql = "SELECT * FROM enrolments WHERE fingerprint = $1 AND state IN ('pending', 'approved') AND expires_at >= $2 \
                   ORDER BY id DESC LIMIT 1";
        self.db().fetch_one("read an enrolment", sql, vec![Arg::text(fingerprint), Arg::time(now)], from_row).await
    }
}
