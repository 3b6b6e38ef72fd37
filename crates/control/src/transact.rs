//! The loop that loads state, decides on it and commits, and repeats after a conflict.

use std::sync::atomic::{AtomicBool, Ordering};

use gpuaas_contract::id::OrgId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Decision;
use gpuaas_domain::idempotency::{KeyRecord, RequestKey};
use gpuaas_store::CommitError;
use tokio::sync::MutexGuard;

use crate::commit::commit;
use crate::error::ControlError;
use crate::{Control, resources};

/// How often a decision is repeated after a conflict.
const MAX_ATTEMPTS: u32 = 16;

/// The number of locks. Organizations and join tokens that share one wait for each other, which only costs time.
const LINES: u8 = 64;

/// Locks for changes of the counters of an organization or a join token: after a conflict, the changes run one after the other. Each
/// has its lock, so that a busy one does not delay others.
#[derive(Debug)]
pub(crate) struct Lines(Vec<tokio::sync::Mutex<()>>);

impl Default for Lines {
    fn default() -> Self {
        Self((0..LINES).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl Lines {
    async fn turn(&self, id: [u8; 16]) -> Option<MutexGuard<'_, ()>> {
        // Its last byte is random.
        let chance = id.last()?;
        Some(self.0.get(usize::from(chance % LINES))?.lock().await)
    }
}

/// The idempotency key of a request that was not done before. Its record is written with the first decision of the request.
#[derive(Debug)]
pub(crate) struct Claim {
    key: RequestKey,
    is_written: AtomicBool,
}

impl Claim {
    /// A key that nothing was done with yet.
    pub(crate) fn new(key: RequestKey) -> Self {
        Self { key, is_written: AtomicBool::new(false) }
    }

    /// The key.
    pub(crate) fn key(&self) -> &RequestKey {
        &self.key
    }

    /// The record of the key, to be written with `decision`, unless it was written before.
    fn record(&self, decision: &Decision) -> Option<KeyRecord> {
        (!self.is_written.load(Ordering::Relaxed)).then(|| self.key.record(decision, Timestamp::now()))
    }

    /// Refuses if another request with the same key was faster.
    async fn check_unused(&self, control: &Control) -> Result<(), ControlError> {
        if self.is_written.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(earlier) = resources::get::<KeyRecord>(control, self.key.id()).await? else { return Ok(()) };
        self.key.check(&earlier)?;
        Err(ControlError::AlreadyDone { subject: earlier.subject })
    }
}

/// Loads, decides and commits until there is no conflict: `attempt` loads the state and decides on it; if another writer changed
/// that state in the meantime, it is called again. An empty decision is not written.
pub(crate) async fn transact<T, A, F>(control: &Control, attempt: A) -> Result<T, ControlError>
where
    A: Fn() -> F,
    F: Future<Output = Result<(T, Decision), ControlError>>,
{
    transact_with(control, None, (), |_| None, |_| attempt()).await
}

/// Like [`transact`], for a caller that has just loaded the state: the first attempt gets it and need not load it again.
pub(crate) async fn transact_knowing<K, T, A, F>(control: &Control, known: K, attempt: A) -> Result<T, ControlError>
where
    A: Fn(Option<K>) -> F,
    F: Future<Output = Result<(T, Decision), ControlError>>,
{
    transact_with(control, None, known, |_| None, attempt).await
}

/// Like [`transact_knowing`], for decisions about allocations, which all count against the quota of an organization. `attempt`
/// must not wait for other holders of the lock.
pub(crate) async fn transact_counted<K, T, A, F>(
    control: &Control,
    known: K,
    organization: impl Fn(&T) -> Option<OrgId>,
    attempt: A,
) -> Result<T, ControlError>
where
    A: Fn(Option<K>) -> F,
    F: Future<Output = Result<(T, Decision), ControlError>>,
{
    transact_with(control, None, known, |value| organization(value).map(|id| *id.as_bytes()), attempt).await
}

/// The same for decisions that all count against one thing, which `line` names by its id. `attempt` must not wait for others who may be in
/// line.
pub(crate) async fn transact_in_line<T, A, F>(
    control: &Control,
    line: impl Fn(&T) -> Option<[u8; 16]>,
    attempt: A,
) -> Result<T, ControlError>
where
    A: Fn() -> F,
    F: Future<Output = Result<(T, Decision), ControlError>>,
{
    transact_with(control, None, (), line, |_| attempt()).await
}

/// The loop itself. With a claim, the record of the request's key is written in the commit of the decision, and a request whose key was
/// used meanwhile ends as [`ControlError::AlreadyDone`].
pub(crate) async fn transact_with<K, T, A, F>(
    control: &Control,
    claim: Option<&Claim>,
    known: K,
    line: impl Fn(&T) -> Option<[u8; 16]>,
    attempt: A,
) -> Result<T, ControlError>
where
    A: Fn(Option<K>) -> F,
    F: Future<Output = Result<(T, Decision), ControlError>>,
{
    let (mut known, mut turn) = (Some(known), None);
    for _ in 0..MAX_ATTEMPTS {
        let (value, decision) = attempt(known.take()).await?;
        if decision.is_empty() {
            return Ok(value);
        }
        if try_commit(control, claim, decision).await? {
            return Ok(value);
        }
        let line = line(&value);
        // Releases what it holds while it waits.
        drop(value);
        before_next_attempt(control, claim, line, &mut turn).await?;
    }
    Err(ControlError::Contended)
}

// The loop above is compiled for every use case, so what does not depend on its types is outside of it.

/// Returns false if another writer was faster.
async fn try_commit(control: &Control, claim: Option<&Claim>, decision: Decision) -> Result<bool, ControlError> {
    let decision = match claim.and_then(|claim| claim.record(&decision)) {
        Some(record) => decision.insert(&record),
        None => decision,
    };
    match commit(control, decision).await {
        Ok(()) => {
            if let Some(claim) = claim {
                claim.is_written.store(true, Ordering::Relaxed);
            }
            Ok(true)
        }
        Err(CommitError::Conflict) => {
            control.metrics.decision_overtaken();
            Ok(false)
        }
        Err(CommitError::Store(error)) => Err(error.into()),
    }
}

async fn before_next_attempt<'c>(
    control: &'c Control,
    claim: Option<&Claim>,
    line: Option<[u8; 16]>,
    turn: &mut Option<MutexGuard<'c, ()>>,
) -> Result<(), ControlError> {
    match line {
        Some(id) if turn.is_none() => *turn = control.lines.turn(id).await,
        Some(_) | None => tokio::task::yield_now().await,
    }
    match claim {
        Some(claim) => claim.check_unused(control).await,
        None => Ok(()),
    }
}
