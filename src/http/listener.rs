//! Accepted connections, bounded: so many at once, and so long for a request to arrive and for its answer to be taken.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// What a listener's peers may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at once. More wait in the kernel's queue.
    pub connections: usize,
    /// How long a request may take to arrive whole, idle time before it included.
    pub request: Duration,
    /// How long a peer may take to read an answer.
    pub answer: Duration,
}

/// The server's: room for a few scrapers, a few people and their retries; idle for longer than the usual 15 s between two
/// scrapes, so that a scraper keeps its connection.
pub(super) const BOUNDS: Bounds =
    Bounds { connections: 32, request: Duration::from_secs(30), answer: Duration::from_secs(10) };
/// How long nothing is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener that counts its connections.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    bounds: Bounds,
}

impl Bounded {
    /// Bounds a listener's connections.
    pub fn new(listener: TcpListener, bounds: Bounds) -> Bounded {
        Bounded { listener, places: Arc::new(Semaphore::new(bounds.connections)), bounds }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => return (Connection::new(stream, self.bounds, place), address),
                // The peer is gone again.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("cannot accept an HTTP connection: {error}; accepting again in {PAUSE:?}");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A request from its peer.
    Request,
    /// That its peer takes the answer.
    Answer,
}

/// One connection. A phase that takes too long is an error, however busily bytes drip in; the server closes it then.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    phase: Phase,
    bounds: Bounds,
    due: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, bounds: Bounds, place: OwnedSemaphorePermit) -> Connection {
        Connection { stream, phase: Phase::Request, bounds, due: Box::pin(sleep(bounds.request)), _place: place }
    }

    fn enter(&mut self, phase: Phase) {
        if self.phase != phase {
            self.phase = phase;
            let bound = if phase == Phase::Request { self.bounds.request } else { self.bounds.answer };
            self.due.as_mut().reset(Instant::now() + bound);
        }
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        self.due.as_mut().poll(cx).is_ready()
    }
}

fn late<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_late(cx) {
            return late();
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.enter(Phase::Answer);
        if self.is_late(cx) {
            return late();
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    /// The server flushes once it has written all of an answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.enter(Phase::Request);
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
        self.enter(Phase::Answer);
        if self.is_late(cx) {
            return late();
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::TcpStream as Peer;

    /// Bound of every wait of a peer.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// What the server answers: more than the kernel buffers, so that a peer that does not read holds it up.
    const ANSWER_BYTES: usize = 64 << 20;

    fn bounds(request_ms: u64, answer_ms: u64) -> Bounds {
        let ms = Duration::from_millis;
        Bounds { connections: 2, request: ms(request_ms), answer: ms(answer_ms) }
    }

    /// Where a server with these bounds is; it serves until the process ends.
    fn serve(bounds: Bounds) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let large = || async { vec![b'x'; ANSWER_BYTES] };
        let router = Router::new().route("/", get(|| async { "hello" })).route("/large", get(large));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                axum::serve(Bounded::new(listener, bounds), router).await
            })
        });
        address
    }

    fn connect(address: SocketAddr) -> Peer {
        let peer = Peer::connect(address).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer
    }

    fn ask(peer: &mut Peer, path: &str) {
        peer.write_all(format!("GET {path} HTTP/1.1\r\nHost: k\r\n\r\n").as_bytes()).unwrap();
    }

    /// Reads one answer to `/`.
    fn hear(peer: &mut Peer) {
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut chunk = [0; 512];
            let count = peer.read(&mut chunk).unwrap();
            assert_ne!(count, 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..count]);
        }
    }

    /// Whether the server has closed the connection.
    fn is_closed(peer: &mut Peer) -> bool {
        match peer.read(&mut [0; 512]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn more_peers_than_places_wait_for_one() {
        let address = serve(bounds(60_000, 60_000));
        let mut served: Vec<Peer> = (0..2).map(|_| connect(address)).collect();
        for peer in &mut served {
            ask(peer, "/");
            hear(peer);
        }
        let mut third = connect(address);
        ask(&mut third, "/");
        third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let waits = third.read(&mut [0; 1]).unwrap_err().kind();
        assert!(matches!(waits, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{waits}");
        served.pop();
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        hear(&mut third);
    }

    #[test]
    fn a_request_that_drips_in_is_cut_off() {
        let address = serve(bounds(300, 60_000));
        let mut peer = connect(address);
        ask(&mut peer, "/");
        hear(&mut peer);
        // A byte now and then keeps no connection: the whole request has its time.
        peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        for byte in b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat_n(&b'a', 1500)) {
            if peer.write_all(&[*byte]).is_err() || is_closed(&mut peer) {
                return;
            }
        }
        panic!("after 30 s of dripping the connection is still there");
    }

    #[test]
    fn a_peer_that_does_not_read_is_cut_off_and_gives_its_place_back() {
        let address = serve(bounds(60_000, 300));
        let mut idle: Vec<Peer> = (0..2).map(|_| connect(address)).collect();
        idle.iter_mut().for_each(|peer| ask(peer, "/large"));
        // Both places are taken by peers that do not read; one must come free.
        let mut third = connect(address);
        ask(&mut third, "/");
        hear(&mut third);
    }
}
