//! TLS to both kinds of store. Certificates come from the system, which a process can only change before it starts: the test runs itself again in
//! a process whose `SSL_CERT_FILE` names the test's authority.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use common::Server;
use kvtide_relay::store::{ErrorKind, ObjectStore, Put, Store, StoreError, ValkeyConfig, ValkeyStore};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const FOLDER: &str = "KVTIDE_TLS_TEST_FOLDER";
const TIMEOUT: Duration = Duration::from_secs(10);

fn write_certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("certificate.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}

fn acceptor(folder: &Path) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(folder.join("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()))
}

/// Accept TLS, and forward to a server of Valkey, or answer each HTTP request with 404.
async fn terminate(acceptor: TlsAcceptor, valkey: Option<SocketAddr>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(mut client) = acceptor.accept(client).await else { continue };
            tokio::spawn(async move {
                if let Some(valkey) = valkey {
                    let mut server = TcpStream::connect(valkey).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                } else {
                    let _ = client.read(&mut [0; 4096]).await;
                    let _ = client
                        .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        .await;
                    let _ = client.shutdown().await;
                }
            });
        }
    });
    port
}

/// Write to Valkey and read from S3, both over TLS.
async fn use_stores(folder: &Path) -> (Result<Put, StoreError>, Result<Option<bytes::Bytes>, StoreError>) {
    let server = Server::start(&[]);
    let acceptor = acceptor(folder);
    let url = format!("rediss://localhost:{}/", terminate(acceptor.clone(), Some(server.addr)).await);
    let valkey = ValkeyStore::open(&ValkeyConfig { url, cluster: false, ttl: TIMEOUT, timeout: TIMEOUT }).unwrap();
    let options = [
        ("aws_endpoint".to_owned(), format!("https://localhost:{}", terminate(acceptor, None).await)),
        ("aws_skip_signature".to_owned(), "true".to_owned()),
    ];
    let s3 = ObjectStore::open("s3://bucket", &options, TIMEOUT).unwrap();
    let name = &common::names(1)[0];
    (valkey.put_run(name, b"bytes"[..].into()).await, s3.get_run(name, None).await)
}

#[tokio::test]
async fn stores_over_tls() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let (valkey, s3) = use_stores(Path::new(&folder)).await;
        assert_eq!(valkey.unwrap(), Put::Stored);
        assert_eq!(s3.unwrap(), None);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let (valkey, s3) = use_stores(folder.path()).await;
    for error in [valkey.unwrap_err(), s3.unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
        assert!(error.text.contains("certificate"), "an authority that the system does not know: {error}");
    }
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["stores_over_tls", "--exact", "--nocapture"])
        .env(FOLDER, folder.path())
        .env("SSL_CERT_FILE", folder.path().join("certificate.pem"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && text.contains("1 passed"), "{text}");
}
