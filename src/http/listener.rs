//! Listener that bounds its connections in number and in time, so silent or slow clients cannot delay a health probe.
//!
//! * Every connection is accepted. At the limit, the server closes the connection that has been idle longest, or if none is idle
//!   the one that has been reading its answer longest.
//! * Some connections are reserved for clients on this machine.
//! * Each phase of a connection has its own timeout ([`Bounds`]). Receiving or sending single bytes does not extend it.

use crate::counters::HttpCounters;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Limits on the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum connections.
    pub connections: usize,
    /// Connections reserved for clients on this machine, out of `connections`.
    pub loopback: usize,
    /// Maximum time for the header of a request: from the accept for the first request, later from its first byte.
    pub header: Duration,
    /// Maximum time from an answer to the next request.
    pub idle: Duration,
    /// Maximum time for a handler, and again for the client to read the answer.
    pub answer: Duration,
}

/// Limits of the HTTP server. Scrapers and operators need a few connections; the others absorb a burst of silent clients. The idle
/// timeout is longer than the usual 15 s between two scrapes, so a scraper keeps its connection.
pub const BOUNDS: Bounds = Bounds {
    connections: 128,
    loopback: 32,
    header: Duration::from_secs(2),
    idle: Duration::from_secs(30),
    answer: Duration::from_secs(10),
};
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Source {
    /// An address, loopback by default.
    Tcp(TcpListener),
    /// The socket of this machine's tools.
    Unix(UnixListener),
}

impl Source {
    /// Accept a connection. Return its stream and who the client is.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Client)> {
        Ok(match self {
            Source::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Box::new(stream), Client::Address { loopback: address.ip().to_canonical().is_loopback() })
            }
            Source::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let uid = stream.peer_cred()?.uid();
                (Box::new(stream), Client::User { uid })
            }
        })
    }
}

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// It came over the socket of this machine's tools.
    User {
        /// Its user.
        uid: u32,
    },
    /// It came over an address.
    Address {
        /// From this machine.
        loopback: bool,
    },
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::User { uid } => write!(f, "uid {uid}"),
            Client::Address { loopback: true } => f.write_str("a client at a loopback address"),
            Client::Address { loopback: false } => f.write_str("a client on another machine"),
        }
    }
}

impl Client {
    fn is_local(self) -> bool {
        self != Client::Address { loopback: false }
    }
}

/// The stream of a connection.
trait Stream: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin> Stream for T {}

/// A listener that bounds its connections.
#[derive(Debug)]
pub struct Bounded {
    source: Source,
    places: Places,
    /// Consecutive failed accepts.
    failures: u64,
}

impl Bounded {
    /// Wrap a listener, whose connections take `places`.
    pub fn new(source: Source, places: &Places) -> Bounded {
        Bounded { source, places: places.clone(), failures: 0 }
    }

