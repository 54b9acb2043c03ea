//! Who may attach, and whether what they ask for fits the limits.

use super::tokens::Tokens;
use crate::config::{Admission, Config, Domain, Limits, NvmeTier, defaults};
use crate::translate;
use kvtide_tiering::api::{self, Plane, SpaceConfig};
use kvtide_tiering::format::SlotLayout;
use kvtide_wire::geometry::stride;
use kvtide_wire::hello::{Hello, Token};
use kvtide_wire::status::Status;

/// Why a peer may not attach: a code for its program, a text for its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Code.
    pub status: Status,
    /// What was asked, what is allowed.
    pub text: String,
}

/// The index of the domain that a peer belongs to: by the token that it shows, else by its user. Who shows a wrong token is
/// refused, whatever its user may do.
pub(crate) fn domain_of(
    domains: &[Domain],
    tokens: &Tokens,
    uid: u32,
    token: Option<&Token>,
) -> Result<usize, Refusal> {
    let refusal = |text| Refusal { status: Status::Permission, text };
    if let Some(token) = token {
        return tokens.domain_of(token).ok_or_else(|| refusal("this daemon does not know the token".into()));
    }
    domains.iter().position(|domain| domain.uids.contains(&uid)).ok_or_else(|| {
        refusal(format!(
            "uid {uid} belongs to no domain of this daemon: add it to the uids of one of its [[domains]], or show a token"
        ))
    })
}

/// Places for connections without a hello that a user's may take, of `all`: a quarter if a domain names it, and an eighth if its
/// processes may attach by token alone. Where no token is accepted, a user without a domain is refused before its hello.
pub(crate) fn places(domains: &[Domain], tokens: &Tokens, uid: u32, all: usize) -> Result<usize, Refusal> {
    match domain_of(domains, tokens, uid, None) {
        Ok(_) => Ok((all / 4).max(1)),
        Err(_) if !tokens.is_empty() => Ok((all / 8).max(1)),
        Err(refusal) => Err(refusal),
    }
}

/// The space that a hello describes, checked against the limits.
pub(crate) fn admit(config: &Config, limits: &Limits, domain: &Domain, hello: &Hello) -> Result<SpaceConfig, Refusal> {
    let planes = translate::planes(&hello.planes)
        .map_err(|error| Refusal { status: Status::Invalid, text: format!("geometry: {error}") })?;
    at_most("lanes", hello.lanes.into(), limits.lanes_max.into(), "limits.lanes_max")?;
    at_most("channels", hello.channels.into(), limits.channels_max.into(), "limits.channels_max")?;
    at_most("depth of a channel", hello.depth.into(), limits.depth_max.into(), "limits.depth_max")?;
    at_most("sequences", hello.seqs_max.into(), limits.seqs_max.into(), "limits.seqs_max")?;
    let frames: u64 = hello.tier0_frames.iter().map(|frames| u64::from(*frames)).sum();
    let frames = frames + u64::from(hello.host_windows) * hello.tier0_frames.len() as u64;
    at_most("tier-0 and window frames", frames, limits.tier0_frames_max.into(), "limits.tier0_frames_max")?;
    for class in translate::classes(&planes) {
        at_most("bytes of a page's frame", stride(class).into(), config.host.slab_bytes, "tiers.host.slab")?;
    }
    if let Some(nvme) = &config.nvme {
        let slot = SlotLayout::new(&planes).bytes();
        at_most("bytes of a block's slot", slot, nvme.slab_bytes, "tiers.nvme.slab")?;
    }
    Ok(space_config(config, limits, domain, hello, planes))
}

fn at_most(what: &str, asked: u64, max: u64, key: &str) -> Result<(), Refusal> {
    if asked <= max {
        return Ok(());
    }
    Err(Refusal { status: Status::Limit, text: format!("{what}: {asked} asked for, at most {max} allowed ({key})") })
}

/// Number of block ids of a space: the blocks that host memory can hold, plus the tier 0 of `space_sessions_max` sessions like this one, plus
/// blocks in transit; limited by the width of page ids, by `limits.blocks_max`, and by what their tables may take of the machine's memory: an
/// engine may claim any tier 0, and address space is reserved for all ids. Unused ids take no memory.
fn blocks_max(limits: &Limits, host_bytes: u64, hello: &Hello, planes: &[Plane]) -> u32 {
    let block_bytes: u64 = planes.iter().map(|plane| u64::from(stride(plane.page_bytes))).sum();
    let planes = planes.len().max(1) as u64;
    let frames: u64 = hello.tier0_frames.iter().map(|frames| u64::from(*frames)).sum();
    let in_tier0 = (frames / planes).saturating_mul(limits.space_sessions_max.into());
    let held = (host_bytes / block_bytes.max(1)).saturating_add(in_tier0).saturating_add(defaults::SPARE_BLOCKS);
    let (a_block, a_page) = defaults::TABLE_BYTES;
    let fits = limits.tables_bytes_max / (a_block + a_page * planes);
    let counted =
        ((u64::from(u32::MAX) - 1) / planes).min(defaults::CONTENTS_MAX.into()).min(fits.max(defaults::SPARE_BLOCKS));
    let most = limits.blocks_max.map_or(counted, |most| counted.min(most.into()));
    held.min(most) as u32
}

