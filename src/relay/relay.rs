//! The relay: it watches which spaces the daemon has open and serves each of them.

use crate::adapters;
use crate::config::Config;
use crate::endpoint::{Endpoint, EndpointConfig, Usage, Use};
use crate::error::Error;
use crate::events::{Domains, Events};
use crate::http;
use crate::name::{RunName, SharedKey, SpaceKeys};
use crate::presence::{Presence, PresenceConfig};
use crate::space::{Counters, Shared};
use crate::spaces::Spaces;
use crate::spending::Spending;
use crate::store::{ObjectStore, Store, ValkeyConfig, ValkeyStore};
use crate::trace::Exporter;
use kvtide_client::{SpaceChange, Watch};
use kvtide_trace::TraceCounters;
use kvtide_wire::hello::{RelayState, SpaceOpened};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tokio::runtime::Runtime;

/// Maximum time of an answer of the daemon.
const ANSWER: Duration = Duration::from_secs(10);
/// Time between two looks whether the relay is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two attempts to reach a daemon that is not there.
const AGAIN: Duration = Duration::from_millis(500);
/// Maximum time that the end of a relay waits for tasks, which have ports and files open. A request to a directory can hang.
const END: Duration = Duration::from_secs(1);
/// Time between two attempts to serve a space that is open and not served.
const RETRY: Duration = Duration::from_secs(2);
/// Minimum time between two states that are sent to the daemon; it disconnects a relay that sends many more.
const TELL_MIN: Duration = Duration::from_secs(1);
/// Time between two questions to a store that is not used.
const PROBE: Duration = Duration::from_secs(5);
/// Time between two searches for what killed relays have left in the store.
const LEFTOVERS: Duration = Duration::from_secs(24 * 3600);
/// Threads that talk to the store.
const STORE_THREADS: usize = 2;

/// A running relay.
pub struct Relay {
    over: Arc<AtomicBool>,
    /// One thread for each domain.
    watchers: Vec<JoinHandle<()>>,
    listen: SocketAddr,
    runtime: Option<Runtime>,
    /// Sends traces to a collector, if there is one.
    exporter: Option<Exporter>,
}

impl Relay {
    /// Check the settings that a start needs, without a connection to the store. Log warnings about open sockets.
    ///
    /// # Errors
    /// A shared key or a token cannot be used, or the URL or the options of the store are wrong.
    pub fn check(config: &Config, path: &Path) -> Result<(), Error> {
        config.shared_keys(path)?;
        http::access(&config.http)?;
        config.domains.iter().filter_map(|domain| domain.events.as_ref()).try_for_each(Events::check)?;
        let failed = |source| Error::System { action: "export traces", source };
        config.tracing.endpoint().map_or(Ok(()), kvtide_trace::check).map_err(failed)?;
        config.warnings().iter().for_each(|warning| tracing::warn!("{}: {warning}", path.display()));
        open(config).map(drop)
    }

