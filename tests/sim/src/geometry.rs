//! Random spaces: every shape in the design, small enough that a thousand operations reach every corner case.

use crate::base::Rng;
use crate::own::Own;
use kvtide_format::SlotLayout;
use kvtide_tiering::api::{Admission, Attention, Eviction, Limits, Plane, PlaneKind, Policy, Retention, SpaceConfig};
use kvtide_wire::geometry::stride;

/// Host frames of one slab in a simulation: few, so that slabs are often granted and returned.
pub const SLAB_FRAMES: u32 = 8;

/// A space and the resources of its engines.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The configuration of the core.
    pub config: SpaceConfig,
    /// Size class of each plane.
    pub class_of: Vec<u8>,
    /// Page bytes of each class.
    pub class_bytes: Vec<u32>,
    /// Planes of each class.
    pub class_planes: Vec<u32>,
    /// Tier-0 frames of a session, by class.
    pub tier0: Vec<u32>,
    /// Mapped frames of a session in each class.
    pub mapped_frames: u32,
    /// Lanes of a session.
    pub lanes: u16,
    /// Channels of a session.
    pub channels: u16,
    /// Maximum requests in flight of a channel.
    pub depth: u16,
    /// Replicas: sessions of each shard.
    pub replicas: usize,
    /// Longest sequence that an engine builds, in blocks.
    pub seq_blocks: u32,
    /// Sequences of an engine at one time.
    pub seqs: u32,
    /// Usual maximum of microseconds between two requests of an engine's thread.
    pub think_us: u64,
    /// Slots of one slab on NVMe.
    pub disk_slots: u32,
    /// Slabs that the node has for this space: its quota, or fewer if other spaces have taken theirs.
    pub disk_slabs: usize,
    /// Engines pin pages. Pins can block an engine's own lanes; without pins every blocked lane is a finding.
    pub pins: bool,
    /// How often an engine's thread changes the size of its tier 0 instead of another action, per thousand.
    pub resizes: u64,
    /// How often an engine's thread asks for a guarantee instead of another action, per thousand.
    pub guarantees: u64,
    /// How often an engine requests another contract than exact, as a weight relative to its other actions.
    pub contracts: u32,
    /// Every page fits in every tier, so no request may be refused for lack of space.
    pub roomy: bool,
    /// Engines' use of their own memory.
    pub own: Own,
    /// Readers of the feed: sessions with the numbers of replicas after the last one.
    pub readers: usize,
}

