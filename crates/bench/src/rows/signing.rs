//! Signing and verifying a complete task, against the bare signature.

use std::time::{Duration, Instant};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use ed25519_dalek::Signer as _;
use futures::future::BoxFuture;
use gpuaas_contract::id::{ClusterId, CorrelationId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{dsse, envelope};

use crate::Result;
use crate::measure::{Effort, Goal, Round, Row, Side, count, interleave};

const SEED: [u8; 32] = [42; 32];

/// Returns a task as the dispatcher would sign it now.
fn payload() -> Result<envelope::Payload> {
    let now = Timestamp::now();
    let params = serde_json::value::RawValue::from_string(format!("{{\"message\":\"{}\"}}", "m".repeat(64)))?;
    Ok(envelope::Payload {
        cluster_id: ClusterId::generate(),
        node_id: NodeId::generate(),
        node_epoch: 1,
        task_id: TaskId::generate(),
        task_type: "diag.ping".to_owned(),
        params,
        allocation_id: None,
        lease_epoch: None,
        issued_at: now,
        start_by: now.plus(Duration::from_secs(300)),
        deadline: now.plus(Duration::from_secs(600)),
        correlation_id: CorrelationId::generate(),
    })
}

/// One side: signs and verifies once per call.
struct Signing {
    name: &'static str,
    work: Box<dyn FnMut() -> Result<()> + Send>,
}

impl Side for Signing {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        let started = Instant::now();
        let mut done = 0;
        while started.elapsed() < time {
            if let Err(error) = (self.work)() {
                return Box::pin(async { Err(error) });
            }
            done += 1;
        }
        let rate = count(done) / started.elapsed().as_secs_f64();
        Box::pin(async move { Ok(Round::value(rate)) })
    }
}

fn whole_envelope() -> Result<Signing> {
    let (key, payload) = (SigningKey::from_seed(&SEED), payload()?);
    let public = key.verifying_key();
    let work = move || {
        let signed = payload.sign(&key);
        let expect = envelope::Expectation {
            keys: &public,
            cluster_id: payload.cluster_id,
            node_id: payload.node_id,
            node_epoch: payload.node_epoch,
            now: payload.issued_at,
            highest_seen: payload.issued_at,
        };
        let verified = envelope::verify(&signed.envelope, &expect).map_err(|refusal| refusal.message)?;
        if *verified.digest() == signed.digest { Ok(()) } else { Err("another digest came out".into()) }
    };
    Ok(Signing { name: "gpuaas envelope", work: Box::new(work) })
}

/// Returns the bytes that the envelope's signature covers.
fn signed_bytes() -> Result<Vec<u8>> {
    Ok(dsse::pre_authentication_encoding(envelope::PAYLOAD_TYPE, &serde_json::to_vec(&payload()?)?))
}

fn bare_dalek() -> Result<Signing> {
    let (key, bytes) = (ed25519_dalek::SigningKey::from_bytes(&SEED), signed_bytes()?);
    let public = key.verifying_key();
    let work = move || {
        let signature = key.sign(std::hint::black_box(&bytes));
        Ok(public.verify_strict(std::hint::black_box(&bytes), &signature)?)
    };
    Ok(Signing { name: "ed25519-dalek", work: Box::new(work) })
}

fn bare_aws_lc() -> Result<Signing> {
    let key = Ed25519KeyPair::from_seed_unchecked(&SEED).map_err(|_| "aws-lc-rs refuses the seed")?;
    let bytes = signed_bytes()?;
    let public = UnparsedPublicKey::new(&ED25519, key.public_key().as_ref().to_vec());
    let work = move || {
        let signature = key.sign(std::hint::black_box(&bytes));
        public.verify(std::hint::black_box(&bytes), signature.as_ref()).map_err(|_| "aws-lc-rs refuses its own signature".into())
    };
    Ok(Signing { name: "aws-lc-rs", work: Box::new(work) })
}

pub(crate) async fn run(effort: Effort) -> Result<Vec<Row>> {
    let path = "sign + verify one task, one core";
    let mut sides: Vec<Box<dyn Side>> = vec![Box::new(whole_envelope()?), Box::new(bare_dalek()?), Box::new(bare_aws_lc()?)];
    let measured = interleave(&mut sides, effort).await;
    Ok([1, 2].map(|peer| measured.row(path, "1/s", 0, peer, 0, Goal::AtLeast(0.9))).into())
}
