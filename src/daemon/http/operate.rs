//! Paths of operators: `/v1/cache/…`, `/v1/drain`, `/v1/purge`, `/v1/reload`. They find blocks, and pass actions to the core threads.

use super::routes::Daemon;
use crate::config::most_like;
use crate::host::HostStatus;
pub use crate::orders::PurgedDisk;
use crate::orders::{Order, Purge, PurgeEvent};
use crate::space::{Operate, Operated, Operation, SpaceMessage};
use crate::status::{SessionInfo, Snapshot, SpaceStatus};
use axum::http::StatusCode;
use kvtide_http::access::Refused;
use kvtide_nvme::DiskStatus;
use kvtide_tiering::api::{Cause, Eviction};
use kvtide_tiering::{Absence, ByTier};
use kvtide_types::{hash_from_hex, hash_hex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout_at};

/// Maximum time for all spaces to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Time after which `clear` answers, and is asked again.
const CLEAR: Duration = Duration::from_secs(1);
/// Time after which a purge that is not over is answered; it is asked for again.
const PURGE: Duration = Duration::from_secs(1);
/// Maximum matches of a search.
const MATCHES_MAX: usize = 100;
/// Maximum hashes of one request. Each is a message to a core thread, which answers it between the requests of engines.
pub const HASHES_MAX: usize = 256;

/// Answer to a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Found {
    /// What matches, at most 100.
    pub matches: Vec<Match>,
    /// Matches left out.
    pub more: usize,
    /// If nothing matches: the name nearest to what was asked for.
    pub near: Option<String>,
}

/// A match of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Match {
    /// `block`, `space` or `tenant`.
    pub kind: String,
    /// Name of the space, or of the tenant.
    pub name: String,
    /// Number of the space; 0 for a tenant.
    pub space: u32,
    /// The tenant.
    pub tenant: String,
    /// Hash of the block.
    pub hash: Option<String>,
    /// Blocks before the block in its prefix.
    pub position: Option<u32>,
    /// Cached blocks; 1 for a block.
    pub blocks: u64,
    /// Bytes in each tier. A page can be in several.
    pub tiers: Vec<InTier>,
    /// Sum of the bytes.
    pub bytes: u64,
    /// Sessions that use it.
    pub users: Vec<User>,
    /// It is pinned, or part of a pinned prefix.
    pub pinned: bool,
    /// The last block of a pinned prefix: the block to unpin.
    pub ends_pinned: bool,
    /// What would evict it.
    pub evicted_next: Option<String>,
}

/// Bytes in a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InTier {
    /// `tier0`, `host` or `nvme`.
    pub tier: String,
    /// The bytes.
    pub bytes: u64,
}

/// A session that uses something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// Number of the session.
    pub session: u32,
    /// Its process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Seconds since it attached.
    pub since_s: u64,
}

/// Which blocks of a prompt are cached, and why the others are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Located {
    /// All spaces.
    pub spaces: Vec<LocatedIn>,
    /// Bytes of disk regions with blocks of spaces that do not run, because no engine is attached. They cannot be searched.
    pub unclaimed_bytes: u64,
}

/// What one space knows of the blocks of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocatedIn {
    /// Number of the space.
    pub space: u32,
    /// Its name.
    pub name: String,
    /// The tenant.
    pub tenant: String,
    /// Identity of the last engine that has one: the parts of its fingerprint, as the engine describes them.
    pub identity: Option<String>,
    /// The space has forgotten nothing that happened to blocks in this time.
    pub known_s: u64,
    /// The blocks that it has or has a record of, in the order of the prompt. No store of the others is known.
    pub blocks: Vec<LocatedBlock>,
    /// The only hash is the trace id of a request, whose last lookup this is. `blocks` has its blocks.
    pub request: Option<LookupOfRequest>,
}

