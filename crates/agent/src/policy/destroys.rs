//! Limits how many destructive tasks may run per hour. The counts are on disk, so a restart of the agent does not reset them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpuaas_contract::task::Destroys;
use gpuaas_contract::time::Timestamp;
use gpuaas_host::private_file::{self, PrivateFileError};

/// Maximum size of the file in bytes: the counts of an hour by minute, plus those from a time when the clock was ahead.
const MAX_FILE: u64 = 64 * 1024;
const MINUTE: i64 = 60 * 1_000_000;
const MINUTES_PER_HOUR: i64 = 60;
/// Maximum number of minutes kept, including those from a time when the clock was ahead.
const MAX_MINUTES: usize = 1024;
/// One write reserves this fraction of the limit in advance, to save writes. A limit below 64 is written one by one.
const AHEAD: u32 = 64;

/// Why the counts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DestroysError {
    /// The file cannot be accessed, or its permissions let other users change it.
    #[error("the count of destructive tasks cannot be trusted")]
    File(#[from] PrivateFileError),
    /// The content is not what the agent wrote.
    #[error(
        "{path} is damaged ({detail}); remove it once you have made sure that the tasks of the last hour were meant",
        path = .path.display()
    )]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// What is wrong with the content.
        detail: String,
    },
}

/// How many tasks ran, by minute since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    guests: BTreeMap<i64, u32>,
    tenants: BTreeMap<i64, u32>,
}

impl Counts {
    fn of(&mut self, what: Destroys) -> &mut BTreeMap<i64, u32> {
        match what {
            Destroys::Guest => &mut self.guests,
            Destroys::Tenant => &mut self.tenants,
        }
    }

    /// Drops counts that are older than an hour. Counts in the future were written while the clock was ahead; they still count.
    fn forget(&mut self, minute: i64) {
        for counts in [&mut self.guests, &mut self.tenants] {
            counts.retain(|counted, _| *counted > minute - MINUTES_PER_HOUR);
        }
    }
}

/// The counts in memory and on disk.
#[derive(Debug, Default)]
pub(super) struct DestroyBudget {
    /// `None` keeps the counts in memory only.
    path: Option<PathBuf>,
    counts: Counts,
    /// The minute and how many more tasks are already counted on disk for it.
    ahead: BTreeMap<Destroys, (i64, u32)>,
}

impl DestroyBudget {
    /// Loads the counts from this folder.
    pub(super) fn open(folder: &Path) -> Result<Self, DestroysError> {
        let path = folder.join("destroys.json");
        let counts = match private_file::read_secret(&path, MAX_FILE) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| DestroysError::Damaged { path: path.clone(), detail: error.to_string() })?,
            Err(PrivateFileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Counts::default(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path: Some(path), counts, ahead: BTreeMap::new() })
    }

    /// Counts one task, or refuses it if `limit` tasks were counted within the last hour. The count is durable when this returns.
    pub(super) fn take(&mut self, what: Destroys, limit: u32, now: Timestamp) -> Result<(), String> {
        let minute = now.0.div_euclid(MINUTE);
        self.counts.forget(minute);
        let counts = self.counts.of(what);
        let spent = counts.values().fold(0_u32, |sum, count| sum.saturating_add(*count));
        if spent >= limit || counts.len() >= MAX_MINUTES {
            return Err(format!("destroys_per_hour is {limit} and that many {} within the last hour", what.past()));
        }
        let counted = counts.entry(minute).or_default();
        *counted = counted.saturating_add(1);
        match self.ahead.get_mut(&what) {
            Some((of, left)) if *of == minute && *left > 0 => *left -= 1,
            Some(_) | None => {
                let ahead = limit / AHEAD;
                self.write(what, minute, ahead)?;
                self.ahead.insert(what, (minute, ahead));
            }
        }
        Ok(())
    }

    fn write(&self, what: Destroys, minute: i64, ahead: u32) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut counts = self.counts.clone();
        let counted = counts.of(what).entry(minute).or_default();
        *counted = counted.saturating_add(ahead);
        let bytes = serde_json::to_vec(&counts).map_err(|error| error.to_string())?;
        private_file::write(path, &bytes)
            .map_err(|error| format!("destroys_per_hour cannot be counted: {}", crate::error_chain::chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 60 * MINUTE;

    fn at(time: i64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + time)
    }

    #[test]
    fn a_restart_gives_nothing_back() {
        let folder = tempfile::tempdir().expect("folder");
        for limit in [3, 200] {
            let mut taken = 0;
            let what = if limit == 3 { Destroys::Guest } else { Destroys::Tenant };
            loop {
                // Restart the agent before every count.
                let mut budget = DestroyBudget::open(folder.path()).expect("opens");
                if let Err(error) = budget.take(what, limit, at(0)) {
                    assert!(error.contains("destroys_per_hour"), "{error}");
                    break;
                }
                taken += 1;
            }
            assert!((1..=limit).contains(&taken), "{taken} of {limit}");
        }
    }

    #[test]
    fn one_life_of_the_agent_may_use_exactly_the_limit_and_again_after_an_hour() {
        for limit in [0, 1, 32, 1000] {
            let folder = tempfile::tempdir().expect("folder");
            let mut budget = DestroyBudget::open(folder.path()).expect("opens");
            let taken = (0..2000).filter(|n| budget.take(Destroys::Guest, limit, at(*n)).is_ok()).count();
            assert_eq!(taken, usize::try_from(limit).expect("small"));
            assert!(budget.take(Destroys::Guest, limit, at(HOUR - MINUTE)).is_err());
            assert_eq!(budget.take(Destroys::Guest, limit, at(HOUR + MINUTE)).is_ok(), limit > 0);
            assert_eq!(budget.take(Destroys::Tenant, limit, at(0)).is_ok(), limit > 0, "each kind has its own");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_back() {
        let mut budget = DestroyBudget::default();
        assert!(budget.take(Destroys::Guest, 1, at(5 * HOUR)).is_ok());
        assert!(budget.take(Destroys::Guest, 1, at(0)).is_err());
    }

    #[test]
    fn a_damaged_count_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().expect("folder");
        private_file::write(&folder.path().join("destroys.json"), b"{\"guests\":{}").expect("written");
        assert!(matches!(DestroyBudget::open(folder.path()), Err(DestroysError::Damaged { .. })));
    }
}
