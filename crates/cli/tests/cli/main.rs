//! Runs the program as a process against a real HTTP server.

mod allocations;
mod audit;
mod destructive;
mod errors;
mod examples;
mod filters;
mod lists;
mod program;
mod raw;
mod run;
mod server;
mod sign_in;
mod slices;
mod tenants;
mod verify;
mod watching;
mod webhooks;
