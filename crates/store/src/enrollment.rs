//! Enrollments: hosts that wait for approval.

use constcat::concat;
use gpuaas_contract::id::EnrollmentId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::enrollment::{Enrollment, EnrollmentState};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "enrollments" as "enrollments_row" {
        "id": Text,
        "version": Int,
        "state": Text,
        "email": Text,
        "fingerprint": Text,
        "csr_pem": Text,
        "receipt_key": Bytes,
        "facts": Text,
        "poll_secret_digest": Text,
        "reason": Text,
        "node_id": Text,
        "created_at": Int,
        "expires_at": Int,
        "address": Text,
        "replace_node": Text,
    }
}

pub(crate) fn to_row(enrollment: &Enrollment) -> Result<Row> {
    let Enrollment { id, version, state, email, fingerprint, csr_pem, receipt_key, facts, .. } = enrollment;
    let Enrollment { poll_secret_digest, reason, node_id, created_at, expires_at, address, replace_node, .. } = enrollment;
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

fn from_row(row: &dyn Columns) -> Result<Enrollment> {
    let row = Reader::new(TABLE.name, row);
    Ok(Enrollment {
        id: row.parsed("id")?,
        version: row.int("version")?,
        state: row.named("state", EnrollmentState::parse)?,
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
    /// Returns the enrollment with this id.
    pub async fn enrollment_get(&self, id: EnrollmentId) -> Result<Option<Enrollment>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM enrollments WHERE id = $1");
        self.db().fetch_one("read an enrollment", sql, vec![Arg::id(id)], from_row).await
    }

    /// Lists enrollments in the order in which the hosts requested them, after `after`.
    pub async fn enrollment_list(
        &self,
        state: Option<EnrollmentState>,
        after: Option<EnrollmentId>,
        limit: u32,
    ) -> Result<Vec<Enrollment>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM enrollments WHERE TRUE"))
            .and_if("state =", state.map(|state| Arg::text(state.as_str())))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list enrollments", from_row)
            .await
    }

    /// Counts the enrollments that wait for an operator at `now`.
    pub async fn enrollment_waiting(&self, now: Timestamp) -> Result<u64> {
        let sql = "SELECT COUNT(*) AS waiting FROM enrollments WHERE state = 'pending' AND expires_at >= $1";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("waiting");
        Ok(self.db().fetch_one("count enrollments", sql, vec![Arg::time(now)], read).await?.unwrap_or_default())
    }

    /// Counts the enrollments from this address that wait for an operator at `now`.
    pub async fn enrollment_waiting_from(&self, address: &str, now: Timestamp) -> Result<u64> {
        let sql = "SELECT COUNT(*) AS waiting FROM enrollments WHERE state = 'pending' AND expires_at >= $1 AND address = $2";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("waiting");
        let values = vec![Arg::time(now), Arg::text(address)];
        Ok(self.db().fetch_one("count enrollments", sql, values, read).await?.unwrap_or_default())
    }

    /// Returns the oldest enrollment that waits at `now`, from the address with the most waiting enrollments.
    pub async fn enrollment_displaceable(&self, now: Timestamp) -> Result<Option<Enrollment>> {
        let sql = concat!(
            "SELECT ",
            COLUMNS,
            " FROM enrollments WHERE state = 'pending' AND expires_at >= $1 AND address = \
                   (SELECT address FROM enrollments WHERE state = 'pending' AND expires_at >= $1 \
                    GROUP BY address ORDER BY COUNT(*) DESC, address LIMIT 1) ORDER BY id LIMIT 1"
        );
        self.db().fetch_one("read an enrollment", sql, vec![Arg::time(now)], from_row).await
    }

    /// Returns the newest enrollment of this machine that is undecided, or approved and not fetched, and has not lapsed at `now`.
    pub async fn enrollment_open_by_fingerprint(&self, fingerprint: &str, now: Timestamp) -> Result<Option<Enrollment>> {
        let sql = concat!(
            "SELECT ",
            COLUMNS,
            " FROM enrollments WHERE fingerprint = $1 AND state IN ('pending', 'approved') AND expires_at >= $2 \
                   ORDER BY id DESC LIMIT 1"
        );
        self.db().fetch_one("read an enrollment", sql, vec![Arg::text(fingerprint), Arg::time(now)], from_row).await
    }
}