/// The last lookup of a traced request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LookupOfRequest {
    /// Hash of the last block that it found.
    pub found: Option<String>,
    /// Hash of the next one that it asked for, which it did not find.
    pub missing: Option<String>,
    /// Seconds since the lookup.
    pub since_s: u64,
}

/// A block of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocatedBlock {
    /// Index of its hash among those that were asked for.
    pub index: usize,
    /// The hash.
    pub hash: String,
    /// Bytes in each tier. A page can be in several. Empty if it is not cached.
    pub tiers: Vec<InTier>,
    /// It is pinned, or part of a pinned prefix.
    pub pinned: bool,
    /// Why lookups do not find it.
    pub missing: Option<Missing>,
}

/// Why lookups do not find a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    /// The cause: `memory_full`, for example.
    pub cause: String,
    /// If it was evicted: the lowest tier that had it, `tier0`, `host` or `nvme`.
    pub tier: Option<String>,
    /// The cause applies to a block before it.
    pub with_ancestor: bool,
    /// Seconds since then.
    pub since_s: u64,
}

/// Answer to an action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// The action was carried out.
    pub done: bool,
    /// The result in words.
    pub text: String,
    /// Blocks evicted.
    pub evicted: u64,
    /// Cached blocks that are left in these spaces.
    pub left: u64,
    /// More is to be evicted: ask again.
    pub more: bool,
}

/// A block that an action is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfBlock {
    /// The space; needed only if several spaces have the block.
    #[serde(default)]
    space: Option<u32>,
    hash: String,
}

/// The hashes of a prompt's blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToLocate {
    hashes: Vec<String>,
}

/// What to clear: exactly one of these.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum ToClear {
    Space(u32),
    Tenant(String),
    All(bool),
}

/// Result of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Purged {
    /// The tenant.
    pub tenant: String,
    /// Result of each disk.
    pub disks: Vec<PurgedDisk>,
    /// It is not over: ask again.
    pub pending: bool,
}

/// The purge in progress, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Purging(Arc<Mutex<Option<Running>>>);

#[derive(Debug)]
struct Running {
    purged: Purged,
    heard: UnboundedReceiver<PurgeEvent>,
    spaces_ended: bool,
}

impl Running {
    /// Handle events. Return true when the purge is over, false at `until`.
    async fn go_on(&mut self, until: Instant) -> Result<bool, Refused> {
        loop {
            match timeout_at(until, self.heard.recv()).await {
                Ok(Some(PurgeEvent::Refused(why))) => return Err((StatusCode::CONFLICT, why)),
                Ok(Some(PurgeEvent::SpacesEnded)) => self.spaces_ended = true,
                Ok(Some(PurgeEvent::Disk(number, purged))) => {
                    if let Some(of) = self.purged.disks.get_mut(number as usize) {
                        *of = PurgedDisk { disk: std::mem::take(&mut of.disk), ..purged };
                    }
                }
                Ok(None) if self.spaces_ended => return Ok(true),
                Ok(None) => {
                    let text = "the daemon ends; purge again when it has started".to_owned();
                    return Err((StatusCode::SERVICE_UNAVAILABLE, text));
                }
                Err(_) => return Ok(false),
            }
        }
    }

    /// Return true if the purge is over.
    fn is_over(&mut self) -> bool {
        while self.heard.try_recv().is_ok() {}
        self.heard.is_closed()
    }
}

fn no_hash(text: &str) -> Refused {
    (StatusCode::BAD_REQUEST, format!("{text:?} is no hash of a block: 32 hexadecimal digits are needed"))
}

fn busy() -> Refused {
    (StatusCode::SERVICE_UNAVAILABLE, "the daemon takes no order now; try again".to_owned())
}

/// The tenant to purge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToPurge {
    tenant: String,
}

/// Whether to stop attaches.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToDrain {
    drain: bool,
}

/// What to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnBlock {
    Pin,
    Unpin,
    Evict,
}

