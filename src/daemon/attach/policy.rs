//! Attach policy: the peer's domain, and the limits that its request must fit.

use super::tokens::Tokens;
use crate::config::{Admission, Config, Domain, Human, Limits, NvmeTier, constants};
use kvtide_format::SlotLayout;
use kvtide_tiering::api::{self, SpaceConfig};
use kvtide_wire::geometry::{self, classes, stride};
use kvtide_wire::hello::{Hello, Token};
use kvtide_wire::layout::CHANNELS_MAX;
use kvtide_wire::status::Status;

/// A refusal to attach: a status for the program, a text for its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Status code.
    pub status: Status,
    /// The requested and the allowed values.
    pub text: String,
}

/// Requests in flight of a channel, a power of two.
const DEPTH_MAX: u16 = 256;
/// Jobs in flight of a session, a power of two.
const JOBS_MAX: u32 = 1024;
/// Percent of the frames of a page size that are free or clean, in tier 0 or in host memory, below which write-back starts.
const CLEAN_LOW_PERCENT: u8 = 10;
/// Percent at which it stops.
const CLEAN_HIGH_PERCENT: u8 = 20;

const UNKNOWN: &str = "unknown token: add its file to the tokens of one of the daemon's [[domains]], or attach without a token (unset \
                       KVTIDE_TOKEN_FILE), by uid";

/// Return the index of the domain of an engine or a `relay`: by its token if it sent one, else by its uid. An unknown token is
/// refused even if the uid belongs to a domain.
pub(crate) fn domain_of(
    domains: &[Domain],
    tokens: &Tokens,
    uid: u32,
    token: Option<&Token>,
    relay: bool,
) -> Result<usize, Refusal> {
    let refusal = |text| Refusal { status: Status::Permission, text };
    if let Some(token) = token {
        let text = if relay { "not the token of a relay (relay_tokens of a domain)" } else { UNKNOWN };
        return tokens.domain_of(token, relay).ok_or_else(|| refusal(text.into()));
    }
    let belongs = |domain: &Domain| if relay { &domain.relay_uids } else { &domain.uids }.contains(&uid);
    domains.iter().position(belongs).ok_or_else(|| {
        let what = if relay {
            "the relay of any domain: add it to the relay_uids"
        } else {
            "in any domain: add it to the uids"
        };
        refusal(format!("uid {uid} is not {what} of one of the daemon's [[domains]], or attach with a token"))
    })
}

/// Return how many of `all` handshake places one user may take: a quarter if its uid belongs to a domain, an eighth if its
/// processes can attach only by token. If no tokens are configured, a user without a domain is refused before its Hello.
pub(crate) fn places(domains: &[Domain], tokens: &Tokens, uid: u32, all: usize) -> Result<usize, Refusal> {
    let engine = domain_of(domains, tokens, uid, None, false);
    match engine.or_else(|refusal| domain_of(domains, tokens, uid, None, true).map_err(|_| refusal)) {
        Ok(_) => Ok((all / 4).max(1)),
        Err(_) if !tokens.is_empty() => Ok((all / 8).max(1)),
        Err(refusal) => Err(refusal),
    }
}

/// Check a Hello against the limits and return the configuration of its space.
pub(crate) fn admit(config: &Config, limits: &Limits, domain: &Domain, hello: &Hello) -> Result<SpaceConfig, Refusal> {
    geometry::check(&hello.planes)
        .map_err(|error| Refusal { status: Status::Invalid, text: format!("geometry: {error}") })?;
    at_most("lanes", hello.lanes.into(), limits.lanes_max.into(), "limits.lanes_max")?;
    at_most("channel depth", hello.depth.into(), DEPTH_MAX.into(), "fixed")?;
    at_most("sequences", hello.seqs_max.into(), limits.seqs_max.into(), "limits.seqs_max")?;
    let frames: u64 = hello.tier0_frames.iter().map(|frames| u64::from(*frames)).sum();
    let frames = frames + u64::from(hello.mapped_frames) * hello.tier0_frames.len() as u64;
    at_most("tier-0 and mapped frames", frames, limits.tier0_frames_max.into(), "limits.tier0_frames_max")?;
    for class in classes(&hello.planes) {
        at_most("bytes per page frame", stride(class).into(), config.tiers.host.slab_bytes, "tiers.host.slab")?;
    }
    if let Some(nvme) = config.nvme() {
        let slot = SlotLayout::new(&hello.planes).bytes();
        at_most("bytes per block slot", slot, nvme.slab_bytes, "tiers.nvme.slab")?;
    }
    if !hello.relay {
        block_fits(config, domain, hello)?;
    }
    Ok(space_config(config, limits, domain, hello))
}

