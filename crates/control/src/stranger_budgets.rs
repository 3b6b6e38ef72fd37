//! Budgets of unauthenticated callers: rows, guesses and password work, by address and in total.
//!
//! One attacker with many addresses can use up a budget that all strangers share. So addresses with a recent sign-in share
//! another one: their users can still sign in while strangers exhaust theirs. The counts are in `gpuaas_backends::limits`; while
//! Redis cannot be reached each process counts by itself, and no limit is dropped.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_backends::limits::Rule;

use crate::Control;
use crate::error::ControlError;
use crate::listener::ClientAddress;

/// How long an address counts as known after a sign-in.
const KNOWN_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A budget for one kind of work.
pub(crate) struct Budget {
    /// Stable code of the refusal; also the name of the counters.
    code: &'static str,
    /// The message.
    message: &'static str,
    /// The limit of one address.
    per_address: Rule,
    /// The limit of all strangers together, and again of all known addresses.
    total: Rule,
}

/// Rows of device codes: each is kept for ten minutes, so there are at most twice the burst of a rule at a time.
pub(crate) const DEVICE_CODES: Budget = Budget {
    code: "device_codes_exhausted",
    message: "too many device codes were asked for; wait, or sign in with a browser on this machine",
    per_address: Rule { per: Duration::from_secs(600), burst: 20 },
    total: Rule { per: Duration::from_secs(600), burst: 2000 },
};

/// Typed codes that do not exist. There are 2.5 · 10^10 possible codes.
pub(crate) const USER_CODE_GUESSES: Budget = Budget {
    code: "user_code_guesses_exhausted",
    message: "too many wrong codes were typed; wait, then check your terminal again",
    per_address: Rule { per: Duration::from_secs(600), burst: 10 },
    total: Rule { per: Duration::from_secs(600), burst: 1000 },
};

/// Requests to the token endpoint.
pub(crate) const TOKEN_REQUESTS: Budget = Budget {
    code: "token_requests_exhausted",
    message: "too many requests for tokens from this address; wait",
    per_address: Rule { per: MINUTE, burst: 600 },
    total: Rule { per: MINUTE, burst: 12_000 },
};

/// Wrong passwords from one address, for any account.
pub(crate) const WRONG_PASSWORDS: Budget = Budget {
    code: "sign_in_attempts_exhausted",
    message: "too many wrong passwords from this address; wait",
    per_address: Rule { per: Duration::from_secs(900), burst: 30 },
    total: Rule { per: Duration::from_secs(60), burst: 1200 },
};

/// Enrollment requests of hosts.
pub(crate) const ENROLLMENT_REQUESTS: Budget = Budget {
    code: "enrollment_requests_exhausted",
    message: "too many requests to be enrolled from this address; wait, or enroll with a join token",
    per_address: Rule { per: HOUR, burst: 120 },
    total: Rule { per: HOUR, burst: 4000 },
};

impl Budget {
    /// Uses one unit, or refuses.
    pub(crate) async fn spend(&self, control: &Control, from: &AddressRange, is_known: bool) -> Result<(), ControlError> {
        let limits = &control.backends.limits;
        for (key, rule) in self.counters(from, is_known) {
            let decision = limits.check(&key, rule, 1).await;
            if !decision.allowed {
                return Err(self.refusal(control, decision.retry_after.unwrap_or(MINUTE)));
            }
        }
        Ok(())
    }

    /// Refuses if nothing is left, and uses nothing.
    pub(crate) async fn look(&self, control: &Control, from: &AddressRange, is_known: bool) -> Result<(), ControlError> {
        for (key, rule) in self.counters(from, is_known) {
            if let Some(wait) = empty(control, &key, rule).await {
                return Err(self.refusal(control, wait));
            }
        }
        Ok(())
    }

    fn counters(&self, from: &AddressRange, is_known: bool) -> [(String, Rule); 2] {
        let class = if is_known { "known" } else { "strangers" };
        [(format!("{}:{from}", self.code), self.per_address), (format!("{}:all:{class}", self.code), self.total)]
    }

    fn refusal(&self, control: &Control, retry_after: Duration) -> ControlError {
        too_many(control, self.code, self.message, retry_after)
    }
}

/// Returns how long a counter stays exhausted, or `None` if something is left.
pub(crate) async fn empty(control: &Control, key: &str, rule: Rule) -> Option<Duration> {
    let left = control.backends.limits.check(key, rule, 0).await.remaining;
    (left == 0).then(|| rule.per / rule.burst.max(1))
}

/// Returns a refusal with a retry time.
pub(crate) fn too_many(control: &Control, code: &'static str, message: &str, retry_after: Duration) -> ControlError {
    control.metrics.refused(code);
    ControlError::TooMany { code, message: message.to_owned(), retry_after }
}

/// The origin of a caller for budgets: an IPv4 address, or the /64 of an IPv6 address, which one customer of a provider usually
/// has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AddressRange(String);

impl AddressRange {
    /// Returns the range of a caller; those on the local socket have their own.
    pub(crate) fn of(from: Option<ClientAddress>) -> Self {
        from.map_or_else(|| Self("local".to_owned()), |ClientAddress(address)| Self::of_ip(address.ip()))
    }

    fn of_ip(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_string()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(format!("{}/64", std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
        }
    }

    /// Returns whether there was a recent sign-in from here. If that cannot be checked, the answer is no.
    pub(crate) async fn is_known(&self, control: &Control) -> bool {
        self.is_marked(control, "any").await
    }

    /// Returns whether this account signed in from here recently.
    pub(crate) async fn is_known_for(&self, control: &Control, account: &str) -> bool {
        self.is_marked(control, account).await
    }

    async fn is_marked(&self, control: &Control, account: &str) -> bool {
        control.backends.ephemeral.peek(&self.mark(account)).await.is_ok_and(|found| found.is_some())
    }

    /// Records a sign-in from here.
    pub(crate) async fn remember(&self, control: &Control, account: &str) {
        for account in ["any", account] {
            if let Err(error) = control.backends.ephemeral.put(&self.mark(account), Bytes::from_static(b"1"), KNOWN_FOR).await {
                tracing::debug!(code = error.code(), "a known address could not be remembered");
            }
        }
    }

    fn mark(&self, account: &str) -> String {
        format!("known-address:{self}:{account}")
    }
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_of_a_provider_is_one_address() {
        let of = |text: &str| AddressRange::of_ip(text.parse().expect("an address")).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"), "the same address in other words");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }
}
