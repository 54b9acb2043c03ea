//! A TCP proxy that makes one fault at a time: it hangs, cuts, delays, or changes a byte, in one direction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Request,
    Answer,
}

/// A fault. Positions count from the moment when it was set. All but `Hang` and `Vanish` happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Hold all bytes until another fault is set.
    Hang,
    /// Forward this number of bytes, then close the connection.
    Cut { after: u64 },
    /// Change bits of one byte.
    Corrupt { at: u64, mask: u8 },
    /// Lose all bytes of the connections on which bytes come until another fault is set, for ever: a machine that vanished.
    Vanish,
    /// Hold the next bytes for a while.
    Delay(Duration),
}

#[derive(Clone, Copy, Default)]
struct State {
    fault: Option<(Way, Fault)>,
    /// Bytes read since the fault was set, of requests and of answers.
    seen: [u64; 2],
    /// Faults that happened.
    happened: u64,
}

/// A proxy in front of one server. It ends with the value.
pub struct Proxy {
    /// Where it listens.
    pub addr: SocketAddr,
    state: Arc<watch::Sender<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Start a proxy without faults.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let state = Arc::new(watch::Sender::new(State::default()));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, server, shared.clone()));
            }
        });
        Self { addr, state, task }
    }

    /// Set the fault to make from now on, or none.
    pub fn set(&self, fault: Option<(Way, Fault)>) {
        self.state.send_modify(|state| *state = State { fault, seen: [0; 2], happened: state.happened });
    }

    /// Return how many faults happened.
    pub fn happened(&self) -> u64 {
        self.state.borrow().happened
    }

    /// Wait until this number of bytes came that way since the fault was set.
    pub async fn seen(&self, way: Way, bytes: u64) {
        self.state.subscribe().wait_for(|state| state.seen[way as usize] >= bytes).await.expect("the proxy runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: SocketAddr, state: Arc<watch::Sender<State>>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Either direction's end closes both.
    tokio::select! {
        () = copy(Way::Request, from_client, to_server, &state) => (),
        () = copy(Way::Answer, from_server, to_client, &state) => (),
    }
}

/// Decision about bytes that were read.
enum Verdict {
    Forward,
    ForwardAndClose(usize),
    Hold,
    Lose,
    Wait(Duration),
}

async fn copy(way: Way, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &watch::Sender<State>) {
    let mut buffer = vec![0; 64 << 10];
    let mut changes = state.subscribe();
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..len];
        let mut verdict = Verdict::Forward;
        state.send_modify(|state| verdict = apply(state, way, bytes));
        let mut len = len;
        let mut closes = false;
        match verdict {
            Verdict::Forward => (),
            Verdict::ForwardAndClose(first) => (len, closes) = (first, true),
            Verdict::Hold => {
                let over = changes.wait_for(|state| state.fault != Some((way, Fault::Hang))).await;
                over.expect("the proxy runs");
            }
            Verdict::Lose => std::future::pending().await,
            Verdict::Wait(delay) => tokio::time::sleep(delay).await,
        }
        if to.write_all(&buffer[..len]).await.is_err() || closes {
            return;
        }
    }
}

fn apply(state: &mut State, way: Way, bytes: &mut [u8]) -> Verdict {
    let len = bytes.len() as u64;
    let from = state.seen[way as usize];
    state.seen[way as usize] += len;
    let Some((fault_way, fault)) = state.fault else { return Verdict::Forward };
    if fault_way != way {
        return Verdict::Forward;
    }
    let verdict = match fault {
        Fault::Hang => return Verdict::Hold,
        Fault::Vanish => return Verdict::Lose,
        Fault::Cut { after } if after < from + len => Verdict::ForwardAndClose((after - from) as usize),
        Fault::Corrupt { at, mask } if at < from + len => {
            bytes[(at - from) as usize] ^= mask;
            Verdict::Forward
        }
        Fault::Delay(delay) => Verdict::Wait(delay),
        Fault::Cut { .. } | Fault::Corrupt { .. } => return Verdict::Forward,
    };
    state.fault = None;
    state.happened += 1;
    verdict
}
