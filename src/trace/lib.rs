//! Spans of the daemon and the relay: what was asked, what was found where, how long it took; sent to a collector by OTLP over HTTP.
//!
//! Who makes a span never waits: a full queue drops it and counts it. The thread `kvtide-trace` turns spans into OpenTelemetry's form
//! ([`Finished`]) and sends them. A collector that hangs, refuses or fails costs the spans of that batch, which are counted, and one
//! line in the log until it works again. Nothing else waits for this thread, except the shutdown: for the message under way, for those
//! of the next [`TIMEOUT`], and for the last of them, three times [`TIMEOUT`] in all.

mod endpoint;

pub use endpoint::check_url;

use crossbeam::channel::{Receiver, Sender, TryRecvError, at, bounded, never};
use crossbeam::select;
use endpoint::PATH;
use http::header::{CONNECTION, HeaderValue};
use kvtide_wire::trace::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;

/// Spans that wait for the thread, about 200 bytes each. A busy engine traces some hundred requests a second.
const QUEUE: usize = 4096;
/// Spans of one message to the collector, as the OpenTelemetry SDK sends.
const BATCH: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Time limit of one message. Half of OTLP's default: a shutdown waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Counters of spans since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceTotals {
    /// Spans that the collector took.
    pub exported: u64,
    /// Spans lost because the collector could not be reached, was late, or refused them.
    pub failed: u64,
    /// Spans lost because the queue was full: they came faster than the collector took them.
    pub dropped: u64,
}