    /// Start a relay. A daemon or a store that is not there is no error: the relay goes on trying. `path` is the file of the configuration,
    /// for messages.
    ///
    /// # Errors
    /// The configuration, the shared key or the store cannot be used, or the HTTP address cannot be bound.
    pub fn start(config: Config, path: &Path) -> Result<Relay, Error> {
        let keys: Arc<[SharedKey]> = config.shared_keys(path)?.into();
        let store = open(&config)?;
        let failed = |action| move |source| Error::System { action, source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(STORE_THREADS)
            .thread_name("kvtide-store")
            .enable_all()
            .build()
            .map_err(failed("start the threads for the store"))?;
        let _entered = runtime.enter();
        let settings = EndpointConfig {
            deadline: config.store.deadline(),
            in_flight_kib_max: config.store.in_flight_mib << 10,
            ..EndpointConfig::default()
        };
        runtime.spawn(remove_leftovers(Arc::clone(&store)));
        let endpoint = Arc::new(Endpoint::new(store, settings));
        runtime.spawn(probe(Arc::clone(&endpoint), probed(&config, &keys)));
        let presence = Arc::new(Presence::new(Arc::clone(&endpoint), PresenceConfig::default()));
        let access = http::access(&config.http)?;
        let (listener, listen) = http::bind(config.http.listen)?;
        config.warnings().iter().for_each(|warning| tracing::warn!("{}: {warning}", path.display()));
        let traces = TraceCounters::default();
        let start = |endpoint: &str| Exporter::start("kvtide-relay", endpoint, traces.clone());
        let exporter = config.tracing.endpoint().map(start).transpose().map_err(failed("export traces"))?;
        let shared = Shared {
            spans: exporter.as_ref().map(Exporter::spans),
            traces,
            events: Arc::new(Domains::open(&config, runtime.handle())?),
            spending: Arc::new(Spending::new(&config.copy_out)),
            config: Arc::new(config),
            keys,
            endpoint,
            presence,
            runtime: runtime.handle().clone(),
            counters: Arc::new(Counters::default()),
        };
        let (spaces, over) = (Arc::new(Spaces::new(shared)), Arc::new(AtomicBool::new(false)));
        runtime.spawn(http::serve(listener, Arc::clone(&spaces), access));
        for (index, domain) in spaces.shared.config.domains.iter().enumerate() {
            if let Some(settings) = &domain.adapters {
                adapters::start(settings, index, &spaces)?;
            }
        }
        drop(_entered);
        let domains = spaces.shared.config.domains.len();
        let mut relay = Relay { over, watchers: Vec::new(), listen, runtime: Some(runtime), exporter };
        for domain in 0..domains {
            let watcher = Watcher { spaces: Arc::clone(&spaces), domain, over: Arc::clone(&relay.over) };
            let thread = std::thread::Builder::new().name("kvtide-watch".into()).spawn(move || watcher.run());
            relay.watchers.push(thread.map_err(failed("start the thread that watches the daemon"))?);
        }
        Ok(relay)
    }

    /// Return the address of its HTTP listener.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }
}

/// Ends the sessions with the daemon. Requests to the store that are in flight are dropped.
impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            if watcher.join().is_err() {
                tracing::error!("a thread that watched the daemon panicked");
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END);
        }
        // Questions end with the runtime, and their spans with them.
        if let Some(exporter) = self.exporter.take() {
            exporter.end();
        }
    }
}

fn open(config: &Config) -> Result<Arc<dyn Store>, Error> {
    let settings = &config.store;
    if settings.is_valkey() {
        let valkey = ValkeyConfig {
            url: settings.url.clone(),
            cluster: settings.cluster,
            ttl: Duration::from_secs(settings.ttl_s),
            timeout: settings.deadline(),
        };
        return Ok(Arc::new(ValkeyStore::open(&valkey)?));
    }
    let options: Vec<(String, String)> = settings.options.clone().into_iter().collect();
    Ok(Arc::new(ObjectStore::open(&settings.url, &options, settings.deadline())?))
}

/// Return the name of a run that no space has, to ask the store for.
fn probed(config: &Config, keys: &[SharedKey]) -> Option<RunName> {
    let (domain, key) = (config.domains.first()?, keys.first()?);
    Some(SpaceKeys::new(key, &domain.name, &[0; 32], 0, domain.encrypt).run_name((0, 0), &[1]))
}

/// Ask a store that is not used until it answers, so that its state does not wait for an engine.
async fn probe(endpoint: Arc<Endpoint>, name: Option<RunName>) {
    let Some(name) = name else { return };
    loop {
        if matches!(endpoint.usage().state, Use::Untried | Use::Failed(_)) && endpoint.wait().is_none() {
            let _ = endpoint.present(std::slice::from_ref(&name)).await; // its error is in the state and in the log
        }
        // PACE: until the store answers, and while it does.
        tokio::time::sleep(PROBE).await;
    }
}