impl Geometry {
    /// Draw a space.
    pub fn draw(rng: &mut Rng) -> Geometry {
        let planes = draw_planes(rng);
        let page_tokens = rng.pick(&[1, 2, 4, 4, 8, 16]);
        let mut class_bytes: Vec<u32> = Vec::new();
        let mut class_planes: Vec<u32> = Vec::new();
        let class_of: Vec<u8> = planes
            .iter()
            .map(|plane| {
                let class = class_bytes.iter().position(|b| *b == plane.page_bytes).unwrap_or_else(|| {
                    class_bytes.push(plane.page_bytes);
                    class_planes.push(0);
                    class_bytes.len() - 1
                });
                class_planes[class] += 1;
                class as u8
            })
            .collect();
        let room = Room::draw(rng);
        let (roomy, deep) = (room == Room::Plenty, room == Room::Deep);
        let seq_blocks = if deep { rng.between(16, 40) } else { rng.between(3, 14) } as u32;
        let seqs = if deep { rng.between(1, 2) } else { rng.between(2, 6) } as u32;
        let scan_frames = rng.between(1, 3) as u32;
        let lanes = rng.between(1, 2) as u16;
        let channels = rng.between(1, 2) as u16;
        let depth = rng.pick(&[2, 4, 8]);
        let (shards, replicas) = rng.pick(&[(1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3)]);
        let (shards, replicas) = if deep { (1, 1) } else { (shards, replicas) };
        let tier0: Vec<u32> = class_planes
            .iter()
            .map(|planes| {
                // From less than one plane of one sequence, through a few sequences, to everything.
                let share = match rng.below(3) {
                    _ if deep => rng.between(2, 7) as u32,
                    0 => rng.between(2, 4) as u32,
                    1 => rng.between(4, u64::from(seq_blocks) + 4) as u32,
                    _ => rng.between(u64::from(seq_blocks), u64::from(seq_blocks * seqs)) as u32,
                };
                let frames = planes * if roomy { (seq_blocks + 2) * (seqs + 2) * 2 } else { share };
                frames + scan_frames + 1
            })
            .collect();
        let sessions = u32::from(shards) * replicas as u32;
        let whole: u64 = class_bytes
            .iter()
            .zip(&class_planes)
            .map(|(bytes, planes)| u64::from(stride(*bytes)) * u64::from(planes * seq_blocks * seqs * sessions))
            .sum();
        let own = Own::draw(rng, deep, replicas, seq_blocks);
        // Blocks stored from engines' own memory are additional, and are cached as long as there is room.
        let stored = if own.share > 0 { 4 } else { 1 };
        let blocks = seq_blocks * seqs * sessions * if roomy { stored } else { 1 };
        let disk = Disk::draw(rng, &planes, blocks, room);
        let slab_each: u64 = class_bytes.iter().map(|b| u64::from(stride(*b) * SLAB_FRAMES)).sum();
        // With a disk below it, host memory may be a fraction of the live data; at least a slab or two of each class.
        let host_bytes_max = match (roomy, disk.bytes_max > 0) {
            _ if deep => slab_each * rng.between(1, 2),
            (true, true) if rng.chance(600) => slab_each * rng.between(2, 6),
            (true, _) => whole * 16 * u64::from(stored) + (1 << 24),
            (false, true) if rng.chance(600) => slab_each * rng.between(1, 3),
            (false, true) => slab_each.max(whole * rng.between(1, 10) / 10),
            (false, false) => whole * rng.between(2, 30) / 10,
        };
        let limits = Limits {
            sessions_max: 8,
            blocks_max: (seq_blocks + 2)
                * (seqs + 2)
                * sessions
                * if roomy { 8 * stored } else { rng.between(2, 4) as u32 },
            seqs_max: seqs + 2 + own.leases,
            seq_blocks_max: seq_blocks + 4,
            lanes_max: 4,
            jobs_max: rng.pick(&[4, 8, 16, 64]),
            requests_max: u32::from(channels + lanes) * u32::from(depth),
            host_bytes_max,
            nvme_bytes_max: disk.bytes_max,
            ios_max: rng.pick(&[4, 4, 5, 8, 16, 64]),
            entries_max: 0,
            log_requests_max: rng.pick(&[1, 2, 4, 16]),
        };
        let limits = Limits { entries_max: limits.blocks_max + disk.slots * disk.slabs as u32, ..limits };
        let former = rng.chance(250);
        let policy = draw_policy(rng, scan_frames, roomy, former);
        let config = SpaceConfig { page_tokens, planes, shards, limits, policy };
        Geometry {
            config,
            class_of,
            class_bytes,
            class_planes,
            tier0,
            lanes,
            channels,
            depth,
            replicas,
            seq_blocks,
            seqs,
            // Steps over three tiers take long; frequent other requests would leave no time for them.
            think_us: if deep { 1500 } else { 40 },
            disk_slots: disk.slots,
            disk_slabs: disk.slabs,
            pins: rng.chance(600),
            mapped_frames: if rng.chance(400) { rng.between(1, 60) as u32 } else { 0 },
            resizes: if !roomy && rng.chance(400) { rng.between(2, 40) } else { 0 },
            // Drawn from a copy of the generator: episodes without guarantees stay as they were.
            guarantees: if !roomy && rng.clone().chance(250) { rng.clone().between(2, 20) } else { 0 },
            contracts: if deep && rng.chance(600) { 100 } else { rng.pick(&[0, 1, 20]) },
            roomy,
            own,
            // From a generator of its own: episodes without readers stay as they were.
            readers: Rng::new(rng.clone().bits()).pick(&[0, 0, 0, 0, 0, 0, 1, 2]),
        }
    }

