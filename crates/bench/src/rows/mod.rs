//! The measurements, one file per path.

pub(crate) mod allocations;
pub(crate) mod durable;
pub(crate) mod footprint;
pub(crate) mod growth;
pub(crate) mod latency;
pub(crate) mod link;
pub(crate) mod placement;
pub(crate) mod reads;
pub(crate) mod relay;
pub(crate) mod scale;
pub(crate) mod signing;
pub(crate) mod slice;
