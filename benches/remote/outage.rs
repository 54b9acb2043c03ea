//! An outage of the store: a proxy in front of it stops, and starts again at the same address.

use super::Bench;
use super::copies::{BLOCK, forget, until_there};
use super::error::Error;
use super::machine::{Machine, PREFIX};
use kvtide_bench::bench::TIMEOUT;
use kvtide_bench::bench::failed;
use kvtide_relay::config::When;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time until the first hit.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Time between two recalls.
const PAUSE: Duration = Duration::from_millis(50);

/// Return the seconds from the end of an outage to the first recall that brings blocks in.
pub(super) fn measure(bench: &Bench<'_>, server: &str) -> Result<f64, Error> {
    let (before, after) = (bench.fresh(1 << 24), bench.fresh(1 << 24 | 1));
    let mut first = Machine::start(BLOCK, 2 * PREFIX)?;
    let relay = first.relay(&bench.target, (When::Stored, false), &bench.stop)?;
    first.store(&[before, after])?;
    until_there(bench, BLOCK, &[before, after], false)?;
    drop((relay, first));
    let mut proxy = Proxy::start(server, None)?;
    let (port, target) = (proxy.address.port(), bench.target.through(proxy.address.port()));
    let second = Machine::start(BLOCK, 2 * PREFIX)?;
    let relay = second.relay(&target, (When::Never, false), &bench.stop)?;
    relay.recall_all(&[before])?;
    drop(proxy);
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs_f64(bench.args.outage_s) {
        bench.stop.check()?;
        if relay.recall(after)? != 0 {
            return Err(Error::Odd("blocks came from a store that was away".into()));
        }
        // PACE: the time of the outage ends the loop.
        std::thread::sleep(PAUSE);
    }
    proxy = Proxy::start(server, Some(port))?;
    let back = Instant::now();
    while relay.recall(after)? == 0 {
        bench.stop.check()?;
        if back.elapsed() > RECOVERY_MAX {
            return Err(Error::Odd(format!("no block came within {RECOVERY_MAX:?} after the store was back")));
        }
        // PACE: the time limit above ends the loop.
        std::thread::sleep(PAUSE);
    }
    let recovered = back.elapsed().as_secs_f64();
    drop((relay, second, proxy));
    forget(bench, BLOCK, &[before, after], false)?;
    Ok(recovered)
}

/// A TCP proxy. Dropping it cuts all connections and stops to listen.
struct Proxy {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    listens: Option<JoinHandle<()>>,
}

impl Proxy {
    fn start(server: &str, port: Option<u16>) -> Result<Proxy, Error> {
        let listen = |e| failed("start a proxy in front of the store", e);
        let listener = TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (over, open) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (ends, server, connections) = (Arc::clone(&over), server.to_owned(), Arc::clone(&open));
        let listens = std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                // A connection that cannot be forwarded is closed.
                let _ = forward(client, &server, &connections);
            }
        });
        Ok(Proxy { address, over, open, listens: Some(listens) })
    }
}

/// Copy both ways until one side ends.
fn forward(client: TcpStream, server: &str, open: &Mutex<Vec<TcpStream>>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        open.push(from.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread that listens; then the port is free.
        let _ = TcpStream::connect_timeout(&self.address, TIMEOUT);
        let _ = self.listens.take().map(JoinHandle::join);
        for connection in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