    /// Return the tier-0 frames of a replica's session, by class.
    #[must_use]
    pub fn tier0_of(&self, replica: usize) -> Vec<u32> {
        if self.is_bare(replica) { vec![0; self.tier0.len()] } else { self.tier0.clone() }
    }

    /// Return the mapped frames of a replica's session in each class.
    #[must_use]
    pub fn mapped_frames_of(&self, replica: usize) -> u32 {
        if self.is_bare(replica) { 0 } else { self.mapped_frames }
    }

    /// Return whether the sessions of a replica are readers of the feed.
    #[must_use]
    pub fn is_reader(&self, replica: usize) -> bool {
        replica >= self.replicas
    }

    /// Return whether a replica's sessions have no tier 0.
    #[must_use]
    pub fn is_bare(&self, replica: usize) -> bool {
        self.own.is_bare(replica) || self.is_reader(replica)
    }

    /// Return a policy that an operator might choose instead.
    pub fn other_policy(&self, rng: &mut Rng) -> Policy {
        let scan_frames = rng.between(1, u64::from(self.config.policy.scan_frames)) as u32;
        draw_policy(rng, scan_frames, self.roomy, false)
    }

    /// Return whether pages of some plane become unused while a sequence grows.
    #[must_use]
    pub fn discards(&self) -> bool {
        self.config.planes.iter().any(|plane| plane.kind != PlaneKind::Full)
    }

    /// Return whether there is an NVMe tier.
    #[must_use]
    pub fn disk(&self) -> bool {
        self.config.limits.nvme_bytes_max > 0
    }

    /// Return the bytes of all frames of a session's tier 0 and of all host memory that the space may hold.
    #[must_use]
    pub fn upper_bytes(&self) -> u64 {
        let frames = self.tier0.iter().zip(&self.class_bytes);
        let tier0: u64 = frames.map(|(frames, bytes)| u64::from(*frames) * u64::from(stride(*bytes))).sum();
        tier0 + self.config.limits.host_bytes_max
    }

    /// Return the number of planes.
    #[must_use]
    pub fn planes(&self) -> u16 {
        self.config.planes.len() as u16
    }

    /// Return the token slots of a page.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.config.page_tokens as usize
    }

    /// Return the frames of a session over all classes, mapped frames included.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.tier0.iter().sum::<u32>() + self.mapped_frames * self.tier0.len() as u32
    }

    /// Return the frames with which a replica's session attaches: tier-0 frames by class, then mapped frames by class, if there are
    /// any.
    #[must_use]
    pub fn attached_frames(&self, replica: usize) -> Vec<u32> {
        let each = self.mapped_frames_of(replica);
        let classes = if each > 0 { self.tier0.len() } else { 0 };
        self.tier0_of(replica).into_iter().chain(std::iter::repeat_n(each, classes)).collect()
    }

    /// Return the first frame of a class.
    #[must_use]
    pub fn class_base(&self, class: u8) -> u32 {
        self.tier0[..usize::from(class)].iter().map(|frames| frames + self.mapped_frames).sum()
    }
}

/// Room for engines' data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// For everything, in every tier or at least in the last.
    Plenty,
    /// Few long sequences, each many times larger than tier 0 and host memory together, on a disk with enough room.
    Deep,
    /// Any amount between too little and enough.
    Any,
}

impl Room {
    fn draw(rng: &mut Rng) -> Room {
        match rng.below(100) {
            0..20 => Room::Plenty,
            20..32 => Room::Deep,
            _ => Room::Any,
        }
    }
}

/// The NVMe tier of a space.
struct Disk {
    bytes_max: u64,
    slots: u32,
    slabs: usize,
}

