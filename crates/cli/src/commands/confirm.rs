//! Asking a person before something that cannot be undone.

use std::io::{IsTerminal as _, Read as _, Write as _};

use crate::error::CliError;
use crate::exit::Exit;
use crate::output::text;

/// Whether there is somebody to ask.
pub(super) fn somebody_is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a person. Only a yes is a yes; anything else ends the command with nothing done.
pub(super) fn ask(question: &str) -> Result<(), CliError> {
    if said_yes(&text::printable(question))? {
        return Ok(());
    }
    let failure = CliError::new(Exit::Refused, "not_confirmed", "nothing was done");
    Err(failure.hint("answer `y`, or give --yes"))
}

fn said_yes(question: &str) -> Result<bool, CliError> {
    let failed = |error: std::io::Error| CliError::internal(format!("cannot ask: {error}"));
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = Vec::new();
    // Byte by byte up to the end of the line: whatever follows is not ours.
    for byte in std::io::stdin().lock().take(64).bytes() {
        match byte.map_err(failed)? {
            b'\n' => break,
            byte => answer.push(byte),
        }
    }
    let answer = String::from_utf8_lossy(&answer).trim().to_lowercase();
    Ok(answer == "y" || answer == "yes")
}
