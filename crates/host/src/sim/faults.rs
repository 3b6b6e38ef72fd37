//! The common path of every operation of the simulated host: it is counted, can be told to fail before or after its effect, and
//! its changes are saved before the caller gets the result.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::machine::Machine;
use super::{Operation, SimHost};
use crate::HostError;
use crate::guests::Point;

/// Maximum number of remembered calls; older ones are dropped.
const MOST_CALLS: usize = 100_000;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it strikes.
    pub at: Target,
    /// Whether it strikes before or after the effect.
    pub when: When,
    /// Its kind.
    pub kind: FaultKind,
    /// How often it strikes. A fault at a number strikes this many operations in a row.
    pub times: u32,
}

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At the nth operation since it was armed, counted from 1.
    Number(u64),
    /// At every such operation.
    Operation(Operation),
    /// At this point of this phase.
    Checkpoint {
        /// The phase.
        phase: &'static str,
        /// The point.
        point: Point,
    },
}

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the effect.
    Before,
    /// After the effect: the caller gets an error, or no answer at all.
    After,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The operation fails with `io_error`.
    IoError,
    /// The operation fails with `disk_full`.
    DiskFull,
    /// The process dies: this operation and every later one of this host never return, and its folder stays as it is.
    Kill,
}

/// A call of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number since the host was opened, from 1.
    pub number: u64,
    /// The phase of the last checkpoint; empty before the first.
    pub phase: &'static str,
    /// The operation.
    pub operation: Operation,
    /// Its subject.
    pub subject: String,
}

/// The operations of one opened host: the machine, its faults and its calls.
#[derive(Debug)]
pub(super) struct SimOperations {
    folder: PathBuf,
    inside: Mutex<Inside>,
    dead: watch::Sender<bool>,
}

#[derive(Debug)]
struct Inside {
    machine: Machine,
    /// The content of the file.
    saved: Machine,
    count: u64,
    phase: &'static str,
    calls: VecDeque<Call>,
    armed: Vec<Armed>,
    fired: Vec<Call>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Operations before it was armed.
    since: u64,
    left: u32,
}

impl Armed {
    fn strikes(&self, call: &Call, when: When) -> bool {
        let there = match self.fault.at {
            Target::Number(number) => call.number >= self.since.saturating_add(number),
            Target::Operation(operation) => call.operation == operation,
            Target::Checkpoint { phase, point } => {
                call.operation == Operation::Checkpoint && call.subject == checkpoint_subject(phase, point)
            }
        };
        self.left > 0 && self.fault.when == when && there
    }
}

fn checkpoint_subject(phase: &str, point: Point) -> String {
    let point = match point {
        Point::Begin => "begin",
        Point::Done => "done",
        Point::Journaled => "journaled",
    };
    format!("{phase} {point}")
}

impl Inside {
    /// Returns the fault that strikes now, if there is one.
    fn strike(&mut self, call: &Call, when: When) -> Option<FaultKind> {
        let armed = self.armed.iter_mut().find(|armed| armed.strikes(call, when))?;
        armed.left -= 1;
        if self.fired.len() < MOST_CALLS {
            self.fired.push(call.clone());
        }
        Some(armed.fault.kind)
    }

    fn save(&mut self, folder: &Path) -> Result<(), HostError> {
        if self.machine == self.saved {
            return Ok(());
        }
        self.machine
            .save(folder)
            .map_err(|error| HostError::because("host_error", "the simulated host cannot write its state", &error))?;
        self.saved.clone_from(&self.machine);
        Ok(())
    }
}

impl SimOperations {
    pub(super) fn new(folder: &Path, machine: Machine) -> Self {
        let inside = Inside {
            saved: machine.clone(),
            machine,
            count: 0,
            phase: "",
            calls: VecDeque::new(),
            armed: Vec::new(),
            fired: Vec::new(),
        };
        Self { folder: folder.to_owned(), inside: Mutex::new(inside), dead: watch::Sender::new(false) }
    }

    fn open(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the machine without calling an operation.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.open().machine)
    }

    /// Changes the machine without calling an operation. A killed host does not change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Machine) -> Result<T, HostError>) -> Result<T, HostError> {
        let inside = &mut *self.open();
        if *self.dead.borrow() {
            return Err(HostError::new("host_dead", "this simulated host was killed; open its folder again"));
        }
        let result = change(&mut inside.machine)?;
        inside.save(&self.folder)?;
        Ok(result)
    }

    /// Runs one operation. Returns `None` if the host is dead.
    fn operate<T>(
        &self,
        (operation, phase): (Operation, Option<&'static str>),
        subject: String,
        effect: impl FnOnce(&mut Machine) -> Result<T, HostError>,
    ) -> Option<Result<T, HostError>> {
        let inside = &mut *self.open();
        if *self.dead.borrow() {
            return None;
        }
        inside.count += 1;
        inside.phase = phase.unwrap_or(inside.phase);
        let call = Call { number: inside.count, phase: inside.phase, operation, subject };
        if inside.calls.len() == MOST_CALLS {
            inside.calls.pop_front();
        }
        inside.calls.push_back(call.clone());
        if let Some(kind) = inside.strike(&call, When::Before) {
            return self.fail(kind, &call);
        }
        let result = effect(&mut inside.machine);
        let saved = inside.save(&self.folder);
        if let Some(kind) = inside.strike(&call, When::After) {
            return self.fail(kind, &call);
        }
        Some(result.and_then(|value| saved.map(|()| value)))
    }

    fn fail<T>(&self, kind: FaultKind, call: &Call) -> Option<Result<T, HostError>> {
        let (operation, subject) = (call.operation, &call.subject);
        let (code, what) = match kind {
            FaultKind::IoError => ("io_error", "Input/output error"),
            FaultKind::DiskFull => ("disk_full", "No space left on device"),
            FaultKind::Kill => {
                self.dead.send_replace(true);
                return None;
            }
        };
        Some(Err(HostError::new(code, format!("{operation:?} {subject}: {what} (injected)"))))
    }
}

impl SimHost {
    /// Arms a fault, in addition to others.
    pub fn arm(&self, fault: Fault) {
        let inside = &mut *self.operations().open();
        inside.armed.push(Armed { fault, since: inside.count, left: fault.times });
    }

    /// Disarms every fault. The fired ones stay in [`SimHost::fired`].
    pub fn disarm(&self) {
        self.operations().open().armed.clear();
    }

    /// Returns the calls that faults have struck.
    pub fn fired(&self) -> Vec<Call> {
        self.operations().open().fired.clone()
    }

    /// Returns the calls since the host was opened; if there are very many, the oldest are left out.
    pub fn calls(&self) -> Vec<Call> {
        self.operations().open().calls.iter().cloned().collect()
    }

    /// Waits until a fault has killed the host.
    pub async fn killed(&self) {
        // The sender lives in this host, so waiting cannot fail.
        let _ = self.operations().dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// Runs an operation: the common path of all of them.
    pub(crate) async fn operate<T>(
        &self,
        operation: Operation,
        subject: String,
        effect: impl FnOnce(&mut Machine) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        match self.operations().operate((operation, None), subject, effect) {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn checkpoint(&self, phase: &'static str, point: Point) -> Result<(), HostError> {
        let subject = checkpoint_subject(phase, point);
        match self.operations().operate((Operation::Checkpoint, Some(phase)), subject, |_| Ok(())) {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}