impl Disk {
    /// Draw a disk: none in one space of three; otherwise from one slab, through less than the engines' data, to more than all
    /// possible blocks.
    fn draw(rng: &mut Rng, planes: &[Plane], blocks: u32, room: Room) -> Disk {
        let slots = rng.pick(&[1, 2, 3, 4, 8, 16]);
        let kind = rng.below(10);
        let most = match kind {
            _ if room == Room::Deep => blocks * 2 + 64,
            0..3 => return Disk { bytes_max: 0, slots, slabs: 0 },
            _ if room == Room::Plenty => blocks * 32 + 64,
            3 => slots * rng.between(1, 3) as u32,
            4 | 5 => blocks * rng.between(2, 15) as u32 / 10,
            _ => blocks * 4 + 64,
        };
        let slabs = u64::from(most.div_ceil(slots));
        let bytes_max = slabs * u64::from(slots) * SlotLayout::new(planes).bytes();
        let fewer = room == Room::Any && rng.chance(250);
        let slabs = if fewer { rng.between(1, slabs) } else { slabs };
        Disk { bytes_max, slots, slabs: slabs as usize }
    }
}

fn draw_policy(rng: &mut Rng, scan_frames: u32, roomy: bool, former: bool) -> Policy {
    let clean = rng.between(5, 40) as u8;
    let host = rng.between(40, 80) as u8;
    let host_clean = rng.between(0, 60) as u8;
    let nvme = rng.between(40, 95) as u8;
    Policy {
        clean_low_percent: clean,
        clean_high_percent: clean + rng.between(5, 30) as u8,
        host_high_percent: host + rng.between(5, 20) as u8,
        host_low_percent: host,
        host_clean_low_percent: host_clean,
        host_clean_high_percent: host_clean + rng.between(0, 40) as u8,
        host_scan_frames: rng.between(1, 8) as u32,
        nvme_high_percent: if roomy { 100 } else { nvme + rng.between(0, 5) as u8 },
        nvme_low_percent: nvme,
        nvme_admission: Admission::All,
        nvme_bytes_per_day: 0,
        eviction: rng.pick(&Eviction::ALL),
        attention: draw_attention(rng, former),
        retention: Retention {
            // A roomy space keeps everything that was published.
            ttl_us: if roomy || rng.chance(800) { 0 } else { rng.between(1_000, 1_000_000) },
            high_share_percent: rng.between(0, 100) as u8,
            recompute_tokens_per_s: rng.pick(&[0, 1_000, 1_000_000]),
            attention_doubles_at: rng.pick(&[0, 4, 64]),
            ending_tokens: rng.pick(&[0, 8, 64]),
        },
        scan_frames,
        request_timeout_us: 200_000,
        lease_us_max: 600_000_000,
        lease_percent: 100,
    }
}

/// Draw which pages stay in tier 0. Draws of settings that no longer exist are still made, one of them only if `former`, so that the
/// other draws of a seed stay as they were.
fn draw_attention(rng: &mut Rng, former: bool) -> Attention {
    if !rng.chance(500) {
        rng.bits();
    }
    if former {
        rng.bits();
    }
    Attention {
        sinks: rng.between(1, 3) as u16,
        recent: rng.between(2, 4) as u16,
        bandwidth_percent: rng.between(1, 100) as u8,
    }
}

fn draw_planes(rng: &mut Rng) -> Vec<Plane> {
    let full = |page_bytes| Plane { page_bytes, kind: PlaneKind::Full };
    let count = rng.between(1, 6) as usize;
    match rng.below(5) {
        // Equal planes, as in MHA or GQA.
        0 | 1 => vec![full(4096); count],
        // MLA: latent vectors of 576 values; the page size is no multiple of 4 KiB or of the frame alignment.
        2 => vec![full(rng.pick(&[1152, 9216 + 1, 18_433])); count],
        // Sliding windows among full planes, of the same or another size.
        3 => (0..count)
            .map(|i| match i % 3 {
                1 => Plane { page_bytes: 4096, kind: PlaneKind::Window { tokens: rng.between(1, 40) as u32 } },
                2 => Plane { page_bytes: 2000, kind: PlaneKind::Window { tokens: rng.between(1, 12) as u32 } },
                _ => full(4096),
            })
            .collect(),
        // A hybrid: recurrent state beside attention.
        _ => (0..count.max(2))
            .map(|i| if i % 2 == 0 { Plane { page_bytes: 777, kind: PlaneKind::State } } else { full(4096) })
            .collect(),
    }
}