fn in_tiers(bytes: &ByTier) -> Vec<InTier> {
    let tiers = [("tier0", bytes.tier0), ("host", bytes.host), ("nvme", bytes.nvme)];
    tiers.map(|(tier, bytes)| InTier { tier: tier.into(), bytes }).into()
}

fn users<'a>(sessions: impl Iterator<Item = &'a SessionInfo>) -> Vec<User> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let user = |info: &SessionInfo| User {
        session: info.session,
        pid: info.pid,
        program: info.program.clone(),
        since_s: now.saturating_sub(info.attached_s),
    };
    sessions.map(user).collect()
}

impl Daemon {
    /// Send an operation to a space and wait for its answer.
    async fn ask(&self, space: u32, operation: Operation, until: Instant) -> Result<Operated, Refused> {
        let failed = |what: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("space {space} {what}; try again"));
        let Some(address) = self.registry.addresses().remove(&space) else {
            return Err((
                StatusCode::NOT_FOUND,
                format!("there is no space {space}: kvtide cache list shows the spaces"),
            ));
        };
        let (answer, answered) = oneshot::channel();
        if address.offer(SpaceMessage::Operate(Box::new(Operate { operation, answer }))).is_err() {
            return Err(failed("takes no messages now"));
        }
        match timeout_at(until, answered).await {
            Ok(Ok(operated)) => Ok(operated),
            Ok(Err(_)) => Err((StatusCode::NOT_FOUND, format!("space {space} has ended"))),
            Err(_) => Err(failed("did not answer in time")),
        }
    }

    /// Return the spaces that have a block, with what they know of it.
    async fn find(&self, hash: u128, until: Instant) -> Result<Vec<(u32, Operated)>, Refused> {
        let mut found = Vec::new();
        for space in self.registry.addresses().into_keys() {
            match self.ask(space, Operation::Find(hash), until).await {
                Ok(operated) if operated.entry.is_some() => found.push((space, operated)),
                // A space that ended meanwhile has no blocks.
                Ok(_) | Err((StatusCode::NOT_FOUND, _)) => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(found)
    }

    /// Search a block by its hash, or spaces and tenants by a part of their name.
    pub(super) async fn search(&self, text: &str, snapshot: &Snapshot) -> Result<Found, Refused> {
        let mut matches = match hash_from_hex(text) {
            Some(hash) => {
                let found = self.find(hash, Instant::now() + ANSWER).await?;
                found.iter().filter_map(|(space, operated)| block(text, *space, operated, snapshot)).collect()
            }
            None => named(text, snapshot),
        };
        let more = matches.len().saturating_sub(MATCHES_MAX);
        matches.truncate(MATCHES_MAX);
        let near = if matches.is_empty() { nearest(text, snapshot) } else { None };
        Ok(Found { matches, more, near })
    }

    /// Return what each space knows of the blocks of a prompt.
    pub(super) async fn why(&self, ToLocate { hashes }: &ToLocate, snapshot: &Snapshot) -> Result<Located, Refused> {
        if hashes.is_empty() || hashes.len() > HASHES_MAX {
            let text = format!("hashes: {} were sent; a request has 1 to {HASHES_MAX}", hashes.len());
            return Err((StatusCode::BAD_REQUEST, text));
        }
        let parsed = hashes.iter().map(|text| hash_from_hex(text).ok_or_else(|| no_hash(text)));
        let parsed: Vec<u128> = parsed.collect::<Result<_, _>>()?;
        let until = Instant::now() + ANSWER;
        let bytes =
            |host: &HostStatus| host.disks.iter().map(|disk| u64::from(disk.unclaimed) * host.region_bytes).sum();
        let unclaimed_bytes = snapshot.host.as_ref().map_or(0, bytes);
        let mut located = Located { unclaimed_bytes, ..Located::default() };
        'spaces: for status in &snapshot.spaces {
            let (name, tenant) = (status.name.clone(), status.domain.clone());
            let mut space = LocatedIn { space: status.space, name, tenant, ..LocatedIn::default() };
            let mut asked: VecDeque<u128> = parsed.iter().copied().collect();
            for index in 0.. {
                let Some(hash) = asked.pop_front() else { break };
                let operated = match self.ask(status.space, Operation::Find(hash), until).await {
                    Ok(operated) => operated,
                    // It ended meanwhile, and with it its blocks in memory.
                    Err((StatusCode::NOT_FOUND, _)) => continue 'spaces,
                    Err(refused) => return Err(refused),
                };
                let is_block = operated.absence.is_none_or(|(absence, _)| absence.cause != Cause::NeverStored);
                match (operated.lookup, &space.request) {
                    _ if is_block => space.blocks.push(located_block(index, hash, &operated)),
                    // No block, but a request. Its engine chose the number, so a block with this hash goes first.
                    (Some((lookup, since)), None) if parsed.len() == 1 => {
                        let [found, missing] = [lookup.found, lookup.missing].map(|hash| hash.map(hash_hex));
                        space.request = Some(LookupOfRequest { found, missing, since_s: since.as_secs() });
                        asked.extend([lookup.found, lookup.missing].into_iter().flatten());
                    }
                    _ => {}
                }
                space.known_s = operated.known.as_secs();
                space.identity = Some(operated.identity.to_string()).filter(|identity| !identity.is_empty());
            }
            located.spaces.push(space);
        }
        Ok(located)
    }

    /// Pin, unpin or evict a block.
    pub(super) async fn on_block(&self, what: OnBlock, of: &OfBlock) -> Result<Done, Refused> {
        let hash = hash_from_hex(&of.hash).ok_or_else(|| no_hash(&of.hash))?;
        let until = Instant::now() + ANSWER;
        let found = self.find(hash, until).await?;
        let spaces: Vec<u32> = found.iter().map(|(space, _)| *space).collect();
        let space = match (of.space, &spaces[..]) {
            (_, []) => return Err((StatusCode::NOT_FOUND, format!("no space has a block with the hash {}", of.hash))),
            (Some(space), all) if all.contains(&space) => space,
            (None, [only]) => *only,
            (Some(space), all) => {
                let text =
                    format!("space {space} has no block with the hash {}; spaces that have it: {all:?}", of.hash);
                return Err((StatusCode::NOT_FOUND, text));
            }
            (None, all) => return Err((StatusCode::CONFLICT, format!("several spaces have it: {all:?}; name one"))),
        };
        match what {
            OnBlock::Pin => self.pin(space, hash, until).await,
            OnBlock::Unpin => {
                let ended = |operated: &Operated| operated.entry.as_ref().is_some_and(|entry| entry.ends_pinned);
                if !found.iter().any(|(at, operated)| *at == space && ended(operated)) {
                    let text = "it is not the last block of a pinned prefix; kvtide cache search shows the pinned ones";
                    return Err((StatusCode::CONFLICT, text.to_owned()));
                }
                let operated = self.ask(space, Operation::Unpin(hash), until).await?;
                let text = format!("block {} is unpinned: it is evicted like any other", of.hash);
                Ok(Done { done: true, text, left: operated.left.into(), ..Done::default() })
            }
            OnBlock::Evict => self.evict(space, hash, until).await,
        }
    }

    async fn pin(&self, space: u32, hash: u128, until: Instant) -> Result<Done, Refused> {
        let operated = self.ask(space, Operation::Pin(hash), until).await?;
        let Some(entry) = operated.entry else {
            return Err((StatusCode::NOT_FOUND, "the block was evicted meanwhile".to_owned()));
        };
        if !entry.ends_pinned {
            let text = format!(
                "cannot pin {} blocks: at most {} blocks of space {space} may be pinned. Unpin others, or pin a shorter prefix",
                entry.position + 1,
                operated.pinned_max
            );
            return Err((StatusCode::CONFLICT, text));
        }
        let text = format!(
            "block {} and the {} before it are pinned: they stay cached until they are unpinned or the daemon ends",
            hash_hex(hash),
            entry.position
        );
        Ok(Done { done: true, text, left: operated.left.into(), ..Done::default() })
    }

    async fn evict(&self, space: u32, hash: u128, until: Instant) -> Result<Done, Refused> {
        let mut evicted = 0;
        // Each round evicts something, or ends.
        loop {
            let operated = self.ask(space, Operation::Evict(Some(hash)), until).await?;
            evicted += operated.evicted;
            let Some(entry) = operated.entry else {
                let text = match evicted {
                    0 | 1 => format!("evicted block {}", hash_hex(hash)),
                    _ => format!("evicted block {} and {} blocks after it", hash_hex(hash), evicted - 1),
                };
                return Ok(Done { done: true, text, evicted, left: operated.left.into(), more: false });
            };
            if operated.evicted == 0 {
                let why = match (entry.pinned, entry.references) {
                    (true, _) => "it is pinned: unpin it first".to_owned(),
                    (false, 1..) => {
                        format!("{} references hold it: sequences, leases or copies of engines", entry.references)
                    }
                    _ => "an engine stores blocks after it; try again".to_owned(),
                };
                return Err((StatusCode::CONFLICT, format!("cannot evict block {}: {why}", hash_hex(hash))));
            }
        }
    }

    /// Evict all idle blocks of some spaces.
    pub(super) async fn clear(&self, what: &ToClear, snapshot: &Snapshot) -> Result<Done, Refused> {
        let spaces: Vec<u32> = match what {
            ToClear::All(true) => snapshot.spaces.iter().map(|space| space.space).collect(),
            ToClear::All(false) => return Err((StatusCode::BAD_REQUEST, "all must be true".to_owned())),
            ToClear::Space(number) => vec![*number],
            ToClear::Tenant(name) => {
                if !snapshot.tenants.iter().any(|tenant| tenant.name == *name) {
                    let names = snapshot.tenants.iter().map(|tenant| tenant.name.as_str());
                    let near = most_like(name, names).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
                    return Err((StatusCode::NOT_FOUND, format!("there is no tenant {name:?}{near}")));
                }
                snapshot.spaces.iter().filter(|space| space.domain == *name).map(|space| space.space).collect()
            }
        };
        let (mut evicted, mut left, mut more) = (0, 0, false);
        let until = Instant::now() + CLEAR;
        for space in &spaces {
            loop {
                let asked = self.ask(*space, Operation::Evict(None), Instant::now() + ANSWER).await;
                let operated = match asked {
                    Ok(operated) => operated,
                    // It ended meanwhile, and with it its blocks in memory.
                    Err((StatusCode::NOT_FOUND, _)) if spaces.len() > 1 => break,
                    Err(refused) => return Err(refused),
                };
                evicted += operated.evicted;
                if operated.evicted == 0 || operated.left == 0 {
                    left += u64::from(operated.left);
                    break;
                }
                if Instant::now() >= until {
                    more = true;
                    break;
                }
            }
        }
        let stay = if left > 0 { format!("; {left} stay: in use or pinned") } else { String::new() };
        let of = if spaces.len() == 1 { "1 space".to_owned() } else { format!("{} spaces", spaces.len()) };
        let text = format!("evicted {evicted} blocks of {of}{stay}");
        Ok(Done { done: !more, text, evicted, left, more })
    }

    /// Purge a tenant: end its spaces, and erase its keys on all disks. A purge that takes longer than this answer goes on; it is asked for
    /// again until it is over.
    pub(super) async fn purge(&self, ToPurge { tenant }: ToPurge, snapshot: &Snapshot) -> Result<Purged, Refused> {
        let mut running = self.purging.0.lock().await;
        if running.as_mut().is_some_and(|running| running.purged.tenant != tenant && running.is_over()) {
            // Its client has left.
            *running = None;
        }
        let mut now = match running.take() {
            Some(other) if other.purged.tenant != tenant => {
                let text = format!("tenant {:?} is being purged; try again", other.purged.tenant);
                *running = Some(other);
                return Err((StatusCode::CONFLICT, text));
            }
            Some(same) => same,
            None => self.begin_purge(&tenant, snapshot)?,
        };
        if !now.go_on(Instant::now() + PURGE).await? {
            let pending = Purged { pending: true, ..now.purged.clone() };
            *running = Some(now);
            return Ok(pending);
        }
        let purged = now.purged;
        let found = |disk: &PurgedDisk| disk.keys_erased + disk.encrypted_slabs + disk.plain_slabs > 0;
        let names = || snapshot.tenants.iter().map(|tenant| tenant.name.as_str());
        if !purged.disks.iter().any(found) && !names().any(|name| name == tenant) {
            let near = most_like(&tenant, names()).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            return Err((StatusCode::NOT_FOUND, format!("there is no tenant {tenant:?}{near}")));
        }
        Ok(purged)
    }

    fn begin_purge(&self, tenant: &str, snapshot: &Snapshot) -> Result<Running, Refused> {
        let (events, heard) = unbounded_channel();
        let order = Order::Purge(Purge { tenant: tenant.to_owned(), events });
        self.orders.offer(order).map_err(|_| busy())?;
        let silent = || Some("it has not answered; purge again, or when no daemon uses it".to_owned());
        let disk = |disk: &DiskStatus| PurgedDisk { disk: disk.dir.clone(), error: silent(), ..PurgedDisk::default() };
        let disks = snapshot.disks.iter().map(disk).collect();
        Ok(Running { purged: Purged { tenant: tenant.to_owned(), disks, pending: false }, heard, spaces_ended: false })
    }

    /// Have the control thread reload the configuration, and return the result. The status has it too: a reload that takes longer than
    /// this answer goes on.
    pub(super) async fn reload(&self) -> Result<Done, Refused> {
        let (reply, answer) = oneshot::channel();
        self.orders.offer(Order::Reload(reply)).map_err(|_| busy())?;
        let (done, text) = match timeout_at(Instant::now() + ANSWER, answer).await {
            Ok(Ok(Ok(changes))) => (true, format!("the configuration is reloaded: {} values changed", changes.len())),
            Ok(Ok(Err(why))) => (false, format!("reload failed, the configuration is unchanged: {why}")),
            Ok(Err(_)) => return Err(busy()),
            Err(_) => (false, "the daemon still reloads; its status counts the reload when it is over".to_owned()),
        };
        Ok(Done { done, text, ..Done::default() })
    }

    /// Stop attaches, or admit them again.
    pub(super) fn drain(&self, ToDrain { drain }: ToDrain) -> Done {
        self.registry.drain(drain);
        let text = match drain {
            true => "the daemon takes no new sessions; those that are attached go on",
            false => "the daemon takes new sessions",
        };
        tracing::info!("operator: {text}");
        Done { done: true, text: text.to_owned(), ..Done::default() }
    }
}

