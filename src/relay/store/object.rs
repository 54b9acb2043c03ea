//! Object stores through the crate `object_store`: S3 and compatible ones, Google Cloud Storage, Azure, and a directory.

use super::bounded::BoundedConnector;
use super::{ErrorKind, OBJECT_BYTES_MAX, Put, Store, StoreError, leftovers, select_cryptography, without_credentials};
use crate::name::RunName;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore as _, ObjectStoreExt,
    ObjectStoreScheme, PutMode, RetryConfig,
};
use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests of one call of `present` at a time. S3 serves 5,500 a second and prefix (AWS, "Best practices design patterns").
const PRESENT_PARALLEL: usize = 32;

/// A bucket of an object store, or a directory.
pub struct ObjectStore {
    store: Arc<dyn object_store::ObjectStore>,
    root: Path,
    endpoint: String,
    /// The directory, if it is one.
    folder: Option<PathBuf>,
    /// Set once the store has said that it does not know conditional writes.
    unconditional: AtomicBool,
}

impl ObjectStore {
    /// Open the store at a URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///directory`.
    ///
    /// `options` are keys of the crate `object_store`, such as `aws_endpoint`, `aws_region`, `allow_http`. Keys that it does not know are
    /// an error. Credentials that `options` lack come from the environment or the machine's metadata service, as with the vendor's tools.
    /// `timeout` limits one request. Requests are not repeated here: that is left to the caller, who has a circuit breaker.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a URL or option that cannot be used, [`ErrorKind::NoBucket`] for a directory that does not exist.
    pub fn open(url: &str, options: &[(String, String)], timeout: Duration) -> Result<Self, StoreError> {
        // A URL that cannot be parsed is not shown: it can have a password.
        let parsed = url::Url::parse(url)
            .map_err(|error| StoreError::new(ErrorKind::Config, "open the store", "the configured URL", error))?;
        let endpoint = without_credentials(&parsed);
        let config =
            |reason: &dyn std::fmt::Display| StoreError::new(ErrorKind::Config, "open the store", &endpoint, reason);
        let (scheme, root) = ObjectStoreScheme::parse(&parsed).map_err(|error| config(&error))?;
        select_cryptography();
        let client = ClientOptions::new().with_timeout(timeout).with_connect_timeout(timeout);
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        // The three builders have the same methods and no common trait.
        macro_rules! build {
            ($builder:expr) => {{
                let mut builder = $builder.with_url(url).with_client_options(client).with_retry(retry);
                builder = builder.with_http_connector(BoundedConnector::default());
                for (key, value) in options {
                    let known = key.parse().map_err(|error: object_store::Error| config(&error))?;
                    builder = builder.with_config(known, value);
                }
                Arc::new(builder.build().map_err(|error| config(&error))?)
            }};
        }
        let mut folder = None;
        let (store, root): (Arc<dyn object_store::ObjectStore>, Path) = match scheme {
            ObjectStoreScheme::Local => {
                let path = parsed.to_file_path().map_err(|()| config(&"the path is not absolute"))?;
                let local = object_store::local::LocalFileSystem::new_with_prefix(&path)
                    .map_err(|error| StoreError::new(ErrorKind::NoBucket, "open the directory", &endpoint, error))?;
                folder = Some(path);
                (Arc::new(local), Path::default())
            }
            ObjectStoreScheme::AmazonS3 => (build!(AmazonS3Builder::from_env().with_disable_bulk_delete(true)), root),
            ObjectStoreScheme::GoogleCloudStorage => (build!(GoogleCloudStorageBuilder::from_env()), root),
            ObjectStoreScheme::MicrosoftAzure => (build!(MicrosoftAzureBuilder::from_env()), root),
            _ => return Err(config(&"it is none of s3://, gs://, az:// and file://")),
        };
        Ok(Self { store, root, endpoint, folder, unconditional: AtomicBool::new(false) })
    }

    fn path(&self, name: &RunName) -> Path {
        name.as_str().split('/').fold(self.root.clone(), |path, part| path.join(part))
    }

    async fn put(&self, name: &RunName, bytes: Bytes, mode: PutMode) -> Result<Put, object_store::Error> {
        match self.store.put_opts(&self.path(name), bytes.into(), mode.into()).await {
            Ok(_) => Ok(Put::Stored),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(Put::Existed)
            }
            Err(error) => Err(error),
        }
    }

    async fn has(&self, name: RunName) -> Result<bool, StoreError> {
        match self.store.head(&self.path(&name)).await {
            Ok(found) => Ok(found.size > 0),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.describe("ask for a run", &error)),
        }
    }

    async fn is_empty(&self, name: &RunName) -> bool {
        self.store.head(&self.path(name)).await.is_ok_and(|found| found.size == 0)
    }

    /// Read at most the number of bytes that were requested, regardless of the length that the store claims.
    async fn collect(&self, found: GetResult, bytes_max: u64) -> Result<Bytes, StoreError> {
        let claimed = found.range.end.saturating_sub(found.range.start);
        let too_long = |bytes: u64| {
            let reason = format!("the answer has {bytes} bytes, at most {bytes_max} were asked for");
            Err(StoreError::new(ErrorKind::Garbage, "read a run", &self.endpoint, reason))
        };
        let failed = |error| self.describe("read a run", &error);
        if claimed > bytes_max {
            return too_long(claimed);
        }
        if matches!(found.payload, GetResultPayload::File(..)) {
            return found.bytes().await.map_err(failed);
        }
        let mut parts = found.into_stream();
        let mut bytes = BytesMut::with_capacity(claimed as usize);
        while let Some(part) = parts.try_next().await.map_err(failed)? {
            if (bytes.len() + part.len()) as u64 > bytes_max {
                return too_long((bytes.len() + part.len()) as u64);
            }
            if bytes.is_empty() && part.len() as u64 == claimed {
                // One part is not copied.
                return Ok(part);
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes.freeze())
    }

    fn describe(&self, tried: &str, error: &object_store::Error) -> StoreError {
        StoreError::new(kind_of(error), tried, &self.endpoint, with_sources(error))
    }
}