fn at_most(what: &str, asked: u64, max: u64, key: &str) -> Result<(), Refusal> {
    if asked <= max {
        return Ok(());
    }
    Err(Refusal { status: Status::Limit, text: format!("{what}: {asked} requested, at most {max} allowed ({key})") })
}

/// Return the host memory of one block.
fn block_bytes(hello: &Hello) -> u64 {
    hello.planes.iter().map(|plane| u64::from(stride(plane.page_bytes))).sum()
}

/// Refuse blocks larger than the host memory of their domain: no store of one could ever succeed.
fn block_fits(config: &Config, domain: &Domain, hello: &Hello) -> Result<(), Refusal> {
    let (block, tier) = (block_bytes(hello), config.tiers.host.capacity_bytes);
    let shown = |bytes| format!("{} ({bytes} bytes)", Human(bytes));
    let (most, of, key) = match domain.host_bytes < tier {
        true => (domain.host_bytes, "of its domain", format!("host of domain {:?}", domain.name)),
        false => (tier, "of the daemon", "tiers.host.capacity".to_owned()),
    };
    if block <= most {
        return Ok(());
    }
    let text = format!(
        "a block of {} pages takes {} of host memory, more than all {of}, {}; raise {key}, or store fewer tokens a block",
        hello.planes.len(),
        shown(block),
        shown(most)
    );
    Err(Refusal { status: Status::Limit, text })
}

/// Return the number of block ids of a space: the blocks that fit into host memory, plus the tier 0 of `space_sessions_max`
/// sessions like this one, plus blocks in transit. It is limited by the width of page ids, by `limits.blocks_max`, and by the part
/// of the machine's memory that tables may use: an engine can claim a tier 0 of any size, and address space is reserved for all
/// ids. Unused ids take no memory.
fn blocks_max(limits: &Limits, host_bytes: u64, hello: &Hello) -> u32 {
    let block_bytes = block_bytes(hello);
    let planes = hello.planes.len().max(1) as u64;
    let frames: u64 = hello.tier0_frames.iter().map(|frames| u64::from(*frames)).sum();
    let in_tier0 = (frames / planes).saturating_mul(limits.space_sessions_max.into());
    let held = (host_bytes / block_bytes.max(1)).saturating_add(in_tier0).saturating_add(constants::SPARE_BLOCKS);
    let (a_block, a_page) = constants::TABLE_BYTES;
    let fits = limits.tables_bytes_max / (a_block + a_page * planes);
    let counted =
        ((u64::from(u32::MAX) - 1) / planes).min(constants::ENTRIES_MAX.into()).min(fits.max(constants::SPARE_BLOCKS));
    let most = limits.blocks_max.map_or(counted, |most| counted.min(most.into()));
    held.min(most) as u32
}

/// Return the number of blocks in the index of a space: those in memory plus one per NVMe slot, limited by the memory that an index
/// may use.
fn entries_max(limits: &Limits, blocks_max: u32, nvme_bytes: u64, slot_bytes: u64) -> u32 {
    let entries = (nvme_bytes / slot_bytes.max(1)).saturating_add(blocks_max.into());
    u32::try_from(entries).unwrap_or(u32::MAX).min(limits.entries_max.max(blocks_max)).min(constants::ENTRIES_MAX)
}

