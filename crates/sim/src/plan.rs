//! The plan of a run. It derives from the seed alone, and is printed when a run fails.

use std::fmt;
use std::time::Duration;

use gpuaas_agent::config::TransportChoice;

use crate::chance::Chance;

/// Number of nodes in a simulated cluster.
pub(crate) const NODES: usize = 3;
/// When faults begin. Before that, all nodes enroll undisturbed.
pub(crate) const CHAOS_BEGINS: Duration = Duration::from_secs(10);

const HOUR: i64 = 3_600_000_000;
const MINUTE: i64 = 60_000_000;
const SECOND: i64 = 1_000_000;

/// A host, which has a clock and a disk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Server,
    Node(usize),
}

/// The direction in which a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Both,
    ToServer,
    FromServer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The operator requests a ping.
    Task {
        number: usize,
        node: usize,
        hold_ms: u32,
        log_lines: u32,
        queue_seconds: Option<u64>,
        timeout_seconds: Option<u64>,
    },
    /// The operator cancels one of the tasks created so far.
    Cancel {
        number: usize,
    },
    Drain {
        node: usize,
    },
    Undrain {
        node: usize,
    },
    Retire {
        node: usize,
    },
    RotateKey,
    /// The active signing key is revoked, and another one replaces it.
    RevokeKey,
    CutLink {
        node: usize,
        cut: Cut,
    },
    MendLink {
        node: usize,
    },
    /// Messages are held back but not lost, so the link looks open.
    Silence {
        node: usize,
    },
    Release {
        node: usize,
    },
    Crash(Who),
    Restart(Who),
    SlowDisk(Who, Duration),
    SlowLink {
        node: usize,
        latency: Duration,
    },
    /// From now on the host's clock is wrong by this many microseconds.
    Skew(Who, i64),
    /// The clocks of all hosts jump ahead by this many microseconds, far more than a run could wait for.
    TimePasses(i64),
    /// This percentage of messages is sent twice or overtakes others.
    Duplicates(u64),
    /// A thief copies the files of a node and uses them, until the end of the run or once.
    Theft {
        node: usize,
        stays: bool,
    },
}

/// Everything that happens in a run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) transports: [TransportChoice; NODES],
    pub(crate) latency: Duration,
    /// Sorted by time.
    pub(crate) events: Vec<(Duration, Event)>,
    pub(crate) chaos_ends: Duration,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  transports {:?}, latency up to {:?}", self.transports, self.latency)?;
        for (at, event) in &self.events {
            writeln!(f, "  {:>8.2} s  {event:?}", at.as_secs_f64())?;
        }
        write!(f, "  {:>8.2} s  everything is mended", self.chaos_ends.as_secs_f64())
    }
}

/// Clock errors just below the tolerance, just above it, and far above it.
const SKEWS: [i64; 8] = [59 * SECOND, -59 * SECOND, 61 * SECOND, -61 * SECOND, 10 * MINUTE, -10 * MINUTE, 48 * HOUR, -48 * HOUR];