/// Say where a block is, or why it is not found.
fn located_block(index: usize, hash: u128, operated: &Operated) -> LocatedBlock {
    let missing = |(absence, since): (Absence, Duration)| Missing {
        cause: absence.cause.name().into(),
        tier: absence.tier.map(|tier| tier.name().into()),
        with_ancestor: absence.with_ancestor,
        since_s: since.as_secs(),
    };
    LocatedBlock {
        index,
        hash: hash_hex(hash),
        tiers: operated.entry.as_ref().map_or_else(Vec::new, |entry| in_tiers(&entry.bytes)),
        pinned: operated.entry.as_ref().is_some_and(|entry| entry.pinned),
        missing: operated.absence.map(missing),
    }
}

/// Describe a block.
fn block(hash: &str, space: u32, operated: &Operated, snapshot: &Snapshot) -> Option<Match> {
    let entry = operated.entry.as_ref()?;
    let status = snapshot.spaces.iter().find(|status| status.space == space)?;
    let evicted = match (entry.pinned, entry.references) {
        (true, _) => "nothing: it is pinned".to_owned(),
        (false, 1..) => format!("nothing now: {} references of engines hold it", entry.references),
        (false, 0) => when_evicted(status, entry.has_children),
    };
    Some(Match {
        kind: "block".into(),
        name: status.name.clone(),
        space,
        tenant: status.domain.clone(),
        hash: Some(hash.to_ascii_lowercase()),
        position: Some(entry.position),
        blocks: 1,
        tiers: in_tiers(&entry.bytes),
        bytes: entry.bytes.total(),
        users: users(snapshot.sessions.iter().filter(|info| operated.sessions.contains(&info.session))),
        pinned: entry.pinned,
        ends_pinned: entry.ends_pinned,
        evicted_next: Some(evicted),
    })
}

