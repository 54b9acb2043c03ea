//! A directory as a store.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use kvtide_relay::store::{ErrorKind, ObjectStore, Put, Store};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn open(folder: &Path) -> Result<ObjectStore, kvtide_relay::store::StoreError> {
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

#[tokio::test]
async fn temporary_files_of_killed_relays_are_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    assert_eq!(store.remove_leftovers().await.unwrap().unwrap(), 0, "an empty directory");
    let name = &common::names(1)[0];
    store.put_run(name, b"bytes"[..].into()).await.unwrap();
    let run = folder.path().join(name.as_str());
    let (shard, tag) = (run.parent().unwrap(), run.file_name().unwrap().to_str().unwrap());
    let other = shard.join("..").join("other");
    std::fs::create_dir(&other).unwrap();
    let age = |path: &Path, age: Duration| {
        let file = std::fs::File::options().append(true).create(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    };
    let (old, young) = (Duration::from_secs(7200), Duration::from_secs(60));
    // More files than are looked at without a pause.
    let leftovers: Vec<PathBuf> = (1..=1_100).map(|number| shard.join(format!("{tag}#{number}"))).collect();
    leftovers.iter().for_each(|path| age(path, old));
    // A relay may be writing it now.
    let written = shard.join(format!("{tag}#1101"));
    age(&written, young);
    // No write of a relay has these names.
    let similar = [
        run.clone(),
        shard.join(format!("{tag}#")),
        shard.join(format!("{tag}#1a")),
        shard.join(format!("{tag}#1#1")),
        shard.join(format!("{}#1", &tag[1..])),
        shard.join("notes#1"),
        other.join(format!("{tag}#1")),
        folder.path().join(format!("{tag}#1")),
    ];
    similar.iter().for_each(|path| age(path, old));
    let linked = shard.join(format!("{tag}#1102"));
    std::os::unix::fs::symlink(&run, &linked).unwrap();
    assert_eq!(store.remove_leftovers().await.unwrap().unwrap(), 1_100);
    assert!(leftovers.iter().all(|path| !path.exists()));
    for path in similar.iter().chain([&written, &linked]) {
        assert!(path.exists(), "{}", path.display());
    }
    assert_eq!(store.get_run(name, None).await.unwrap().unwrap(), b"bytes"[..]);
    assert_eq!(store.remove_leftovers().await.unwrap().unwrap(), 0);
    drop(folder);
    let error = store.remove_leftovers().await.unwrap().unwrap_err();
    assert!(error.text.contains("remove temporary files") && error.text.contains("No such file"), "{error}");
}