/// Return the maximum number of log requests in flight. A log delays requests to write them together; this covers the requests
/// of that delay.
fn log_requests_max(nvme: &NvmeTier, slot_bytes: u64) -> u32 {
    let disks = nvme.disks.len() as u64;
    let held = disks * constants::LOG_REQUESTS_BYTES / slot_bytes.max(1);
    let least = u64::from(nvme.ios_max(slot_bytes));
    u32::try_from(held.max(least)).unwrap_or(u32::MAX).min(constants::SPACE_LOG_REQUESTS_MAX)
}

fn space_config(config: &Config, limits: &Limits, domain: &Domain, hello: &Hello) -> SpaceConfig {
    let (host_bytes_max, nvme_bytes_max) = bounds(config, domain);
    let slot_bytes = SlotLayout::new(&hello.planes).bytes();
    let blocks_max = blocks_max(limits, host_bytes_max, hello);
    SpaceConfig {
        page_tokens: hello.page_tokens,
        planes: hello.planes.clone(),
        shards: hello.shards,
        limits: api::Limits {
            // Beside the engines, each shard has entries for relays.
            sessions_max: limits
                .space_sessions_max
                .saturating_add(constants::RELAYS_A_SHARD * hello.shards)
                .min(constants::SESSION_ENTRIES_MAX),
            blocks_max,
            seqs_max: limits.seqs_max,
            seq_blocks_max: limits.seq_blocks_max.min(blocks_max),
            lanes_max: limits.lanes_max,
            jobs_max: JOBS_MAX,
            requests_max: u32::from(CHANNELS_MAX) * u32::from(DEPTH_MAX),
            host_bytes_max,
            nvme_bytes_max,
            ios_max: config.nvme().map_or(1, |nvme| nvme.ios_max(slot_bytes)),
            entries_max: entries_max(limits, blocks_max, nvme_bytes_max, slot_bytes),
            log_requests_max: config.nvme().map_or(0, |nvme| log_requests_max(nvme, slot_bytes)),
        },
        policy: policy(config),
    }
}

/// Return the bytes of host memory and of NVMe space that one space of a domain may use: the limits of its domain.
pub(crate) fn bounds(config: &Config, domain: &Domain) -> (u64, u64) {
    let nvme = config.nvme().map_or(0, |nvme| domain.nvme_bytes.min(nvme.slabs_bytes()));
    (domain.host_bytes, nvme)
}

