//! Guests and tenants on the simulated host, through the real pipeline: signed tasks in, receipts out, a journal in between.

mod crash_matrix;
mod hostile;
mod life;
mod random;
mod rig;
mod tenants;
mod tenants_crash_matrix;
mod tenants_real;
