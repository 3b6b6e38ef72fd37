//! Keeps the certificate valid: renewal at half-life, rejoin after expiry.
//!
//! The wall clock decides and is checked often, so that a machine that slept notices at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuaas_contract::dsse;
use gpuaas_contract::link::{REJOIN_PAYLOAD_TYPE, Rejoin, RejoinChallenge, RejoinChallengeRequest, RejoinProof, Renew, route};
use gpuaas_contract::time::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::identity::{Identity, IdentityError, Validity};
use crate::link::dial::{self, Dialer, TlsSetupError};
use crate::link::http::{Call, HttpError, Lane};

/// Longest delay while the control plane cannot be reached.
const SLOWEST: Duration = Duration::from_secs(60);
/// Shortest time between two checks of the certificate.
const SOONEST: Duration = Duration::from_secs(1);
/// Longest delay while this host's clock is wrong.
const SLOWEST_CLOCK: Duration = Duration::from_secs(600);

/// The identity and its connector.
#[derive(Debug)]
pub(crate) struct Credentials {
    identity: Mutex<Identity>,
    dialer: Dialer,
    until: watch::Sender<Timestamp>,
    nudged: Notify,
    addresses: Vec<String>,
    timeout: Duration,
}

/// Why the certificate was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The control plane did not answer or refused.
    #[error("the control plane gave no new certificate")]
    Http(#[from] HttpError),
    /// The new certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// TLS could not be set up with it.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    /// The new certificate is not valid at this host's time.
    #[error("the new certificate is valid from {from} until {until}, but this host's clock says {now}: check NTP")]
    Clock {
        /// The start of its validity.
        from: Timestamp,
        /// The end of its validity.
        until: Timestamp,
        /// This host's clock.
        now: Timestamp,
    },
    /// Saving failed.
    #[error("saving the certificate failed")]
    Thread(#[from] tokio::task::JoinError),
}

/// The answer to a renewal or a rejoin; a rejoin may have more fields.
#[derive(serde::Deserialize)]
struct FreshCertificate {
    certificate_pem: String,
}

impl Credentials {
    /// Creates the connector of an enrolled node.
    pub(crate) fn new(identity: Identity, addresses: Vec<String>, timeout: Duration) -> Result<Arc<Self>, RenewalError> {
        let until = identity.validity()?.until;
        let config = dial::enrolled_config(&identity.ca, Some((identity.chain()?, identity.keys.tls_der())))?;
        let dialer = Dialer::new(addresses.clone(), config, timeout);
        Ok(Arc::new(Self {
            identity: Mutex::new(identity),
            dialer,
            until: watch::Sender::new(until),
            nudged: Notify::new(),
            addresses,
            timeout,
        }))
    }

    /// Returns the connector with the current certificate.
    pub(crate) fn dialer(&self) -> Dialer {
        self.dialer.clone()
    }

    /// Returns the end of the current certificate.
    pub(crate) fn until(&self) -> watch::Receiver<Timestamp> {
        self.until.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn validity(&self) -> Result<Validity, IdentityError> {
        self.lock().validity()
    }

    /// Handles a failed link. If the certificate is the cause, it is checked at once, and this returns true.
    pub(crate) fn blamed(&self) -> bool {
        let expired = Timestamp::now() >= *self.until.borrow();
        if expired {
            self.nudged.notify_one();
        }
        expired
    }

    /// Renews the certificate until `stop`.
    pub(crate) async fn keep_alive(self: Arc<Self>, stop: CancellationToken, every: Duration) {
        let mut pause = every;
        loop {
            match self.look(Timestamp::now()).await {
                Ok(()) => pause = self.until_half_life().clamp(every.min(SOONEST), every),
                Err(error) => {
                    tracing::warn!(error = crate::error_chain::chain(&error), "certificate was not replaced; it will be retried");
                    // Frequent retries do not fix a wrong clock, but a control plane that is reachable again should be found
                    // soon.
                    let slowest = if matches!(error, RenewalError::Clock { .. }) { SLOWEST_CLOCK } else { SLOWEST };
                    pause = (pause * 2).min(slowest);
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.nudged.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Returns the time until the renewal is due. The regular check would find a certificate that is valid for minutes only when
    /// it has nearly expired.
    fn until_half_life(&self) -> Duration {
        self.validity().map_or(Duration::MAX, |validity| validity.half_life().since(Timestamp::now()))
    }

    /// Renews or rejoins if it is due.
    pub(crate) async fn look(self: &Arc<Self>, now: Timestamp) -> Result<(), RenewalError> {
        let validity = self.validity()?;
        // A certificate from the future comes from a control plane with a wrong clock: no other would accept it.
        if now >= validity.until || now < validity.from {
            self.rejoin().await
        } else if now >= validity.half_life() {
            self.renew().await
        } else {
            Ok(())
        }
    }

    async fn renew(self: &Arc<Self>) -> Result<(), RenewalError> {
        let (node_id, csr_pem) = {
            let identity = self.lock();
            (identity.document.node_id, identity.keys.signing_request()?)
        };
        let path = route::RENEW.replace("{node}", &node_id.to_string());
        let call = Call::post_json(path, &Renew { csr_pem }, self.timeout);
        let fresh: FreshCertificate = Lane::new(self.dialer.clone()).call_json(&call).await?;
        self.take(fresh.certificate_pem).await?;
        tracing::info!(until = %*self.until.borrow(), "certificate renewed");
        Ok(())
    }

    /// Proves possession of both old keys over a connection without a certificate, which would no longer be accepted.
    async fn rejoin(self: &Arc<Self>) -> Result<(), RenewalError> {
        tracing::warn!("this node's certificate is not valid now; rejoining with its keys");
        let (document, csr_pem, ca) = {
            let identity = self.lock();
            (identity.document.clone(), identity.keys.signing_request()?, identity.ca.clone())
        };
        let dialer = Dialer::new(self.addresses.clone(), dial::enrolled_config(&ca, None)?, self.timeout);
        let mut lane = Lane::new(dialer);
        let request = RejoinChallengeRequest { node_id: document.node_id };
        let call = Call::post_json(route::REJOIN_CHALLENGE.to_owned(), &request, self.timeout);
        let RejoinChallenge { challenge } = lane.call_json(&call).await?;
        let proof = RejoinProof {
            cluster_id: document.cluster_id,
            node_id: document.node_id,
            node_epoch: document.node_epoch,
            challenge,
            csr_pem,
        };
        let payload = serde_json::to_vec(&proof).unwrap_or_default();
        let proof = dsse::seal(REJOIN_PAYLOAD_TYPE, payload, &self.lock().keys.receipt);
        let body = Rejoin { node_id: document.node_id, proof };
        let call = Call::post_json(route::REJOIN.to_owned(), &body, self.timeout);
        let fresh: FreshCertificate = lane.call_json(&call).await?;
        self.take(fresh.certificate_pem).await?;
        tracing::info!(until = %*self.until.borrow(), "rejoined with a new certificate");
        let (Validity { from, until }, now) = (self.validity()?, Timestamp::now());
        if now < from || now >= until { Err(RenewalError::Clock { from, until, now }) } else { Ok(()) }
    }

    /// Checks, saves and uses a new certificate; later connections present it.
    async fn take(self: &Arc<Self>, certificate_pem: String) -> Result<(), RenewalError> {
        let this = Arc::clone(self);
        let taken = gpuaas_runtime::blocking(move || {
            let mut identity = this.lock();
            identity.renew(certificate_pem)?;
            let config = dial::enrolled_config(&identity.ca, Some((identity.chain()?, identity.keys.tls_der())))?;
            this.dialer.replace_config(config);
            this.until.send_replace(identity.validity()?.until);
            Ok(())
        });
        taken.await?
    }
}