/// Number of blocks in the index of a space: those in memory and one for each slot on NVMe; limited by the memory that an index may take.
fn contents_max(limits: &Limits, blocks_max: u32, nvme_bytes: u64, slot_bytes: u64) -> u32 {
    let contents = (nvme_bytes / slot_bytes.max(1)).saturating_add(blocks_max.into());
    u32::try_from(contents).unwrap_or(u32::MAX).min(limits.contents_max.max(blocks_max)).min(defaults::CONTENTS_MAX)
}

/// Notes to index logs in flight: what is written in the time for which a log holds notes back, that many go together.
fn notes_max(nvme: &NvmeTier, slot_bytes: u64) -> u32 {
    let disks = nvme.disks.len() as u64;
    let held = disks * defaults::NOTES_BYTES / slot_bytes.max(1);
    let least = u64::from(nvme.ios_max(slot_bytes));
    u32::try_from(held.max(least)).unwrap_or(u32::MAX).min(defaults::SPACE_NOTES_MAX)
}

fn space_config(config: &Config, limits: &Limits, domain: &Domain, hello: &Hello, planes: Vec<Plane>) -> SpaceConfig {
    let (host_bytes_max, nvme_bytes_max) = bounds(config, domain);
    let slot_bytes = SlotLayout::new(&planes).bytes();
    let blocks_max = blocks_max(limits, host_bytes_max, hello, &planes);
    SpaceConfig {
        page_tokens: hello.page_tokens,
        planes,
        shards: hello.shards,
        limits: api::Limits {
            sessions_max: limits.space_sessions_max,
            blocks_max,
            seqs_max: limits.seqs_max,
            seq_blocks_max: limits.seq_blocks_max.min(blocks_max),
            lanes_max: limits.lanes_max,
            jobs_max: limits.jobs_max,
            requests_max: u32::from(limits.channels_max) * u32::from(limits.depth_max),
            host_bytes_max,
            nvme_bytes_max,
            ios_max: config.nvme.as_ref().map_or(1, |nvme| nvme.ios_max(slot_bytes)),
            contents_max: contents_max(limits, blocks_max, nvme_bytes_max, slot_bytes),
            notes_max: config.nvme.as_ref().map_or(0, |nvme| notes_max(nvme, slot_bytes)),
        },
        policy: policy(config),
    }
}

/// Bytes of host memory and of NVMe space that one space of a domain may hold: what its domain may.
pub(crate) fn bounds(config: &Config, domain: &Domain) -> (u64, u64) {
    let nvme = config.nvme.as_ref().map_or(0, |nvme| domain.nvme_bytes.min(nvme.slabs_bytes()));
    (domain.host_bytes, nvme)
}

