//! Attacks by strangers, tenants, guests, nodes and hosts on real processes with ordinary limits, while a legitimate user works
//! next to them.
//!
//! Every test has four parts: a server with 1,024 file descriptors and a node; a [`Bystander`] who keeps working; the attack
//! itself; and what must hold: the bystander is served all the time, the server's memory stays within its budget, and everything
//! that the attack occupied is released. `cargo xtask attack` runs the long forms.

mod bystander;
mod guests;
mod hosts;
mod http;
mod keys;
mod memory;
mod nodes;
mod rogue;
mod sockets;
mod strangers;
mod target;
mod tenant;
mod tenants;

use std::time::Duration;

use bystander::{Bystander, Served};
use target::Target;

/// What the server's memory may grow to: what it needs at rest, and every internal budget used up.
const MEMORY_BUDGET_KIB: u64 = 512 * 1024;
/// Longest wait of the bystander in the long form, when nothing else keeps the machine busy.
const PATIENCE_ALONE: Duration = Duration::from_secs(2);
/// The same in the short form, which runs next to other tests.
const PATIENCE_BESIDE_TESTS: Duration = Duration::from_secs(15);

fn is_long() -> bool {
    gpuaas_testkit::proof_count(0, 1) > 0
}

/// Runs `attack` on the target next to a bystander, then checks what must hold and prints the figures.
#[allow(clippy::print_stdout, reason = "`cargo xtask attack` prints the figures")]
fn withstand(name: &str, target: &mut Target, attack: impl FnOnce(&Target) -> String) {
    let before = target.usage();
    let bystander = Bystander::start(target);
    let what = attack(target);
    let during = target.usage();
    let served = bystander.finish();
    let recovered = target.wait_recovered(&before);
    println!(
        "attack {name}: {what}; bystander {served}; memory {} MiB before, {} MiB at its peak, {} MiB after; descriptors {} before, {} under attack; recovered in {:.1} s",
        before.resident_kib / 1024,
        during.peak_kib / 1024,
        target.usage().resident_kib / 1024,
        before.descriptors,
        during.descriptors,
        recovered.as_secs_f64(),
    );
    let Served { requests, failures, slowest, .. } = &served;
    assert!(*requests > 0, "{name}: the bystander did nothing");
    assert!(failures.is_empty(), "{name}: the bystander was refused {} times, first: {}", failures.len(), failures[0]);
    let patience = if is_long() { PATIENCE_ALONE } else { PATIENCE_BESIDE_TESTS };
    assert!(*slowest <= patience, "{name}: the bystander waited {slowest:?}; at most {patience:?} is allowed");
    assert!(during.peak_kib <= MEMORY_BUDGET_KIB, "{name}: the server took {} KiB of memory", during.peak_kib);
}