impl Plan {
    /// Returns the plan of this seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let chaos_ends = CHAOS_BEGINS + chance.between(Duration::from_secs(20), Duration::from_secs(80));
        let mut plan = Self {
            transports: [(); NODES]
                .map(|()| chance.pick(&[TransportChoice::Auto, TransportChoice::Stream, TransportChoice::Poll])),
            latency: Duration::from_millis(chance.pick(&[5, 30, 200])),
            events: Vec::new(),
            chaos_ends,
        };
        plan.add_work(&mut chance);
        for _ in 0..chance.below(5) + 1 {
            plan.add_fault(&mut chance);
        }
        plan.add_thief(&mut chance);
        plan.events.sort_by_key(|(at, _)| *at);
        plan
    }

    fn add_work(&mut self, chance: &mut Chance) {
        let count = chance.below(8) + 3;
        for number in 0..count {
            let at = chance.between(CHAOS_BEGINS, self.chaos_ends);
            let task = Event::Task {
                number,
                node: chance.below(NODES),
                hold_ms: chance.pick(&[0, 0, 0, 300, 3_000, 15_000]),
                log_lines: chance.pick(&[0, 0, 3]),
                queue_seconds: chance.pick(&[None, None, Some(20), Some(60)]),
                timeout_seconds: chance.pick(&[None, None, Some(10)]),
            };
            self.events.push((at, task));
            if chance.percent(15) {
                let later = at + chance.between(Duration::ZERO, Duration::from_secs(10));
                self.events.push((later, Event::Cancel { number }));
            }
        }
    }

    fn add_fault(&mut self, chance: &mut Chance) {
        let at = chance.between(CHAOS_BEGINS, self.chaos_ends);
        let until = at + chance.between(Duration::from_millis(500), Duration::from_secs(45));
        let node = chance.below(NODES);
        let who = if chance.percent(40) { Who::Server } else { Who::Node(node) };
        match chance.below(14) {
            0 | 1 => {
                let cut = chance.pick(&[Cut::Both, Cut::ToServer, Cut::FromServer]);
                self.span(at, Event::CutLink { node, cut }, until, Event::MendLink { node });
            }
            2 => self.span(at, Event::Silence { node }, until, Event::Release { node }),
            3 | 4 => {
                let up = at + chance.between(Duration::from_millis(100), Duration::from_secs(20));
                self.span(at, Event::Crash(who), up, Event::Restart(who));
            }
            5 => {
                // All nodes return at the same moment.
                for node in 0..NODES {
                    self.span(at, Event::Crash(Who::Node(node)), until, Event::Restart(Who::Node(node)));
                }
            }
            6 => {
                let slow = Duration::from_millis(chance.pick(&[20, 200, 1_500]));
                self.span(at, Event::SlowDisk(who, slow), until, Event::SlowDisk(who, Duration::ZERO));
            }
            7 => {
                let latency = Duration::from_millis(chance.pick(&[500, 2_000, 6_000]));
                self.span(at, Event::SlowLink { node, latency }, until, Event::SlowLink { node, latency: self.latency });
            }
            8 | 9 => self.events.push((at, Event::Skew(who, chance.pick(&SKEWS)))),
            10 => {
                // A certificate expires, or is due for renewal, while its node is disconnected.
                self.span(at, Event::CutLink { node, cut: Cut::Both }, until, Event::MendLink { node });
                let meanwhile = at + (until - at) / 2;
                self.events
                    .push((meanwhile, Event::TimePasses(chance.pick(&[10 * MINUTE, 13 * HOUR, 30 * HOUR, 100 * 24 * HOUR]))));
            }
            11 => self.events.push((at, Event::Duplicates(chance.pick(&[20, 60])))),
            12 => self.span(at, Event::Drain { node }, until, Event::Undrain { node }),
            _ => {
                let event = chance.pick(&[Event::RotateKey, Event::RevokeKey, Event::Retire { node }]);
                self.events.push((at, event));
            }
        }
    }

    /// Adds a thief to a quarter of the runs, except where a node is retired or certificates may be invalid: there the copy is worthless
    /// and need not be noticed.
    fn add_thief(&mut self, chance: &mut Chance) {
        let worthless =
            |event: &Event| matches!(event, Event::Retire { .. } | Event::TimePasses(_) | Event::Skew(Who::Server, _));
        if chance.percent(25) && !self.events.iter().any(|(_, event)| worthless(event)) {
            let at = chance.between(CHAOS_BEGINS, self.chaos_ends);
            self.events.push((at, Event::Theft { node: chance.below(NODES), stays: chance.percent(70) }));
        }
    }

    fn span(&mut self, from: Duration, begin: Event, until: Duration, end: Event) {
        self.events.push((from, begin));
        self.events.push((until, end));
    }
}