/// The counters, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct TraceCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl TraceCounters {
    /// Return the current values.
    #[must_use]
    pub fn totals(&self) -> TraceTotals {
        TraceTotals {
            exported: self.0.exported.load(Ordering::Relaxed),
            failed: self.0.failed.load(Ordering::Relaxed),
            dropped: self.0.dropped.load(Ordering::Relaxed),
        }
    }

    fn exported(&self, spans: usize) {
        self.0.exported.fetch_add(spans as u64, Ordering::Relaxed);
    }

    fn failed(&self, spans: usize) {
        self.0.failed.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// A span that has ended.
#[derive(Debug)]
pub struct Span {
    /// The engine's span, which it continues.
    pub context: TraceContext,
    /// Its name.
    pub name: &'static str,
    /// When it began.
    pub began: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// What failed; a miss is no error.
    pub error: Option<String>,
    /// What was asked and found.
    pub attributes: Vec<(&'static str, Value)>,
}

/// What becomes a span, on the thread that sends it.
pub trait Finished: Send + 'static {
    /// Return the span.
    fn span(self) -> Span;
}

/// The way to the thread.
#[derive(Debug)]
pub struct Spans<S> {
    queue: Sender<S>,
    counters: TraceCounters,
}

impl<S> Clone for Spans<S> {
    fn clone(&self) -> Spans<S> {
        Spans { queue: self.queue.clone(), counters: self.counters.clone() }
    }
}

impl<S> Spans<S> {
    /// Hand over a span; without room it is lost and counted.
    pub fn send(&self, span: S) {
        if self.queue.try_send(span).is_err() {
            self.counters.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The running thread.
#[derive(Debug)]
pub struct Exporter<S> {
    spans: Spans<S>,
    /// Dropping it stops the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl<S: Finished> Exporter<S> {
    /// Start the thread of a service. `endpoint` is the base URL of the collector.
    ///
    /// # Errors
    /// The exporter refuses the endpoint or a variable `OTEL_*` of the environment, or a thread cannot be started.
    pub fn start(service: &'static str, endpoint: &str, counters: TraceCounters) -> io::Result<Exporter<S>> {
        let sender = Sending {
            collector: build(service, endpoint)?,
            endpoint: endpoint.to_owned(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            ids: RandomIdGenerator::default(),
            counters: counters.clone(),
            fails: false,
        };
        let (queue, finished) = bounded(QUEUE);
        let (stop, stopped) = bounded(0);
        let builder = std::thread::Builder::new().name("kvtide-trace".into());
        let thread = builder.spawn(move || sender.run(&finished, &stopped))?;
        tracing::info!("exporting traces to {endpoint}{PATH}");
        Ok(Exporter { spans: Spans { queue, counters }, stop, thread })
    }

    /// Return the way to the thread.
    #[must_use]
    pub fn spans(&self) -> Spans<S> {
        self.spans.clone()
    }

    /// Send the spans that wait, and stop the thread.
    pub fn end(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that exports traces panicked");
        }
    }
}

/// Check that spans could be exported with this endpoint and the environment of this process. Nothing is sent.
///
/// # Errors
/// As [`Exporter::start`].
pub fn check(endpoint: &str) -> io::Result<()> {
    build("kvtide", endpoint).map(drop)
}

/// The way to the collector.
struct Collector {
    exporter: SpanExporter,
    /// Why the last request got no answer.
    why: Arc<Mutex<String>>,
}

fn build(service: &'static str, endpoint: &str) -> io::Result<Collector> {
    let why = Arc::<Mutex<String>>::default();
    let http = Http { inner: HyperClient::with_default_connector(TIMEOUT, None), why: Arc::clone(&why) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(http)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')))
        .with_timeout(TIMEOUT)
        .with_retry_policy(RetryPolicy::disabled())
        .build();
    let mut exporter = exporter.map_err(io::Error::other)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", host.trim_end().to_owned()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    exporter.set_resource(&Resource::builder().with_service_name(service).with_attributes(attributes).build());
    Ok(Collector { exporter, why })
}

/// HTTP that keeps the cause of a failure: the exporter reports "network error" for all of them.
#[derive(Debug)]
struct Http {
    inner: HyperClient,
    why: Arc<Mutex<String>>,
}

#[async_trait::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // A kept connection would end unseen between two messages: nothing runs on this thread then.
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let answer = self.inner.send_bytes(request).await;
        let why = answer.as_ref().err().map(|error| {
            let causes = std::iter::successors(error.source(), |cause| cause.source());
            causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
        });
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why.unwrap_or_default();
        answer
    }
}

/// Return the next span. `None`: `until` has come, or no span is there at the end.
fn next<S>(spans: &Receiver<S>, stop: &Receiver<()>, until: &Receiver<Instant>) -> Option<S> {
    select! {
        recv(spans) -> span => span.ok(),
        recv(stop) -> _ => spans.try_recv().ok(),
        recv(until) -> _ => None,
    }
}

/// State of the thread.
struct Sending {
    collector: Collector,
    endpoint: String,
    runtime: Runtime,
    ids: RandomIdGenerator,
    counters: TraceCounters,
    /// The last message failed, and the log says so.
    fails: bool,
}

impl Sending {
    fn run<S: Finished>(mut self, spans: &Receiver<S>, stop: &Receiver<()>) {
        let mut ends = None;
        while let Some(first) = next(spans, stop, &never()) {
            let gathered = at(Instant::now() + GATHER);
            let mut batch = vec![self.data(first.span())];
            while batch.len() < BATCH
                && let Some(span) = next(spans, stop, &gathered)
            {
                batch.push(self.data(span.span()));
            }
            // A shutdown waits for no collector that fails, and for a slow one not long.
            let is_over = stop.try_recv() == Err(TryRecvError::Disconnected);
            let is_late = is_over && *ends.get_or_insert_with(|| Instant::now() + TIMEOUT) < Instant::now();
            if is_over && (self.fails || is_late) {
                self.counters.failed(batch.len() + spans.try_iter().count());
            } else {
                self.send(batch);
            }
        }
        // A name that is being resolved has a thread, which nothing ends.
        self.runtime.shutdown_background();
    }

    /// Send one message.
    fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        match self.runtime.block_on(self.collector.exporter.export(batch)) {
            Ok(()) => {
                self.counters.exported(count);
                if std::mem::take(&mut self.fails) {
                    tracing::info!("the collector {} takes traces again", self.endpoint);
                }
            }
            Err(error) => {
                self.counters.failed(count);
                if !std::mem::replace(&mut self.fails, true) {
                    let why = self.collector.why.lock().unwrap_or_else(PoisonError::into_inner);
                    let why = if why.is_empty() { error.to_string() } else { why.clone() };
                    tracing::warn!(
                        "cannot export {count} spans to {}: {why}. Spans are lost until it works; \
                         check [tracing] endpoint",
                        self.endpoint
                    );
                }
            }
        }
    }

    /// Return a span in the exporter's form.
    fn data(&self, span: Span) -> SpanData {
        let Span { context, name, began, ended, error, attributes } = span;
        let trace = TraceId::from_bytes(context.trace.to_be_bytes());
        let id = self.ids.new_span_id();
        SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: SpanId::from_bytes(context.parent.to_be_bytes()),
            parent_span_is_remote: true,
            span_kind: SpanKind::Server,
            name: name.into(),
            start_time: began,
            end_time: ended,
            attributes: attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: InstrumentationScope::builder("kvtide").build(),
        }
    }
}
