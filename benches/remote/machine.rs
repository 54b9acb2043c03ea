//! A machine: a private daemon with an engine, and a relay in this process.

use super::LONG;
use super::error::Error;
use super::store::Target;
use kvtide_bench::bench::{Stop, failed};
use kvtide_bench::bench::{TIMEOUT, trying};
use kvtide_bench::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Channel, Client, Options, SpaceSpec};
use kvtide_relay::config::{Config, When};
use kvtide_relay::name::{RunName, SharedKey, SpaceKeys};
use kvtide_relay::relay::Relay;
use kvtide_relay::run::{run_blocks, runs_of};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const DOMAIN: &str = "bench";
const FINGERPRINT: [u8; 32] = [0x5b; 32];
const KEY: [u8; 32] = [0x6b; 32];
/// Blocks of a prefix.
pub(super) const PREFIX: u32 = 64;
/// Blocks of an engine's own, and of one call.
const OWN: u32 = 16;
/// Time between two looks at a relay's metrics.
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// Size of a block: its pages of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) planes: u16,
    pub(super) page_bytes: u32,
}

impl Block {
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.planes) * u64::from(self.page_bytes)
    }

    /// Return the names of the runs of all these prefixes.
    pub(super) fn names(self, prefixes: &[u64], encrypt: bool) -> Vec<RunName> {
        let keys = SpaceKeys::new(&SharedKey::new(KEY), DOMAIN, &FINGERPRINT, 0, encrypt);
        let most = run_blocks(self.bytes(), super::store::OBJECT_BYTES as u64);
        let of = |&prefix: &u64| {
            let hashes = hashes(prefix, PREFIX);
            let run = |(first, len): (u32, u32)| {
                let parent = first.checked_sub(1).map_or(0, |last| hashes[last as usize]);
                keys.run_name((first, parent), &hashes[first as usize..(first + len) as usize])
            };
            runs_of(0, PREFIX, most).into_iter().map(run).collect::<Vec<_>>()
        };
        prefixes.iter().flat_map(of).collect()
    }
}

