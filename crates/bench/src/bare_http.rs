//! The bare peer of our REST API: axum serving files from memory, without authentication and without a store.

use std::path::Path;

use axum::Router;
use axum::http::header;
use axum::routing::get;

use crate::Result;

/// Serves every file of the folder under its name on a free port until the process ends. Prints the address as its only line.
pub(crate) async fn serve(folder: &Path) -> Result<()> {
    let mut router = Router::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| "a file whose name is no text")?;
        // Leaked once, because the content lives as long as the process; a response then copies nothing.
        let body: &'static [u8] = std::fs::read(entry.path())?.leak();
        router =
            router.route(&format!("/{name}"), get(move || async move { ([(header::CONTENT_TYPE, "application/json")], body) }));
    }
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", crate::child::free_port()?)).await?;
    println!("{}", serde_json::json!({ "address": listener.local_addr()? }));
    // With `TCP_NODELAY`, like our server.
    Ok(axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))), router).await?)
}
