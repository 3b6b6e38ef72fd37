//! Allocations on both stores, driven by a real Temporal server.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../control/tests/common/mod.rs"]
mod common;
mod temporal;

use common::{TestServer, lifecycle};

macro_rules! on_temporal {
    ($($scenario:ident),*) => {$(
        mod $scenario {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                if let Some(driver) = temporal::connect().await {
                    lifecycle::$scenario(TestServer::driven_by(driver, None).await).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(driver) = temporal::connect().await else { return };
                if let Some(pg) = tokio::task::spawn_blocking(gpuaas_testkit::pg_database).await.unwrap() {
                    lifecycle::$scenario(TestServer::driven_by(driver, Some(pg)).await).await;
                }
            }
        }
    )*};
}

lifecycle::lifecycle!(on_temporal);