/// Return the hashes of the first blocks of a prefix. They differ between processes, so that a shared store has none of them.
pub(super) fn hashes(prefix: u64, blocks: u32) -> Vec<u128> {
    let seed = u128::from(prefix) << 64 | u128::from(std::process::id()) << 32;
    let spread =
        |block: u32| (seed | u128::from(block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1;
    (0..blocks).map(spread).collect()
}

/// A daemon with an attached engine that has blocks of its own.
pub(super) struct Machine {
    block: Block,
    client: Client,
    pub(super) channel: Channel,
    daemon: PrivateDaemon,
}

impl Machine {
    /// Start a daemon with room for `blocks` blocks.
    pub(super) fn start(block: Block, blocks: u32) -> Result<Machine, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let config = format!(
            "[limits]\nblocks_max = {}\n[[domains]]\nname = \"{DOMAIN}\"\nuids = [{uid}]\nrelay_uids = [{uid}]\n",
            blocks + blocks / 8 + 4096
        );
        let host_bytes = Some((block.bytes() * u64::from(blocks)).next_multiple_of(64 << 20) / 4 * 5 + (256 << 20));
        let binary = Some(super::tool()?);
        let (slab_bytes, config) = (Some(16 << 20), Some(config));
        let options = DaemonOptions { binary, host_bytes, slab_bytes, config, ..DaemonOptions::default() };
        let daemon = PrivateDaemon::start(&options)?;
        let space =
            SpaceSpec::new("bench-remote", FINGERPRINT, 16, vec![Plane::full(block.page_bytes); block.planes.into()]);
        let options = Options { timeout: TIMEOUT, ..Options::new(daemon.socket().into(), space, vec![0]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        trying("allocate blocks", client.allocate_blocks(OWN))?;
        Ok(Machine { block, client, channel, daemon })
    }

    /// Store prefixes with bytes of their own. All must become findable.
    pub(super) fn store(&mut self, prefixes: &[u64]) -> Result<(), Error> {
        for &prefix in prefixes {
            let hashes = hashes(prefix, PREFIX);
            for first in (0..PREFIX).step_by(OWN as usize) {
                let own: Vec<u32> = (0..OWN).collect();
                for &slot in &own {
                    for plane in 0..self.block.planes {
                        let seed = seed(hashes[(first + slot) as usize], plane);
                        self.client.with_block(slot, plane, |page| fill(page, seed));
                    }
                }
                let parent = first.checked_sub(1).map_or(0, |last| hashes[last as usize]);
                let part = &hashes[first as usize..(first + OWN) as usize];
                let stored = self.channel.store((first, parent), part, &own, Level::Published, TIMEOUT);
                let stored = trying("store blocks", stored)?;
                if stored.status != Status::Ok {
                    let why = format!("{} of {OWN} blocks not stored: {:?}", stored.failed.len(), stored.status);
                    return Err(Error::Odd(why));
                }
            }
        }
        Ok(())
    }

    /// Look up, load and compare prefixes. Return the blocks that were found, loaded, and had a wrong byte.
    pub(super) fn compare(&mut self, prefixes: &[u64]) -> Result<Compared, Error> {
        let mut all = Compared::default();
        for &prefix in prefixes {
            let hashes = hashes(prefix, PREFIX);
            let found = trying("look up a prefix", self.channel.lookup(&hashes, TIMEOUT))?.blocks;
            all.found += u64::from(found);
            let Some(last) = found.checked_sub(1) else { continue };
            let leased = self.channel.lease(hashes[last as usize], found, LONG, TIMEOUT);
            let lease = trying("lease a prefix", leased)?.seq;
            for first in (0..found).step_by(OWN as usize) {
                let own: Vec<u32> = (0..OWN.min(found - first)).collect();
                let copied = trying("load blocks", self.channel.load(lease, first, &own, TIMEOUT))?;
                for &slot in own.iter().filter(|slot| !copied.failed.contains(slot)) {
                    let hash = hashes[(first + slot) as usize];
                    let right = |plane| {
                        let seed = seed(hash, plane);
                        self.client.with_block(slot, plane, |page| holds(page, seed)) == Some(true)
                    };
                    all.loaded += 1;
                    all.wrong += u64::from(!(0..self.block.planes).all(right));
                }
            }
            trying("release a lease", self.channel.drop_seq(lease))?;
        }
        Ok(all)
    }

    /// Start a relay for this machine and wait until it serves the space.
    pub(super) fn relay(&self, target: &Target, (when, encrypt): (When, bool), stop: &Stop) -> Result<Sharing, Error> {
        let sharing = self.relay_at_once(target, (when, encrypt))?;
        // The first listing may begin before the space is there to be asked for.
        sharing.until("spaces", 1, stop)?;
        sharing.until("feed_gaps_total", 1, stop)?;
        Ok(sharing)
    }

    /// Start a relay without a wait.
    pub(super) fn relay_at_once(&self, target: &Target, (when, encrypt): (When, bool)) -> Result<Sharing, Error> {
        let (key, token) = (self.daemon.dir().join("relay.key"), self.daemon.dir().join("relay.token"));
        write_key(&key)?;
        // Recalls need the operator's token; the digits of the key are one as well.
        write_key(&token)?;
        let text = format!("[[domains]]\nname = \"{DOMAIN}\"\nshared_key_file = \"\"\n[store]\nurl = \"\"\n");
        let path = Path::new("the benchmark's configuration");
        let mut config = Config::parse(path, &text)?;
        config.daemon.socket = self.daemon.socket().into();
        (config.domains[0].shared_key_file, config.domains[0].encrypt) = (key, encrypt);
        config.store.url = target.url.clone();
        config.store.options = target.options.iter().cloned().collect();
        // Stores of all kinds get runs of one size.
        config.store.object_kib = Some((super::store::OBJECT_BYTES >> 10) as u32);
        config.copy_out.when = when;
        config.http.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.http.token_file = Some(token);
        Ok(Sharing { relay: Relay::start(config, path)? })
    }
}

/// Blocks of prefixes at the machine that reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compared {
    pub(super) found: u64,
    pub(super) loaded: u64,
    pub(super) wrong: u64,
}

fn key_digits() -> String {
    KEY.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_key(path: &Path) -> Result<(), Error> {
    let digits = key_digits();
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(digits.as_bytes()))
        .map_err(|e| failed(format!("write {}", path.display()), e).into())
}

fn seed(hash: u128, plane: u16) -> u64 {
    (hash as u64) ^ ((hash >> 64) as u64).rotate_left(17) ^ u64::from(plane) << 48
}

/// Word `i` of a page. Neighbours differ, and so do pages.
fn word(seed: u64, i: usize) -> [u8; 8] {
    (seed.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
}

fn fill(page: &mut [u8], seed: u64) {
    page.as_chunks_mut().0.iter_mut().enumerate().for_each(|(i, bytes)| *bytes = word(seed, i));
}

fn holds(page: &[u8], seed: u64) -> bool {
    page.as_chunks().0.iter().enumerate().all(|(i, bytes)| *bytes == word(seed, i))
}

/// A running relay.
pub(super) struct Sharing {
    relay: Relay,
}

impl Sharing {
    /// Return a metric.
    pub(super) fn metric(&self, name: &str) -> Result<u64, Error> {
        let text = self.http("GET /metrics", "", TIMEOUT)?;
        let lines = text.lines().filter_map(|line| line.strip_prefix("kvtide_relay_")?.strip_prefix(name));
        let values =
            lines.filter(|rest| rest.starts_with([' ', '{'])).filter_map(|rest| rest.rsplit(' ').next()?.parse().ok());
        // Over all labels.
        let sum = values.fold(None, |sum: Option<u64>, value: u64| Some(sum.unwrap_or(0) + value));
        sum.ok_or_else(|| Error::Odd(format!("the relay's metrics lack {name}")))
    }

    /// Wait until a metric is at least `least`.
    pub(super) fn until(&self, name: &str, least: u64, stop: &Stop) -> Result<(), Error> {
        let deadline = Instant::now() + LONG;
        loop {
            let value = self.metric(name)?;
            if value >= least {
                return Ok(());
            }
            stop.check()?;
            if Instant::now() > deadline {
                let failed = self.metric("blocks_not_out_total")?;
                return Err(Error::Odd(format!(
                    "{name} of the relay is {value} after {LONG:?}, expected {least}; {failed} blocks could not be copied; \
                     check the store's log, and that it has room"
                )));
            }
            // PACE: the deadline above ends the loop.
            std::thread::sleep(LOOK);
        }
    }

    /// Bring a prefix in. Return how many of its blocks the daemon has then.
    pub(super) fn recall(&self, prefix: u64) -> Result<u64, Error> {
        let hashes: Vec<String> =
            hashes(prefix, PREFIX).iter().map(|hash| format!("\"{}\"", kvtide_types::hash_hex(*hash))).collect();
        let fingerprint: String = FINGERPRINT.iter().map(|byte| format!("{byte:02x}")).collect();
        let (hashes, wait) = (hashes.join(","), LONG.as_millis());
        let ask = format!("{{\"fingerprint\":\"{fingerprint}\",\"hashes\":[{hashes}],\"wait_ms\":{wait}}}");
        let answer = self.http("POST /v1/recall", &ask, LONG)?;
        let answer: Option<serde_json::Value> = serde_json::from_str(&answer).ok();
        let blocks = answer.as_ref().and_then(|answer| answer["blocks"].as_u64());
        blocks.ok_or_else(|| Error::Odd(format!("a recall did not end within {LONG:?}: {answer:?}")))
    }

    /// Bring prefixes in, all at the same time. All blocks must come.
    pub(super) fn recall_all(&self, prefixes: &[u64]) -> Result<(), Error> {
        let brought: Result<u64, Error> = std::thread::scope(|scope| {
            let asked: Vec<_> = prefixes.iter().map(|&prefix| scope.spawn(move || self.recall(prefix))).collect();
            let joined = asked.into_iter().map(|thread| thread.join());
            joined.map(|brought| brought.unwrap_or_else(|_| Err(Error::Odd("a thread panicked".into())))).sum()
        });
        let (brought, expected): (u64, u64) = (brought?, prefixes.len() as u64 * u64::from(PREFIX));
        if brought == expected {
            return Ok(());
        }
        Err(Error::Odd(format!("{brought} of {expected} blocks came from the store; check that it has room")))
    }

    fn http(&self, request: &str, body: &str, timeout: Duration) -> Result<String, Error> {
        let address = self.relay.listen();
        let exchange = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_read_timeout(Some(timeout + TIMEOUT))?;
            let length = body.len();
            let token = key_digits();
            let head =
                format!("{request} HTTP/1.0\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|e| failed(format!("send {request} to the relay at {address}"), e))?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.into()),
            _ => Err(Error::Odd(format!("the relay answered {request} with: {answer}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_changed_byte_is_seen_and_pages_differ() {
        let mut page = [0; 64];
        super::fill(&mut page, 5);
        assert!(super::holds(&page, 5) && !super::holds(&page, 6));
        page[63] ^= 1;
        assert!(!super::holds(&page, 5));
        assert_ne!(super::hashes(1, 2)[0], super::hashes(2, 2)[0]);
    }
}
