//! Reads the audit chain as a stream of lines.

use std::time::Duration;

use reqwest::Response;

use super::{Call, Client, ClientError};
use crate::dto::AuditExportQuery;
use crate::endpoints::Method;
use crate::routes;

/// Maximum size of one line in bytes.
const MAX_LINE_BYTES: usize = 1024 * 1024;
/// The server keeps reading rows, so a connection that is silent for longer than this is dead.
const MAX_SILENCE: Duration = Duration::from_secs(60);

impl Client {
    /// Starts reading the whole audit chain.
    pub async fn audit_export(&self) -> Result<AuditExport, ClientError> {
        self.audit_export_part(&AuditExportQuery::default()).await
    }

    /// Starts reading a part of the audit chain.
    pub async fn audit_export_part(&self, query: &AuditExportQuery) -> Result<AuditExport, ClientError> {
        let call = Call { timeout: None, ..self.call(Method::Get, routes::AUDIT_EXPORT, &[]).query(query)? };
        let response = tokio::time::timeout(self.timeout, self.send(call))
            .await
            .map_err(|_| ClientError::Timeout { url: self.url().to_owned(), after: self.timeout })??;
        Ok(AuditExport { client: self.clone(), response, buffer: Vec::new(), searched: 0, ended: false })
    }
}

/// The audit chain as it arrives, line by line. It is never held in memory as a whole.
#[derive(Debug)]
pub struct AuditExport {
    client: Client,
    response: Response,
    buffer: Vec<u8>,
    /// Length of the prefix of the buffer that is known to contain no line break.
    searched: usize,
    ended: bool,
}

impl AuditExport {
    /// The next line without its line break: the JSON of one [`crate::dto::AuditRow`]. `None` after the last line. A chain that was cut off
    /// in transit is an error, never a shorter chain.
    pub async fn next_line(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
                line.pop();
                self.searched = 0;
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.ended {
                let rest = std::mem::take(&mut self.buffer);
                self.searched = 0;
                return Ok((!rest.is_empty()).then_some(rest));
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(ClientError::TooLarge { url: self.response.url().to_string(), limit: MAX_LINE_BYTES });
            }
            match tokio::time::timeout(MAX_SILENCE, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.buffer.extend_from_slice(&chunk),
                Ok(Ok(None)) => self.ended = true,
                Ok(Err(source)) => return Err(self.client.transport_error(source)),
                Err(_) => return Err(ClientError::Timeout { url: self.client.url().to_owned(), after: MAX_SILENCE }),
            }
        }
    }
}
