//! Allocations on both stores, driven by the server itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{TestServer, lifecycle};

macro_rules! on_both_stores {
    ($($scenario:ident),*) => {$(
        mod $scenario {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                lifecycle::$scenario(TestServer::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(server) = TestServer::postgres().await {
                    lifecycle::$scenario(server).await;
                }
            }
        }
    )*};
}

lifecycle::lifecycle!(on_both_stores);
