//! Log lines of tasks.

use constcat::concat;
use gpuaas_contract::id::TaskId;
use gpuaas_domain::decision::TaskLogLine;

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{Result, Store};

/// Maximum number of log lines to keep of one task. Later lines are skipped, so that no task can fill the database.
pub const MAX_LINES_PER_TASK: u64 = 200_000;
/// Maximum size of one line, in bytes. The rest is cut off.
pub const MAX_LINE_BYTES: usize = 16 * 1024;

table! {
    "task_log" as "task_log_row" {
        "task_id": Text,
        "sequence": Int,
        "at": Int,
        "stream": Text,
        "text": Text,
        "dropped": Int,
    }
}

/// A line that arrives twice is stored once.
pub(crate) const ON_CONFLICT: &str = "ON CONFLICT (task_id, sequence) DO NOTHING";

/// Returns the row of a line, or nothing for a line above the limit.
pub(crate) fn to_row(line: &TaskLogLine) -> Option<Row> {
    let TaskLogLine { task_id, sequence, at, stream, text, dropped } = line;
    let kept = text.floor_char_boundary(MAX_LINE_BYTES);
    (*sequence <= MAX_LINES_PER_TASK).then(|| {
        vec![
            Arg::id(task_id),
            Arg::count(*sequence),
            Arg::time(*at),
            Arg::text(stream),
            Arg::text(&text[..kept]),
            Arg::count(*dropped),
        ]
    })
}

fn from_row(row: &dyn Columns) -> Result<TaskLogLine> {
    let row = Reader::new(TABLE.name, row);
    Ok(TaskLogLine {
        task_id: row.parsed("task_id")?,
        sequence: row.count("sequence")?,
        at: row.time("at")?,
        stream: row.text("stream")?,
        text: row.text("text")?,
        dropped: row.count("dropped")?,
    })
}

impl Store {
    /// Returns the number of stored bytes of a task's log.
    pub async fn log_bytes(&self, task: TaskId) -> Result<u64> {
        let sql = "SELECT COALESCE(SUM(LENGTH(text)), 0) AS bytes FROM task_log WHERE task_id = $1";
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("bytes");
        Ok(self.db().fetch_one("measure a log", sql, vec![Arg::id(task)], read).await?.unwrap_or_default())
    }

    /// Lists lines of the task with a number above `after_sequence`, in order.
    pub async fn log_list(&self, task: TaskId, after_sequence: u64, limit: u32) -> Result<Vec<TaskLogLine>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM task_log WHERE TRUE"))
            .and("task_id =", Arg::id(task))
            .and("sequence >", Arg::count(after_sequence))
            .page("sequence", limit)
            .fetch(self.db(), "read a log", from_row)
            .await
    }
}
