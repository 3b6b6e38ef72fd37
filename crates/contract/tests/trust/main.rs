//! What the contract guarantees about signed documents, tested from the outside and against the files in `testdata/`.
//!
//! The cases are built once, in `envelope_cases`, `receipt_cases` and `verifier_set_cases`. The forgery tests verify them in memory and the
//! vector tests verify what was written to the files, so the two cannot drift apart.

mod envelope_cases;
mod envelope_forgery;
mod fixture;
mod generated_code;
mod link_messages;
mod random_bytes;
mod receipt_cases;
mod receipt_forgery;
mod schema_files;
mod vector_files;
mod verifier_set_cases;
mod verifier_set_forgery;
