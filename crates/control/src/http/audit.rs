//! The audit chain.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::dto::{self, AuditExportQuery, AuditQuery, Page};
use gpuaas_domain::audit_chain::AuditRow;
use gpuaas_store::AuditFilter;

use super::page_limit;
use super::problem::{Params, Rejected};
use crate::Control;
use crate::app::PageRequest;
use crate::error::ControlError;

/// Rows per read.
const BATCH: u32 = 1000;

pub(super) async fn list(
    State(control): State<Arc<Control>>,
    Params(query): Params<AuditQuery>,
) -> Result<Json<Page<dto::AuditRow>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let filter = AuditFilter { target: query.target.clone(), ..AuditFilter::default() };
    if query.newest == Some(true) {
        if query.after.is_some() {
            let message = "`newest` and `after` cannot be used together".to_owned();
            return Err(ControlError::BadInput { code: "query_invalid", message }.into());
        }
        return Ok(Json(Page::whole(newest(&control, limit, &filter).await?)));
    }
    let found = control.store.audit_list(query.after.unwrap_or(0), limit.saturating_add(1), &filter).await?;
    let found = PageRequest::<u64> { after: query.after, limit }.cut(found, |row| row.seq.to_string());
    let items = found.items.into_iter().map(to_dto).collect();
    Ok(Json(Page { items, next: found.next }))
}

async fn newest(control: &Control, limit: u32, filter: &AuditFilter) -> Result<Vec<dto::AuditRow>, ControlError> {
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let head = control.store.audit_head().await?.seq;
    // Without a filter the newest rows have the highest sequence numbers; with one, the whole chain has to be searched.
    let mut after = if filter.target.is_none() { head.saturating_sub(u64::from(limit)) } else { 0 };
    let mut rows = std::collections::VecDeque::with_capacity(wanted);
    loop {
        let batch = control.store.audit_list(after, BATCH, filter).await?;
        let Some(last) = batch.last() else { break };
        after = last.seq;
        for row in batch {
            if rows.len() == wanted {
                rows.pop_front();
            }
            rows.push_back(row);
        }
    }
    Ok(rows.into_iter().map(to_dto).collect())
}

pub(super) async fn export(
    State(control): State<Arc<Control>>,
    Params(query): Params<AuditExportQuery>,
) -> Result<Response, Rejected> {
    let lines = async_stream::try_stream! {
        let (mut after, mut left) = (query.after.unwrap_or(0), query.limit.unwrap_or(u64::MAX));
        while left > 0 {
            let limit = u32::try_from(left).unwrap_or(BATCH).min(BATCH);
            let batch = control.store.audit_list(after, limit, &AuditFilter::default()).await.map_err(std::io::Error::other)?;
            let Some(last) = batch.last() else { break };
            after = last.seq;
            left = left.saturating_sub(u64::try_from(batch.len()).unwrap_or(u64::MAX));
            let mut text = Vec::with_capacity(batch.len() * 512);
            for row in batch {
                serde_json::to_writer(&mut text, &to_dto(row))?;
                text.push(b'\n');
            }
            yield bytes::Bytes::from(text);
        }
    };
    let lines = Body::from_stream::<std::pin::Pin<Box<dyn futures::Stream<Item = Result<bytes::Bytes, std::io::Error>> + Send>>>(
        Box::pin(lines),
    );
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

fn to_dto(row: AuditRow) -> dto::AuditRow {
    dto::AuditRow {
        seq: row.seq,
        at: row.at,
        actor: row.actor,
        action: row.action,
        target: row.target,
        correlation_id: row.correlation_id,
        body: row.body,
        prev_hash: row.prev_hash,
        hash: row.hash,
    }
}