    /// Accept the next connection; retry after errors.
    async fn next(&mut self) -> (Box<dyn Stream>, Client) {
        loop {
            match self.source.accept().await {
                Ok(accepted) => {
                    self.failures = 0;
                    return accepted;
                }
                // The client disconnected before the accept.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.failures += 1;
                    // Log the 1st, 2nd, 4th, 8th, ... failure only: a lasting failure must not fill the log.
                    if self.failures.is_power_of_two() {
                        tracing::warn!(
                            "cannot accept an HTTP connection: {error} ({} failures in a row); next attempt in {PAUSE:?}",
                            self.failures
                        );
                    }
                    // If descriptors ran out, closing one connection frees one for the next accept.
                    if [libc::EMFILE, libc::ENFILE].contains(&error.raw_os_error().unwrap_or(0)) {
                        self.places.drop_one(|_| true);
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    /// Nothing needs the addresses.
    type Addr = ();

    async fn accept(&mut self) -> (Connection, ()) {
        // Let the tasks of earlier connections run first: they read requests that have arrived, and closed ones free descriptors.
        tokio::task::yield_now().await;
        loop {
            let (stream, client) = self.next().await;
            if let Some(place) = self.places.take(client).await {
                return (Connection::new(stream, place), ());
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of a request has arrived.
    Idle,
    /// The header is arriving.
    Header,
    /// A handler is running.
    Handler,
    /// The client is reading the answer.
    Answer,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Time when the connection became idle or its answer began. The oldest connection is closed first.
    since: Instant,
    /// Time when the connection is closed.
    deadline: Instant,
}

/// A connection in the table.
#[derive(Debug)]
struct Entry {
    local: bool,
    state: Arc<Mutex<State>>,
    /// Dropping the sender with the entry closes the connection.
    _open: oneshot::Sender<Infallible>,
}

/// Table of the connections of all listeners, with its limits.
#[derive(Clone, Debug)]
pub struct Places {
    bounds: Bounds,
    counters: HttpCounters,
    table: Arc<Mutex<Table>>,
    /// Signals that a connection ended or can now be closed for another one.
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Places {
    /// Create an empty table. `counters` counts the connections closed to make room for others.
    pub fn new(bounds: Bounds, counters: HttpCounters) -> Places {
        Places { bounds, counters, table: Arc::default(), freed: Arc::default() }
    }

    /// Take a place for a connection.
    ///
    /// Return `None` if running handlers occupy all places for clients on other machines. A client on this machine waits instead;
    /// the wait is bounded because handlers have a timeout.
    async fn take(&self, client: Client) -> Option<Place> {
        loop {
            match self.try_take(client) {
                Some(place) => return Some(place),
                None if client.is_local() => self.freed.notified().await,
                None => {
                    self.counters.dropped();
                    return None;
                }
            }
        }
    }

    fn try_take(&self, client: Client) -> Option<Place> {
        let local = client.is_local();
        let Bounds { connections, loopback, header, .. } = self.bounds;
        let (total, remote) = {
            let entries = &lock(&self.table).entries;
            (entries.len(), entries.values().filter(|entry| !entry.local).count())
        };
        let remote_full = !local && remote >= connections - loopback;
        if (remote_full || total >= connections) && !self.drop_one(|entry| !(remote_full && entry.local)) {
            return None;
        }
        let now = Instant::now();
        let state = Arc::new(Mutex::new(State { phase: Phase::Idle, since: now, deadline: now + header }));
        let (open, closed) = oneshot::channel();
        let mut table = lock(&self.table);
        let number = table.next;
        table.next += 1;
        table.entries.insert(number, Entry { local, state: Arc::clone(&state), _open: open });
        Some(Place { number, client, state, closed, places: self.clone() })
    }

    /// Close one of the connections that `may` admits: the one idle longest, or if none is idle the one reading its answer longest.
    ///
    /// Return false if there is none; a connection is never closed while its handler is running.
    fn drop_one(&self, may: impl Fn(&Entry) -> bool) -> bool {
        let mut table = lock(&self.table);
        let candidates = table.entries.iter().filter(|(_, entry)| may(entry)).filter_map(|(number, entry)| {
            let State { phase, since, .. } = *lock(&entry.state);
            (phase != Phase::Handler).then_some((phase == Phase::Answer, since, *number))
        });
        let Some((.., number)) = candidates.min() else { return false };
        table.entries.remove(&number);
        self.counters.dropped();
        true
    }
}

/// Place of a connection in the table. Dropping it frees the place.
#[derive(Debug)]
struct Place {
    number: u64,
    client: Client,
    state: Arc<Mutex<State>>,
    closed: oneshot::Receiver<Infallible>,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.table).entries.remove(&self.number);
        self.places.freed.notify_one();
    }
}

/// Lock, also after a panic in another thread: each change under these locks is complete, so the data stays valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connection as seen by the handlers of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    client: Client,
    state: Arc<Mutex<State>>,
    answer: Duration,
}

impl Peer {
    /// Return who the client is.
    pub fn client(&self) -> Client {
        self.client
    }

    /// Record that a handler has received a request.
    pub fn requested(&self) {
        let mut state = lock(&self.state);
        // With pipelined requests the previous answer may still be in transfer: its timeout applies.
        if state.phase != Phase::Answer {
            state.phase = Phase::Handler;
            state.deadline = Instant::now() + self.answer;
        }
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Peer {
        let Place { client, state, places, .. } = &stream.io().place;
        Peer { client: *client, state: Arc::clone(state), answer: places.bounds.answer }
    }
}

/// Connection. I/O fails, and the server then closes it, when a phase exceeds its timeout or another connection needs the place.
#[derive(Debug)]
pub struct Connection {
    stream: Box<dyn Stream>,
    place: Place,
    due: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(stream: Box<dyn Stream>, place: Place) -> Connection {
        let deadline = lock(&place.state).deadline;
        Connection { stream, place, due: Box::pin(sleep_until(deadline)) }
    }

    /// Return an error if the connection must be closed; otherwise register the task to be woken when it must.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if Pin::new(&mut self.place.closed).poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let deadline = lock(&self.place.state).deadline;
        if deadline != self.due.deadline() {
            self.due.as_mut().reset(deadline);
        }
        match self.due.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Enter a phase if `from` accepts the present one.
    fn enter(&mut self, phase: Phase, from: impl Fn(Phase) -> bool) {
        let now = Instant::now();
        let Bounds { header, idle, answer, .. } = self.place.places.bounds;
        let mut state = lock(&self.place.state);
        if !from(state.phase) {
            return;
        }
        state.phase = phase;
        match phase {
            // `since` stays: until the request is complete, the connection counts as idle.
            Phase::Header => state.deadline = state.deadline.min(now + header),
            Phase::Idle => (state.since, state.deadline) = (now, now + idle),
            Phase::Handler | Phase::Answer => (state.since, state.deadline) = (now, now + answer),
        }
        self.due.as_mut().reset(state.deadline);
    }

    /// Return the result of a write. A blocked connection can be closed for another one, so wake a waiting accept.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.place.places.freed.notify_one();
        }
        written
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.enter(Phase::Header, |phase| phase == Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.enter(Phase::Answer, |phase| phase != Phase::Answer);
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    /// The server flushes after it has written a whole answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.enter(Phase::Idle, |phase| phase == Phase::Answer);
        // An idle connection can be closed for another one: wake a waiting accept.
        self.place.places.freed.notify_one();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.enter(Phase::Answer, |phase| phase != Phase::Answer);
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::{Bodies, BodyBounds};
    use crate::guard::{guarded, refuse};
    use axum::Router;
    use axum::extract::Request;
    use axum::response::IntoResponse;
    use axum::routing::{get, post};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream as Peer};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Maximum time of each wait of a client.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// Size of the large answer: more than the kernel buffers, so a client that does not read blocks it.
    const ANSWER_BYTES: usize = 64 << 20;
    /// Timeout that no test reaches.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(300);

    const LAX: Bounds = Bounds { connections: 2, loopback: 1, header: LONG, idle: LONG, answer: LONG };

    /// Requests of `/never` in their handlers; one test makes them.
    static NEVER_BEGUN: AtomicUsize = AtomicUsize::new(0);

    /// Start a server with these bounds; it serves until the process ends. Return its address and its places.
    fn serve(bounds: Bounds) -> (SocketAddr, Places) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let large = || async { vec![b'x'; ANSWER_BYTES] };
        let broken = || async {
            assert!(std::env::args().count() == 0, "deliberate bug of a handler");
        };
        let router = Router::new().route("/", get(|| async { "hello" })).route("/large", get(large));
        let never = || async {
            NEVER_BEGUN.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await
        };
        let router = router.route("/never", get(never)).route("/broken", get(broken));
        let soon = || async {
            sleep(SHORT).await;
            "hello"
        };
        let router = router.route("/soon", get(soon));
        let bodies = Bodies::new(BodyBounds { each: 64, total: 64, time: SHORT });
        let body = async move |request: Request| match bodies.receive(request.into_body()).await {
            Ok(received) => received.bytes.into_response(),
            Err(refused) => refuse(refused),
        };
        let router = router.route("/body", post(body));
        let counters = HttpCounters::default();
        let router = guarded(router, counters.clone());
        let (told, places) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let places = Places::new(bounds, counters);
                told.send(places.clone()).unwrap();
                let listener = Bounded::new(Source::Tcp(TcpListener::from_std(listener).unwrap()), &places);
                axum::serve(listener, router.into_make_service_with_connect_info::<super::Peer>()).await
            })
        });
        (address, places.recv().unwrap())
    }