/// The policy of every space.
pub(crate) fn policy(config: &Config) -> api::Policy {
    let nvme = |of: fn(&NvmeTier) -> u8, default| config.nvme.as_ref().map_or(default, of);
    api::Policy {
        clean_low_percent: config.edges.tier0_to_host.low_percent,
        clean_high_percent: config.edges.tier0_to_host.high_percent,
        host_high_percent: config.host.high_percent,
        host_low_percent: config.host.low_percent,
        host_clean_low_percent: config.edges.host_to_nvme.low_percent,
        host_clean_high_percent: config.edges.host_to_nvme.high_percent,
        host_scan_frames: config.edges.nvme_to_host.frames,
        nvme_high_percent: nvme(|nvme| nvme.high_percent, defaults::NVME_HIGH_PERCENT),
        nvme_low_percent: nvme(|nvme| nvme.low_percent, defaults::NVME_LOW_PERCENT),
        nvme_admission: config.nvme.as_ref().map_or(api::Admission::All, |nvme| match nvme.admission {
            Admission::All => api::Admission::All,
            Admission::SecondTouch => api::Admission::SecondTouch,
            Admission::Budget => api::Admission::Budget,
        }),
        nvme_bytes_per_day: config.nvme.as_ref().and_then(NvmeTier::bytes_per_day).unwrap_or(0),
        attention: api::Attention {
            policy: config.attention.policy,
            drop: config.attention.drop,
            sinks: config.attention.sinks,
            recent: config.attention.recent,
            bandwidth_percent: config.attention.bandwidth_percent,
        },
        eviction: config.eviction.policy,
        retention: api::Retention {
            ttl_us: config.eviction.ttl.as_micros() as u64,
            high_share_percent: config.eviction.high_share_percent,
            recompute_tokens_per_s: config.eviction.recompute_tokens_per_s,
            attention_doubles_at: config.eviction.attention_doubles_at,
            ending_tokens: config.eviction.ending_tokens,
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
    use kvtide_wire::geometry::PlaneSpec;

    fn hello() -> Hello {
        Hello {
            features: 0,
            name: "test".into(),
            fingerprint: [0; 32],
            page_tokens: 16,
            planes: vec![PlaneSpec { page_bytes: 4096, ..PlaneSpec::default() }],
            shards: 1,
            shard: 0,
            lanes: 1,
            channels: 1,
            depth: 8,
            seqs_max: 4,
            tier0_frames: vec![16],
            host_windows: 0,
            token: None,
        }
    }

    fn machine(total_bytes: u64) -> Machine {
        Machine { total_bytes, available_bytes: total_bytes, cgroup: None }
    }

    /// What a space of blocks of these pages gets of a machine with so much host memory and NVMe.
    fn granted(total: u64, host: u64, nvme: u64, page_bytes: u32, planes: usize) -> api::Limits {
        let text = format!("[tiers.host]\ncapacity = {host}\n[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = {nvme}\n");
        let config = Config::parse("", &text, &Overrides::default(), &machine(total)).unwrap();
        let plane = PlaneSpec { page_bytes, ..PlaneSpec::default() };
        let hello = Hello { planes: vec![plane; planes], tier0_frames: vec![0], ..hello() };
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
                let index = u64::from(limits.contents_max - limits.blocks_max) * defaults::INDEX_BYTES;
                assert!(index <= total / defaults::INDEX_PART, "{block}: {limits:?}");
                let covered = u64::from(limits.contents_max - limits.blocks_max) * block;
                if block >= 65536 {
                    assert!(covered >= nvme / 4, "{block}: {covered} of {nvme}: {limits:?}");
                }
                assert!(limits.ios_max >= 64 && limits.notes_max >= limits.ios_max);
            }
        }
        let tier0 = Hello { tier0_frames: vec![1 << 20], ..hello() };
        let config = Config::parse("", "", &Overrides::default(), &machine(8 * GIB)).unwrap();
        let limits = admit(&config, &config.limits, &config.domains[0], &tier0).unwrap().limits;
        let tables = u64::from(limits.blocks_max) * (defaults::TABLE_BYTES.0 + defaults::TABLE_BYTES.1);
        assert!(limits.blocks_max >= 4 << 20 && tables <= GIB, "64 sessions that claim a large tier 0: {limits:?}");
        let ceiling =
            Config::parse("", "[limits]\nblocks_max = 20000\n", &Overrides::default(), &machine(8 * GIB)).unwrap();
        let limits = admit(&ceiling, &ceiling.limits, &ceiling.domains[0], &tier0).unwrap().limits;
        assert_eq!(limits.blocks_max, 20000);
    }

    #[test]
    fn a_stranger_is_told_whom_to_ask() {
        let (name, tokens) = ("a".into(), vec![]);
        let domains = [Domain { name, uids: vec![7], tokens, host_bytes: 1, nvme_bytes: 0, sessions_max: 1 }];
        assert_eq!(domain_of(&domains, &Tokens::default(), 7, None), Ok(0));
        let refusal = domain_of(&domains, &Tokens::default(), 8, None).unwrap_err();
        assert_eq!(refusal.status, Status::Permission);
        assert!(refusal.text.contains("uid 8") && refusal.text.contains("[[domains]]"), "{}", refusal.text);
    }

    #[test]
    fn the_index_has_room_for_what_nvme_holds_within_a_bound() {
        let config = Config::parse("", "", &Overrides::default(), &machine(8 << 30)).unwrap();
        let contents = |nvme_bytes, slot_bytes| contents_max(&config.limits, 1000, nvme_bytes, slot_bytes);
        assert_eq!(contents(0, 4096), 1000, "without a tier");
        assert_eq!(contents(1 << 30, 1 << 20), 2024);
        assert_eq!(contents(1 << 50, 4096), 4 << 20, "a thirty-second of 8 GiB");
        assert_eq!(contents(u64::MAX, 0), 4 << 20, "no division by nothing");
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_with_the_limits_key() {
        let config = Config::parse("", "", &Overrides::default(), &Machine::look().unwrap()).unwrap();
        let domain = &config.domains[0];
        assert!(admit(&config, &config.limits, domain, &hello()).is_ok());
        let text = |hello: Hello| admit(&config, &config.limits, domain, &hello).unwrap_err().text;
        assert_eq!(text(Hello { lanes: 17, ..hello() }), "lanes: 17 asked for, at most 16 allowed (limits.lanes_max)");
        assert!(text(Hello { depth: 1024, ..hello() }).contains("limits.depth_max"));
        assert!(text(Hello { seqs_max: 1 << 20, ..hello() }).contains("limits.seqs_max"));
        let large = PlaneSpec { page_bytes: (64 << 20) + 1, ..PlaneSpec::default() };
        assert!(text(Hello { planes: vec![large], ..hello() }).contains("tiers.host.slab"));
        let none = Hello { planes: vec![], ..hello() };
        assert_eq!(admit(&config, &config.limits, domain, &none).unwrap_err().status, Status::Invalid);
    }
}
