//! The program itself, as a process, against a real HTTP server.

mod audit;
mod errors;
mod lists;
mod program;
mod run;
mod server;
mod slices;
mod verify;
