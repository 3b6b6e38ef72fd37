//! Confirmation of commands that cannot be undone.

use std::io::{IsTerminal as _, Read as _, Write as _};

use crate::error::CliError;
use crate::exit::Exit;
use crate::output::text;

/// The id of the argument by which clap knows that a command is confirmed.
pub(crate) const CONFIRMED: &str = "confirmed";

/// For commands that cannot be undone.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ConfirmArgs {
    /// Do not ask for confirmation. Required without a terminal.
    #[arg(id = CONFIRMED, short = 'y', long = "yes")]
    yes: bool,
}

impl ConfirmArgs {
    /// Returns whether `--yes` was given, so that nothing has to be fetched for the question.
    pub(super) fn is_given(self) -> bool {
        self.yes
    }

    /// Asks for the name of what is to be destroyed, unless `--yes` was given.
    pub(super) fn ask_for_name(self, question: &str, name: &str) -> Result<(), CliError> {
        match (self.yes, somebody_is_there()) {
            (true, _) => Ok(()),
            (false, true) => ask_for_name(question, name),
            (false, false) => Err(required()),
        }
    }
}

/// Returns the error for a destructive command that is not confirmed and cannot ask.
pub(crate) fn required() -> CliError {
    let message = "this cannot be undone, and there is no terminal to ask for confirmation; nothing was done";
    CliError::usage("confirmation_required", message).hint("--yes confirms it")
}

/// Returns whether there is a terminal to ask on.
pub(crate) fn somebody_is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks about something that can be undone. Anything but a yes ends the command with nothing done.
pub(crate) fn ask(question: &str) -> Result<(), CliError> {
    if answered_yes(&text::printable(question))? {
        return Ok(());
    }
    let failure = CliError::new(Exit::Refused, "not_confirmed", "nothing was done");
    Err(failure.hint("answer `y`, or give --yes"))
}

/// Asks for the name of what is to be destroyed. Any other answer ends the command with nothing done.
fn ask_for_name(question: &str, name: &str) -> Result<(), CliError> {
    let (question, name) = (text::printable(question), text::printable(name));
    if answer(&format!("{question} Type {name} to confirm: "))? == name {
        return Ok(());
    }
    let error = CliError::new(Exit::Refused, "not_confirmed", "that is not its name; nothing was done");
    Err(error.hint("type the name as it is shown, or give --yes"))
}

fn answered_yes(question: &str) -> Result<bool, CliError> {
    let answer = answer(&format!("{question} [y/N] "))?.to_lowercase();
    Ok(answer == "y" || answer == "yes")
}

/// Reads one line of input.
fn answer(prompt: &str) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::internal(format!("cannot ask: {error}"));
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{prompt}").and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = Vec::new();
    // Read byte by byte up to the end of the line, because what follows it belongs to another reader.
    for byte in std::io::stdin().lock().take(256).bytes() {
        match byte.map_err(failed)? {
            b'\n' => break,
            byte => answer.push(byte),
        }
    }
    Ok(String::from_utf8_lossy(&answer).trim().to_owned())
}