#[async_trait::async_trait]
impl Store for ObjectStore {
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn asks_cheaply(&self) -> bool {
        false
    }

    async fn put_run(&self, name: &RunName, bytes: Bytes) -> Result<Put, StoreError> {
        if !self.unconditional.load(Ordering::Relaxed) {
            match self.put(name, bytes.clone(), PutMode::Create).await {
                Err(error) if not_supported(&error) => {
                    if !self.unconditional.swap(true, Ordering::Relaxed) {
                        let endpoint = &self.endpoint;
                        tracing::warn!(endpoint, "store has no conditional writes; runs that exist are written again");
                    }
                }
                Err(object_store::Error::NotFound { source, .. }) => {
                    return Err(StoreError::new(ErrorKind::NoBucket, "write a run", &self.endpoint, source));
                }
                // An empty object is no run. The question costs a request, and only where the name was thought to be free.
                Ok(Put::Existed) if !self.has(name.clone()).await? => {}
                result => return result.map_err(|error| self.describe("write a run", &error)),
            }
        }
        self.put(name, bytes, PutMode::Overwrite).await.map_err(|error| self.describe("write a run", &error))
    }

    async fn get_run(&self, name: &RunName, range: Option<Range<u64>>) -> Result<Option<Bytes>, StoreError> {
        let bytes_max = range.as_ref().map_or(OBJECT_BYTES_MAX, |range| range.end.saturating_sub(range.start));
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let failed = |error| self.describe("read a run", &error);
        match self.store.get_opts(&self.path(name), options).await {
            Ok(found) => self.collect(found, bytes_max).await.map(Some),
            Err(error @ object_store::Error::NotFound { .. }) if !names_bucket(&with_sources(&error)) => Ok(None),
            // A range of an empty object is an error that each store words in its own way.
            Err(error) if kind_of(&error) == ErrorKind::Other && self.is_empty(name).await => Ok(Some(Bytes::new())),
            Err(error) => Err(failed(error)),
        }
    }

    async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        stream::iter(names.to_vec()).map(|name| self.has(name)).buffered(PRESENT_PARALLEL).try_collect().await
    }

    async fn delete(&self, name: &RunName) -> Result<(), StoreError> {
        match self.store.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.describe("delete a run", &error)),
        }
    }

    async fn remove_leftovers(&self) -> Option<Result<u64, StoreError>> {
        let removed = leftovers::remove(self.folder.as_deref()?).await;
        Some(removed.map_err(|error| {
            StoreError::new(kind_of_io(&error), "remove temporary files of ended relays", &self.endpoint, error)
        }))
    }
}

/// HTTP status of an error. The crate keeps its type private, so that only its text has it.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

fn not_supported(error: &object_store::Error) -> bool {
    use object_store::Error::{NotImplemented, NotSupported};
    matches!(error, NotImplemented { .. } | NotSupported { .. }) || status(&with_sources(error)) == Some(501)
}

/// Return whether an answer "not found" is about the bucket, not the object: the codes of S3 and GCS, and of Azure.
fn names_bucket(text: &str) -> bool {
    text.contains("NoSuchBucket") || text.contains("ContainerNotFound")
}

fn kind_of(error: &object_store::Error) -> ErrorKind {
    let text = with_sources(error);
    if names_bucket(&text) {
        return ErrorKind::NoBucket;
    }
    match status(&text) {
        Some(403) if text.contains("RequestTimeTooSkewed") => return ErrorKind::Clock,
        Some(401 | 403) => return ErrorKind::Refused,
        Some(429 | 503) => return ErrorKind::Busy,
        Some(507) => return ErrorKind::Full,
        Some(400) if text.contains("ExpiredToken") || text.contains("InvalidAccessKeyId") => return ErrorKind::Refused,
        Some(_) => return ErrorKind::Other,
        None => (),
    }
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return match http.kind() {
                HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted => ErrorKind::Unreachable,
                HttpErrorKind::Timeout => ErrorKind::TimedOut,
                // The crate has no kind for an answer that is not HTTP: what it calls unknown.
                _ => ErrorKind::Garbage,
            };
        }
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return kind_of_io(io);
        }
        source = cause.source();
    }
    ErrorKind::Other
}

fn kind_of_io(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Refused,
        io::ErrorKind::NotFound => ErrorKind::NoBucket,
        _ => ErrorKind::Other,
    }
}

/// An error and its causes in one line, each text once.
fn with_sources(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}