/// Remove what killed relays have left in the store, at the start and once a day.
async fn remove_leftovers(store: Arc<dyn Store>) {
    let endpoint = store.endpoint();
    while let Some(removed) = store.remove_leftovers().await {
        match removed {
            Ok(0) => {}
            Ok(files) => tracing::info!(endpoint, files, "removed temporary files of relays that were killed"),
            Err(error) => tracing::warn!("{error}"),
        }
        // PACE: one search a day.
        tokio::time::sleep(LEFTOVERS).await;
    }
}

/// Return the state of the relay for `kvtide status`.
fn state(store: &str, usage: &Usage) -> RelayState {
    let since_s = usage.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let text = match &usage.state {
        Use::Untried => format!("store {store} has not answered yet"),
        Use::Used => format!("store {store} is in use"),
        Use::Full(error) => format!("store {store} is FULL, nothing is copied to it: {error}"),
        Use::Failed(error) => format!("store {store} is NOT USED: {error}"),
    };
    RelayState { since_s, text }
}

/// The thread that watches which spaces of a domain the daemon has open.
struct Watcher {
    spaces: Arc<Spaces>,
    /// Index of the domain.
    domain: usize,
    /// The relay is to end.
    over: Arc<AtomicBool>,
}

impl Watcher {
    fn run(&self) {
        let mut logged = String::new();
        while !self.over.load(Ordering::Relaxed) {
            let config = &self.spaces.shared.config;
            let (daemon, domain) = (&config.daemon, &config.domains[self.domain]);
            match Watch::connect(&daemon.socket, domain.token_file.as_deref(), ANSWER) {
                Ok((watch, open)) => {
                    logged.clear();
                    tracing::info!("domain {}: connected to the daemon at {}", domain.name, daemon.socket.display());
                    self.spaces.set_connected(self.domain, true);
                    self.watch(&watch, open);
                    self.spaces.set_connected(self.domain, false);
                    self.spaces.close_all(self.domain);
                }
                Err(error) => {
                    // Once for each reason: a daemon may be away for long.
                    let error = error.to_string();
                    if error != logged {
                        tracing::warn!("domain {}: {error}; the relay tries again every {AGAIN:?}", domain.name);
                        logged = error;
                    }
                    // PACE: until the daemon is there, or the relay ends.
                    std::thread::sleep(AGAIN);
                }
            }
        }
        self.spaces.close_all(self.domain);
    }

    /// Serve the spaces that open until the daemon or the relay ends.
    fn watch(&self, watch: &Watch, open: Vec<SpaceOpened>) {
        let mut open: BTreeMap<u32, SpaceOpened> = open.into_iter().map(|space| (space.space, space)).collect();
        let mut retry_at = Instant::now();
        // The state that the daemon has, and when it was sent.
        let mut sent: Option<(Usage, Instant)> = None;
        while !self.over.load(Ordering::Relaxed) {
            let usage = self.spaces.shared.endpoint.usage();
            let is_due = sent.as_ref().is_none_or(|(last, at)| *last != usage && at.elapsed() >= TELL_MIN);
            if is_due {
                // A connection that is over is noticed below.
                match watch.tell(&state(self.spaces.shared.endpoint.address(), &usage)) {
                    Ok(()) => sent = Some((usage, Instant::now())),
                    Err(error) => tracing::debug!("{error}"),
                }
            }
            // A space that the daemon did not let it attach to, or of which a session has ended, is tried again.
            if Instant::now() >= retry_at {
                open.values().for_each(|space| self.spaces.open(self.domain, space));
                retry_at = Instant::now() + RETRY;
            }
            match watch.next(LOOK) {
                Ok(Some(SpaceChange::Opened(space))) => {
                    open.insert(space.space, space);
                    retry_at = Instant::now();
                }
                Ok(Some(SpaceChange::Closed(space))) => {
                    open.remove(&space);
                    self.spaces.close(space);
                }
                Ok(None) => self.spaces.close_ended(),
                Err(error) => return tracing::warn!("{error}; the relay connects again"),
            }
        }
    }
}