/// Return the policy for all spaces.
pub(crate) fn policy(config: &Config) -> api::Policy {
    api::Policy {
        clean_low_percent: CLEAN_LOW_PERCENT,
        clean_high_percent: CLEAN_HIGH_PERCENT,
        host_high_percent: config.tiers.host.high_percent,
        host_low_percent: config.tiers.host.low_percent,
        host_clean_low_percent: CLEAN_LOW_PERCENT,
        host_clean_high_percent: CLEAN_HIGH_PERCENT,
        host_scan_frames: config.edges.nvme_to_host.frames,
        nvme_high_percent: config.tiers.nvme.high_percent,
        nvme_low_percent: config.tiers.nvme.low_percent,
        nvme_admission: config.nvme().map_or(Admission::All, |nvme| nvme.admission),
        nvme_bytes_per_day: config.nvme().and_then(NvmeTier::bytes_per_day).unwrap_or(0),
        attention: api::Attention {
            sinks: config.attention.sinks,
            recent: config.attention.recent,
            bandwidth_percent: config.attention.bandwidth_percent,
        },
        eviction: config.eviction.policy,
        retention: api::Retention {
            ttl_us: config.eviction.ttl.as_micros() as u64,
            high_share_percent: config.eviction.high_share_percent,
            recompute_tokens_per_s: config.eviction.recompute_tokens_per_s,
            ..api::Retention::DEFAULT
        },
        scan_frames: config.edges.host_to_tier0.frames,
        request_timeout_us: config.limits.request_timeout.as_micros() as u64,
        lease_us_max: config.limits.lease_max.as_micros() as u64,
        lease_percent: config.limits.lease_percent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Machine, Overrides};
    use kvtide_wire::geometry::Plane;
    use kvtide_wire::hello::Protocol;

    fn hello() -> Hello {
        Hello {
            protocol: Protocol::ours(0),
            name: "test".into(),
            fingerprint: [0; 32],
            identity: String::new(),
            page_tokens: 16,
            planes: vec![Plane::full(4096)],
            shards: 1,
            shard: 0,
            lanes: 1,
            channels: 1,
            depth: 8,
            seqs_max: 4,
            tier0_frames: vec![16],
            mapped_frames: 0,
            numa_node: None,
            relay: false,
            local: false,
            token: None,
        }
    }

    fn machine(total_bytes: u64) -> Machine {
        Machine { total_bytes, available_bytes: total_bytes, cgroup: None, disk_bytes: None }
    }

    /// Return the limits of a space with these pages on a machine with this much host memory and NVMe.
    fn granted(total: u64, host: u64, nvme: u64, page_bytes: u32, planes: usize) -> api::Limits {
        let text = format!("[tiers.host]\ncapacity = {host}\n[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = {nvme}\n");
        let config = Config::parse("", &text, &Overrides::default(), &machine(total)).unwrap();
        let hello = Hello { planes: vec![Plane::full(page_bytes); planes], tier0_frames: vec![0], ..hello() };
        admit(&config, &config.limits, &config.domains[0], &hello).unwrap().limits
    }

    #[test]
    fn a_large_host_and_a_small_one_can_be_filled_by_blocks_of_any_size() {
        const GIB: u64 = 1 << 30;
        for (total, host, nvme) in [(2048 * GIB, 1024 * GIB, 32 << 40), (8 * GIB, 4 * GIB, 100 * GIB)] {
            for (page_bytes, planes) in [(65536, 32), (65536, 1), (16384, 1), (8192, 1), (4096, 1)] {
                let limits = granted(total, host, nvme, page_bytes, planes);
                let block = u64::from(page_bytes) * planes as u64;
                assert!(u64::from(limits.blocks_max) * block >= host, "{block}: {limits:?}");
                let index = u64::from(limits.entries_max - limits.blocks_max) * constants::INDEX_BYTES;
                assert!(index <= total / constants::INDEX_PART, "{block}: {limits:?}");
                let covered = u64::from(limits.entries_max - limits.blocks_max) * block;
                if block >= 65536 {
                    assert!(covered >= nvme / 4, "{block}: {covered} of {nvme}: {limits:?}");
                }
                assert!(limits.ios_max >= 64 && limits.log_requests_max >= limits.ios_max);
            }
        }
        let tier0 = Hello { tier0_frames: vec![1 << 20], ..hello() };
        let config = Config::parse("", "", &Overrides::default(), &machine(8 * GIB)).unwrap();
        let limits = admit(&config, &config.limits, &config.domains[0], &tier0).unwrap().limits;
        let tables = u64::from(limits.blocks_max) * (constants::TABLE_BYTES.0 + constants::TABLE_BYTES.1);
        assert!(limits.blocks_max >= 4 << 20 && tables <= GIB, "64 sessions that request a large tier 0: {limits:?}");
        let ceiling =
            Config::parse("", "[limits]\nblocks_max = 20000\n", &Overrides::default(), &machine(8 * GIB)).unwrap();
        let limits = admit(&ceiling, &ceiling.limits, &ceiling.domains[0], &tier0).unwrap().limits;
        assert_eq!(limits.blocks_max, 20000);
    }

    #[test]
    fn a_stranger_is_told_whom_to_ask() {
        let text = "[[domains]]\nname = \"a\"\nuids = [7]\nrelay_uids = [8]\n";
        let domains = Config::parse("", text, &Overrides::default(), &machine(8 << 30)).unwrap().domains;
        let of = |uid, relay| domain_of(&domains, &Tokens::default(), uid, None, relay);
        assert_eq!((of(7, false), of(8, true)), (Ok(0), Ok(0)));
        for (uid, relay, key) in [(8, false, "the uids"), (7, true, "the relay_uids"), (9, true, "the relay_uids")] {
            let refusal = of(uid, relay).unwrap_err();
            assert_eq!(refusal.status, Status::Permission);
            let named = [&format!("uid {uid}"), "[[domains]]", key].iter().all(|part| refusal.text.contains(part));
            assert!(named, "{}", refusal.text);
        }
        assert_eq!(places(&domains, &Tokens::default(), 8, 64), Ok(16), "a relay connects too");
    }

    #[test]
    fn the_index_has_room_for_what_nvme_holds_within_a_bound() {
        let config = Config::parse("", "", &Overrides::default(), &machine(8 << 30)).unwrap();
        let entries = |nvme_bytes, slot_bytes| entries_max(&config.limits, 1000, nvme_bytes, slot_bytes);
        assert_eq!(entries(0, 4096), 1000, "without a tier");
        assert_eq!(entries(1 << 30, 1 << 20), 2024);
        assert_eq!(entries(1 << 50, 4096), 4 << 20, "1/32 of 8 GiB");
        assert_eq!(entries(u64::MAX, 0), 4 << 20, "no division by zero");
    }

    #[test]
    fn a_block_larger_than_host_memory_is_refused_with_both_sizes() {
        let text = "[tiers.host]\ncapacity = \"64KiB\"\n[[domains]]\nname = \"a\"\nuids = [7]\n\
                    [[domains]]\nname = \"b\"\nuids = [8]\nhost = \"16KiB\"\n";
        let config = Config::parse("", text, &Overrides::default(), &machine(8 << 30)).unwrap();
        let admitted = |domain: usize, planes, relay| {
            let hello = Hello { planes: vec![Plane::full(4096); planes], tier0_frames: vec![16], relay, ..hello() };
            admit(&config, &config.limits, &config.domains[domain], &hello).map(|_| ())
        };
        assert!(admitted(0, 16, false).is_ok() && admitted(1, 4, false).is_ok(), "one block fits");
        for (domain, planes, parts) in [
            (0, 17, ["68 KiB (69632 bytes)", "64 KiB (65536 bytes)", "raise tiers.host.capacity"]),
            (1, 5, ["20 KiB (20480 bytes)", "16 KiB (16384 bytes)", "raise host of domain \"b\""]),
        ] {
            let refusal = admitted(domain, planes, false).unwrap_err();
            assert_eq!(refusal.status, Status::Limit);
            for part in parts {
                assert!(refusal.text.contains(part), "{part} is not in: {}", refusal.text);
            }
            assert!(admitted(domain, planes, true).is_ok(), "a relay stores nothing in a space that runs");
        }
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_with_the_limits_key() {
        let config = Config::parse("", "", &Overrides::default(), &Machine::look().unwrap()).unwrap();
        let domain = &config.domains[0];
        assert!(admit(&config, &config.limits, domain, &hello()).is_ok());
        let text = |hello: Hello| admit(&config, &config.limits, domain, &hello).unwrap_err().text;
        assert_eq!(text(Hello { lanes: 17, ..hello() }), "lanes: 17 requested, at most 16 allowed (limits.lanes_max)");
        assert!(text(Hello { depth: 1024, ..hello() }).contains("at most 256 allowed (fixed)"));
        assert!(text(Hello { seqs_max: 1 << 20, ..hello() }).contains("limits.seqs_max"));
        let large = Plane::full((64 << 20) + 1);
        assert!(text(Hello { planes: vec![large], ..hello() }).contains("tiers.host.slab"));
        let none = Hello { planes: vec![], ..hello() };
        assert_eq!(admit(&config, &config.limits, domain, &none).unwrap_err().status, Status::Invalid);
    }
}
