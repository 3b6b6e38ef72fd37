//! What can go wrong while serving somebody, and the loop that loads, decides and commits.

use gpuaas_contract::id::OrgId;
use gpuaas_domain::{Decision, Refusal};
use gpuaas_store::{CommitError, StoreError};

use crate::http::idempotency;
use crate::{Control, leases};

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A typed no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller did not prove who it is.
    #[error("{message}")]
    Unauthenticated {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// Something that we rely on does not answer.
    #[error("{message}")]
    Unavailable {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// There was too much of it; later it may work.
    #[error("{message}")]
    TooMany {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
        /// When to try again.
        retry_after: std::time::Duration,
    },
    /// What was asked for is not as the caller thinks it is.
    #[error("{message}")]
    Precondition {
        /// Stable code.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// The body or a parameter is not what it should be.
    #[error("{message}")]
    BadInput {
        /// Stable code.
        code: &'static str,
        /// What to change.
        message: String,
    },
    /// The caller's long-poll session is no longer the node's link.
    #[error("this session is no longer the node's link; say hello again")]
    Fenced,
    /// The store did not answer as it should.
    #[error("the store is not available")]
    Store(#[from] StoreError),
    /// Others kept changing the same thing.
    #[error("the same thing is being changed by others; try again")]
    Contended,
    /// Something of ours is broken.
    #[error("{0}")]
    Internal(String),
}

/// How often a decision is made anew because another writer was faster.
const MAX_ATTEMPTS: u32 = 16;

/// How many lines there are. Organizations with the same one wait for each other, which only costs time.
const LINES: u8 = 64;

/// Where those wait who change the counters of an organization, once another one was faster: there they have their turn one after the
/// other. Each organization has its line, so that one with much to do does not hold up the others.
#[derive(Debug)]
pub(crate) struct Lines(Vec<tokio::sync::Mutex<()>>);

impl Default for Lines {
    fn default() -> Self {
        Self((0..LINES).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl Lines {
    async fn turn(&self, organization: OrgId) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        // The last of its bytes are by chance.
        let chance = organization.as_bytes().last()?;
        Some(self.0.get(usize::from(chance % LINES))?.lock().await)
    }
}

/// Loads, decides and commits until it sticks: `attempt` loads the state and decides on it; if another writer changed
/// that state meanwhile, it is called again. An empty decision is not written at all.
pub(crate) async fn settle<T, A, F>(control: &Control, attempt: A) -> Result<T, Failure>
where
    A: Fn() -> F,
    F: Future<Output = Result<(T, Decision), Failure>>,
{
    settle_with(control, (), |_| None, |_| attempt()).await
}

/// The same for a caller that has just loaded the state: the first attempt gets it and need not load it again.
pub(crate) async fn settle_knowing<K, T, A, F>(control: &Control, known: K, attempt: A) -> Result<T, Failure>
where
    A: Fn(Option<K>) -> F,
    F: Future<Output = Result<(T, Decision), Failure>>,
{
    settle_with(control, known, |_| None, attempt).await
}

/// The same for decisions about allocations, all of which count against the quota of an organization. `attempt` must not wait for
/// others who may be in line.
pub(crate) async fn settle_counted<T, A, F>(
    control: &Control,
    organization: impl Fn(&T) -> Option<OrgId>,
    attempt: A,
) -> Result<T, Failure>
where
    A: Fn() -> F,
    F: Future<Output = Result<(T, Decision), Failure>>,
{
    settle_with(control, (), organization, |_| attempt()).await
}

async fn settle_with<K, T, A, F>(
    control: &Control,
    known: K,
    organization: impl Fn(&T) -> Option<OrgId>,
    attempt: A,
) -> Result<T, Failure>
where
    A: Fn(Option<K>) -> F,
    F: Future<Output = Result<(T, Decision), Failure>>,
{
    let (mut known, mut turn) = (Some(known), None);
    for _ in 0..MAX_ATTEMPTS {
        let (value, decision) = attempt(known.take()).await?;
        if decision.is_empty() {
            return Ok(value);
        }
        let (decision, claimed) = idempotency::claim(decision);
        match leases::commit(control, decision).await {
            Ok(()) => {
                idempotency::written(claimed);
                return Ok(value);
            }
            Err(CommitError::Conflict) => {}
            Err(CommitError::Store(error)) => return Err(error.into()),
        }
        control.metrics.decision_overtaken();
        let organization = organization(&value);
        // Whatever it keeps from others is theirs while this one waits.
        drop(value);
        match organization {
            Some(organization) if turn.is_none() => turn = control.lines.turn(organization).await,
            Some(_) | None => tokio::task::yield_now().await,
        }
    }
    Err(Failure::Contended)
}
