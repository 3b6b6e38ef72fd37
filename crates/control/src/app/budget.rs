//! The budget of destructive commands.

use gpuaas_domain::budget;

use super::Caller;
use crate::Control;
use crate::error::ControlError;

/// Allows more destructive commands for an hour.
pub(crate) async fn lift(control: &Control, caller: &Caller, count: u32, reason: &str) -> Result<(), ControlError> {
    let context = caller.context();
    caller.transact(control, || async { Ok(((), budget::lift(count, reason, &context)?)) }).await
}