    fn connect(address: SocketAddr) -> Peer {
        let peer = Peer::connect(address).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer
    }

    fn ask(peer: &mut Peer, path: &str) {
        peer.write_all(format!("GET {path} HTTP/1.1\r\nHost: k\r\n\r\n").as_bytes()).unwrap();
    }

    /// Read an answer up to `end`.
    fn hear(peer: &mut Peer, end: &str) -> String {
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let mut chunk = [0; 512];
            let count = peer.read(&mut chunk).unwrap();
            assert_ne!(count, 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8(answer).unwrap()
    }

    /// Return a connection that has received an answer and is idle.
    fn served(address: SocketAddr) -> Peer {
        let mut peer = connect(address);
        ask(&mut peer, "/");
        hear(&mut peer, "hello");
        peer
    }

    /// Return true if the server closes the connection before it sends anything.
    fn is_closed(peer: &mut Peer) -> bool {
        match peer.read(&mut [0; 512]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn the_connection_that_has_been_idle_longest_gives_way() {
        let (address, places) = serve(LAX);
        let mut first = served(address);
        let mut second = served(address);
        // After another request the first connection has been idle for a shorter time than the second.
        ask(&mut first, "/");
        hear(&mut first, "hello");
        let mut third = served(address);
        assert!(is_closed(&mut second));
        for peer in [&mut first, &mut third] {
            ask(peer, "/");
            hear(peer, "hello");
        }
        assert_eq!(places.counters.totals().dropped_connections, 1);
    }

    #[test]
    fn many_silent_connections_keep_nobody_out() {
        let (address, places) = serve(Bounds { connections: 8, ..LAX });
        let silent: Vec<Peer> = (0..200).map(|_| connect(address)).collect();
        served(address);
        assert!(places.counters.totals().dropped_connections >= 193, "{:?}", places.counters.totals());
        drop(silent);
    }

    #[test]
    fn peers_that_do_not_read_give_way_when_nobody_is_idle() {
        let (address, _) = serve(LAX);
        let mut slow: Vec<Peer> = (0..2).map(|_| connect(address)).collect();
        for peer in &mut slow {
            ask(peer, "/large");
            // The answer has begun.
            peer.read_exact(&mut [0; 1]).unwrap();
        }
        served(address);
    }

    #[test]
    fn a_request_in_a_handler_keeps_its_place_and_a_local_peer_waits_for_one() {
        let (address, places) = serve(LAX);
        let mut busy: Vec<Peer> = (0..2).map(|_| connect(address)).collect();
        busy.iter_mut().for_each(|peer| ask(peer, "/never"));
        let asked = std::time::Instant::now();
        while NEVER_BEGUN.load(Ordering::SeqCst) < 2 {
            assert!(asked.elapsed() < PATIENCE, "the requests do not reach their handlers");
            std::thread::yield_now();
        }
        let mut third = connect(address);
        ask(&mut third, "/");
        third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let waits = third.read(&mut [0; 1]).unwrap_err().kind();
        assert!(matches!(waits, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{waits}");
        busy.pop();
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        hear(&mut third, "hello");
        assert_eq!(places.counters.totals().dropped_connections, 0);
    }

    #[test]
    fn a_local_peer_that_waits_for_handlers_is_let_in_when_one_has_answered() {
        let (address, _) = serve(LAX);
        let mut busy: Vec<Peer> = (0..2).map(|_| connect(address)).collect();
        busy.iter_mut().for_each(|peer| ask(peer, "/soon"));
        // Both clients stay connected: one becomes idle, and the server closes it.
        served(address);
    }

    #[test]
    fn a_silent_connection_and_a_header_that_drips_in_are_cut_off() {
        let (address, _) = serve(Bounds { header: SHORT, ..LAX });
        assert!(is_closed(&mut connect(address)));
        for mut peer in [connect(address), served(address)] {
            // Single bytes do not extend the timeout: it covers the whole header.
            peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let drops = b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat_n(&b'a', 1500));
            let cut = drops.into_iter().any(|byte| peer.write_all(&[*byte]).is_err() || is_closed(&mut peer));
            assert!(cut, "the connection is still open after 30 s of single bytes");
        }
    }

    #[test]
    fn a_kept_connection_may_be_idle_for_longer_than_a_header_may_take() {
        let (address, _) = serve(Bounds { header: SHORT, ..LAX });
        let mut peer = served(address);
        // This connection opens later. When it is closed, the header timeout has passed for the first one too.
        assert!(is_closed(&mut connect(address)));
        ask(&mut peer, "/");
        hear(&mut peer, "hello");
        let (address, _) = serve(Bounds { idle: SHORT, ..LAX });
        assert!(is_closed(&mut served(address)));
    }

    #[test]
    fn a_peer_that_does_not_read_is_cut_off() {
        let (address, places) = serve(Bounds { answer: SHORT, ..LAX });
        let mut peer = connect(address);
        ask(&mut peer, "/large");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Once its answer has begun, the connection is in the table.
        peer.read_exact(&mut [0; 1]).unwrap();
        let given_back = async {
            while !lock(&places.table).entries.is_empty() {
                places.freed.notified().await;
            }
        };
        let freed = runtime.block_on(async { tokio::time::timeout(PATIENCE, given_back).await });
        assert!(freed.is_ok(), "the place is not freed");
        let mut answer = Vec::new();
        let read = peer.read_to_end(&mut answer);
        assert!(read.is_err() || answer.len() < ANSWER_BYTES, "{} bytes received", answer.len());
    }

    #[test]
    fn a_body_that_does_not_arrive_is_answered_and_its_connection_closed() {
        let (address, _) = serve(LAX);
        let mut peer = connect(address);
        let mut send = |sent: &str| peer.write_all(format!("POST /body HTTP/1.1\r\nHost: k\r\n{sent}").as_bytes());
        send("Content-Length: 5\r\n\r\nwhole").unwrap();
        send("Content-Length: 64\r\n\r\npart").unwrap();
        let mut answers = String::new();
        peer.read_to_string(&mut answers).unwrap();
        assert!(answers.starts_with("HTTP/1.1 200 ") && answers.contains("wholeHTTP/1.1 408 "), "{answers}");
        assert!(answers.contains("the body did not arrive within"), "{answers}");
    }

    #[test]
    fn a_handler_that_panics_is_answered_with_500_and_counted() {
        let (address, places) = serve(LAX);
        let mut peer = connect(address);
        for count in 1..=2 {
            ask(&mut peer, "/broken");
            let answer = hear(&mut peer, "bug\n");
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert!(answer.contains("/broken: kvtide panicked"), "{answer}");
            assert_eq!(places.counters.totals().panics, count);
        }
        ask(&mut peer, "/");
        hear(&mut peer, "hello");
    }
}
