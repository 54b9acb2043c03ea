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

/// Connections at once: a few scrapers, a few people, and room for their retries. More wait in the kernel's queue.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// How long a request may take to arrive whole, idle time before it included: above the usual 15 s between two scrapes, so
/// that a scraper keeps its connection.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// How long a peer may take to read an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long nothing is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener that counts its connections.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    /// Bounds a listener's connections.
    pub fn new(listener: TcpListener) -> Bounded {
        Bounded { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => return (Connection::new(stream, place), address),
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
    due: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Connection {
        Connection { stream, phase: Phase::Request, due: Box::pin(sleep(REQUEST_MAX)), _place: place }
    }

    fn enter(&mut self, phase: Phase) {
        if self.phase != phase {
            self.phase = phase;
            let bound = if phase == Phase::Request { REQUEST_MAX } else { ANSWER_MAX };
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