/// Say what evicts an idle block of a space.
fn when_evicted(space: &SpaceStatus, has_children: bool) -> String {
    let policy = match (space.eviction.configured, space.eviction.follow) {
        (Eviction::Auto, now) => format!("auto, now {now}"),
        (policy, _) => policy.to_string(),
    };
    let tier = if space.occupancy.nvme_slots > 0 { "NVMe" } else { "host memory" };
    let order = if has_children { ", after the blocks that follow it" } else { "" };
    format!("lack of room in {tier}: the policy ({policy}) chooses among idle blocks{order}")
}

/// Return the spaces and tenants whose names contain a text; all, if it is empty.
fn named(text: &str, snapshot: &Snapshot) -> Vec<Match> {
    let text = text.to_lowercase();
    let has = |name: &str| name.to_lowercase().contains(&text);
    let number: Option<u32> = text.parse().ok();
    let tenants = snapshot.tenants.iter().filter(|tenant| has(&tenant.name)).map(|tenant| Match {
        kind: "tenant".into(),
        name: tenant.name.clone(),
        tenant: tenant.name.clone(),
        blocks: tenant.blocks,
        tiers: in_tiers(&ByTier { tier0: 0, host: tenant.host_bytes, nvme: tenant.nvme_bytes }),
        bytes: tenant.host_bytes + tenant.nvme_bytes,
        ..Match::default()
    });
    let by_space: BTreeMap<u32, Vec<&SessionInfo>> = snapshot.sessions.iter().filter(|info| info.live).fold(
        BTreeMap::new(),
        |mut spaces: BTreeMap<u32, Vec<&SessionInfo>>, info| {
            spaces.entry(info.space).or_default().push(info);
            spaces
        },
    );
    let found = |space: &&SpaceStatus| has(&space.name) || has(&space.domain) || number == Some(space.space);
    let spaces = snapshot.spaces.iter().filter(found).map(|space| {
        let full = &space.occupancy;
        let bytes = ByTier {
            tier0: full.tier0.used_of_all().0,
            host: full.host.used_of_all().0,
            nvme: full.nvme_used_of_all().0,
        };
        Match {
            kind: "space".into(),
            name: space.name.clone(),
            space: space.space,
            tenant: space.domain.clone(),
            blocks: full.published.into(),
            tiers: in_tiers(&bytes),
            bytes: bytes.total(),
            users: users(by_space.get(&space.space).into_iter().flatten().copied()),
            pinned: full.pinned > 0,
            evicted_next: Some(when_evicted(space, false)),
            ..Match::default()
        }
    });
    tenants.chain(spaces).collect()
}

fn nearest(text: &str, snapshot: &Snapshot) -> Option<String> {
    let spaces = snapshot.spaces.iter().map(|space| space.name.as_str());
    let names = spaces.chain(snapshot.tenants.iter().map(|tenant| tenant.name.as_str()));
    most_like(text, names).map(str::to_owned)
}
