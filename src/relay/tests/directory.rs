//! A directory as a store.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use kvtide_relay::store::{ErrorKind, ObjectStore, Put, Store};
use std::time::Duration;

fn open(folder: &std::path::Path) -> Result<ObjectStore, kvtide_relay::store::StoreError> {
    ObjectStore::open(&format!("file://{}", folder.display()), &[], Duration::from_secs(5))
}

#[tokio::test]
async fn a_directory_conforms() {
    let folder = tempfile::tempdir().unwrap();
    common::conformance(&open(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn an_empty_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(open(folder.path()).unwrap());
    common::no_runs_are_replaced(store, async |name| {
        let path = folder.path().join(name.as_str());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    })
    .await;
}

#[tokio::test]
async fn two_stores_share_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path()).unwrap(), open(folder.path()).unwrap());
    let name = &common::names(1)[0];
    assert_eq!(one.put_run(name, b"bytes"[..].into()).await.unwrap(), Put::Stored);
    assert_eq!(two.get_run(name, None).await.unwrap().unwrap(), b"bytes"[..]);
    assert!(folder.path().join(name.as_str()).is_file(), "the name is the path");
}

#[tokio::test]
async fn a_directory_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(&folder.path().join("missing")).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NoBucket);
    assert!(error.text.contains("/missing") && error.text.contains("create it"), "{error}");
}

#[test]
fn urls_that_are_no_store() {
    for url in ["ftp://host/x", "http://host/x", "no url", "s3:", "memory:///x"] {
        let error = ObjectStore::open(url, &[], Duration::from_secs(5)).err().expect(url);
        assert_eq!(error.kind, ErrorKind::Config, "{url}: {error}");
        assert!(error.text.contains("correct the configuration"), "{error}");
    }
    let error = ObjectStore::open("s3://user:hush@ho st/x", &[], Duration::from_secs(5)).err().unwrap();
    assert!(error.kind == ErrorKind::Config && !error.text.contains("hush"), "{error}");
    let options = [("aws_regoin".to_owned(), "x".to_owned())];
    let error = ObjectStore::open("s3://bucket", &options, Duration::from_secs(5)).err().unwrap();
    assert!(error.kind == ErrorKind::Config && error.text.contains("aws_regoin"), "{error}");
}
