//! Asks for a password on a terminal without echoing it.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::error::CliError;

/// Turns the terminal's echo back on when it is dropped.
struct Hidden(Termios);

impl Drop for Hidden {
    fn drop(&mut self) {
        // If this fails, the terminal is gone and there is nothing left to restore.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks a question and reads the answer without echo.
pub(crate) fn ask(question: &str) -> Result<String, CliError> {
    if !std::io::stdin().is_terminal() {
        let message = "there is no terminal to ask for a password on";
        return Err(CliError::usage("password_needed", message).hint("give files: --current-file and --new-file"));
    }
    let failed = |error: std::io::Error| CliError::internal(format!("cannot ask on this terminal: {error}"));
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{question}").and_then(|()| stderr.flush()).map_err(failed)?;
    let before = tcgetattr(std::io::stdin()).map_err(|error| failed(error.into()))?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(std::io::stdin(), OptionalActions::Flush, &quiet).map_err(|error| failed(error.into()))?;
    let restored = Hidden(before);
    let mut line = Zeroizing::new(String::new());
    let read = std::io::stdin().lock().read_line(&mut line);
    drop(restored);
    // The line break at the end of the input was not echoed either.
    let _ = writeln!(stderr);
    read.map_err(failed)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
