//! TLS to a server with a private authority.

use std::sync::Arc;

use gpuaas_api::client::ErrorKind;
use gpuaas_api::{Client, ClientError, ClientOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A TLS server with a self-signed certificate that answers every connection with 404. Returns its URL and certificate.
async fn serve_tls() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a configuration");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the certificate disconnects here.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 14\r\n\r\n{\"code\":\"tls\"}").await;
            let _ = stream.shutdown().await;
        }
    });
    (format!("https://localhost:{port}"), made.cert.pem())
}

fn options(url: &str, folder: &tempfile::TempDir, pem: &str) -> ClientOptions {
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, pem).expect("written");
    let mut options = ClientOptions::new(url);
    options.ca_file = Some(path);
    options
}

#[tokio::test]
async fn a_server_is_trusted_by_its_ca_file_and_not_without() {
    let (url, pem) = serve_tls().await;
    let folder = tempfile::tempdir().expect("a folder");
    let client = Client::new(options(&url, &folder, &pem)).expect("a client");
    let error = client.cluster().await.expect_err("always 404");
    assert_eq!(error.problem().map(|p| p.code.as_str()), Some("tls"));

    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let client = Client::new(options(&url, &folder, &other.cert.pem())).expect("a client");
    let error = client.cluster().await.expect_err("not trusted");
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
}

#[test]
fn a_ca_file_without_certificates_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for pem in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let error = Client::new(options("https://x", &folder, pem)).expect_err("refused");
        assert!(matches!(error, ClientError::CaFile { .. }) && error.kind() == ErrorKind::Usage, "{pem}");
    }
}
