//! `slice.console_read`: copies a guest's serial console into the task's log, line by line. Read-only: nothing is sent to the guest.

use std::time::Duration;

use gpuaas_contract::task::slice_console_read::{Output, Params};
use gpuaas_host::guests::ConsoleFrom;

use super::{Context, TaskFailure};

/// Maximum number of bytes per read.
const CHUNK: usize = 64 * 1024;
/// Maximum length of a line in bytes; a longer one is split.
const MAX_LINE: usize = 4096;
/// How often a followed console is polled.
const LOOK_EVERY: Duration = Duration::from_millis(300);

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let held = context.host.leases().await?.iter().any(|lease| lease.holder() == params.holder());
    if !held {
        return Err(TaskFailure::failed("lease_missing", "this host holds no slot of that allocation".to_owned()));
    }
    context.phases.enter("read", "reading the console").await;
    let until = tokio::time::Instant::now() + Duration::from_secs(params.follow_seconds.into());
    let (mut from, mut rest, mut lines) = (ConsoleFrom::Tail(params.tail_bytes.into()), Vec::new(), 0);
    let mut truncated = None;
    let mut budget = usize::try_from(params.tail_bytes).unwrap_or(usize::MAX);
    loop {
        let part = context.host.console_read(params.allocation_id, from, CHUNK).await?;
        truncated = truncated.or(Some(part.start > 0));
        from = ConsoleFrom::Position(part.next());
        let got = part.bytes.len();
        rest.extend_from_slice(&part.bytes);
        lines += write_lines(&mut rest, context, false).await;
        budget = budget.saturating_sub(got);
        let following = tokio::time::Instant::now() < until;
        if (got == 0 || budget == 0) && !following {
            break;
        }
        if got == CHUNK {
            continue;
        }
        tokio::select! {
            biased;
            // Stopping is how a reader ends following the console, so the task succeeds.
            () = context.stop.cancelled() => break,
            () = tokio::time::sleep(if following { LOOK_EVERY } else { Duration::ZERO }) => {}
        }
    }
    lines += write_lines(&mut rest, context, true).await;
    Ok(Output { allocation_id: params.allocation_id, lines, truncated: truncated.unwrap_or(false) })
}

/// Writes complete lines to the log. If `all` is set, also writes a last line without a line break.
async fn write_lines(rest: &mut Vec<u8>, context: &Context, all: bool) -> u64 {
    let mut lines = 0;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let cut = match end {
            Some(end) => end.min(MAX_LINE),
            None if rest.len() >= MAX_LINE => MAX_LINE,
            None if all => rest.len(),
            None => break,
        };
        let line: Vec<u8> = rest.drain(..cut).collect();
        if rest.first() == Some(&b'\n') {
            rest.remove(0);
        }
        context.log.line(shown(&line)).await;
        lines += 1;
    }
    lines
}

/// Makes a line that a tenant's guest wrote safe for a terminal: nothing in it can move the cursor or set a color.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            // Drop an escape sequence as a whole, up to its final letter.
            '\u{1b}' => {
                if characters.next_if(|next| *next == '[').is_some() {
                    while characters.next_if(|next| !next.is_ascii_alphabetic() && *next != '~').is_some() {}
                }
                characters.next();
            }
            '\t' => shown.push('\t'),
            c if c.is_control() => {}
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_control_characters_do_not_reach_a_terminal() {
        assert_eq!(shown(b"\x1b[32m[  OK  ]\x1b[0m Started\x07 \xff x\r"), "[  OK  ] Started \u{fffd} x");
        assert_eq!(shown(b"\x1b]0;title\x07a\tb\x1b"), "0;titlea\tb");
    }
}
