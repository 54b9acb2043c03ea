//! Geometry and limits of a space, validated once.

use crate::api::{NONE, PlaneKind, Policy, SpaceConfig};
use crate::error::Error;
use kvtide_types::geometry;
use serde::{Deserialize, Serialize};

/// Ids of blocks, slots and cache entries are below this.
pub(crate) const IDS_MAX: u32 = 1 << 29;

/// Size class: planes with pages of equal size, which share frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// Planes of the class.
    pub planes: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PlaneInfo {
    pub class: u8,
    pub kind: PlaneKind,
}

/// Geometry of a space, derived from its configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Geometry {
    pub page_tokens: u64,
    pub planes: Vec<PlaneInfo>,
    pub classes: Vec<Class>,
    /// Planes with pages that go out of window while their sequence grows.
    pub windowed: Vec<u16>,
}

fn refuse<T>(what: &'static str, value: impl Into<u64>) -> Result<T, Error> {
    Err(Error::Config { what, value: value.into() })
}

impl Geometry {
    pub fn new(cfg: &SpaceConfig) -> Result<Geometry, Error> {
        check_bounds(cfg)?;
        let mut geo = Geometry {
            page_tokens: u64::from(cfg.page_tokens),
            planes: Vec::new(),
            classes: Vec::new(),
            windowed: Vec::new(),
        };
        geometry::check(&cfg.planes)?;
        geo.classes.extend(geometry::classes(&cfg.planes).into_iter().map(|bytes| Class {
            page_bytes: bytes,
            stride: geometry::stride(bytes),
            planes: 0,
        }));
        for (i, (plane, class)) in cfg.planes.iter().zip(geometry::class_of(&cfg.planes)).enumerate() {
            geo.classes[usize::from(class)].planes += 1;
            geo.planes.push(PlaneInfo { class, kind: plane.kind });
            if !matches!(plane.kind, PlaneKind::Full) {
                geo.windowed.push(i as u16);
            }
        }
        Ok(geo)
    }

    pub fn planes_len(&self) -> u32 {
        self.planes.len() as u32
    }

    pub fn class_of(&self, plane: u16) -> u8 {
        self.planes[usize::from(plane)].class
    }

    pub fn class_of_page(&self, page: u32) -> u8 {
        self.planes[(page % self.planes_len()) as usize].class
    }

    pub fn page(&self, block: u32, plane: u16) -> u32 {
        block * self.planes_len() + u32::from(plane)
    }

    pub fn block_of(&self, page: u32) -> u32 {
        page / self.planes_len()
    }

    pub fn plane_of(&self, page: u32) -> u16 {
        (page % self.planes_len()) as u16
    }

    /// Return the first block index that a read at length `tokens` needs in this plane.
    pub fn first_needed(&self, plane: u16, tokens: u64) -> u64 {
        self.planes[usize::from(plane)].kind.first_needed(tokens, self.page_tokens)
    }
}

fn check_bounds(cfg: &SpaceConfig) -> Result<(), Error> {
    let l = &cfg.limits;
    if cfg.page_tokens == 0 || cfg.page_tokens > 1 << 20 {
        return refuse("page_tokens must be from 1 to 1,048,576", cfg.page_tokens);
    }
    if cfg.shards == 0 || cfg.shards > 1024 {
        return refuse("shards must be from 1 to 1,024", cfg.shards);
    }
    if l.sessions_max == 0 || l.sessions_max > 4096 {
        return refuse("sessions_max must be from 1 to 4,096", l.sessions_max);
    }
    if l.blocks_max == 0 || u64::from(l.blocks_max) * cfg.planes.len() as u64 >= u64::from(NONE) {
        return refuse("blocks_max times planes must be from 1 to 2^32 - 2", l.blocks_max);
    }
    if l.seqs_max == 0 || l.seqs_max > 1 << 20 {
        return refuse("seqs_max must be from 1 to 1,048,576", l.seqs_max);
    }
    if l.seq_blocks_max == 0 || l.seq_blocks_max > 1 << 26 {
        return refuse("seq_blocks_max must be from 1 to 67,108,864", l.seq_blocks_max);
    }
    if l.lanes_max == 0 || l.lanes_max > 256 {
        return refuse("lanes_max must be from 1 to 256", l.lanes_max);
    }
    if l.jobs_max < 2 || l.jobs_max > 1 << 15 {
        return refuse("jobs_max must be from 2 to 32,768", l.jobs_max);
    }
    if l.requests_max == 0 || l.requests_max > 1 << 15 {
        return refuse("requests_max must be from 1 to 32,768", l.requests_max);
    }
    if l.entries_max == 0 || l.entries_max >= IDS_MAX || l.blocks_max >= IDS_MAX {
        return refuse(
            "entries_max and blocks_max must be below 2^29, entries_max at least 1",
            l.entries_max.max(l.blocks_max),
        );
    }
    if l.log_requests_max > 1 << 15 || l.nvme_bytes_max > 0 && l.log_requests_max == 0 {
        return refuse("log_requests_max must be from 1 to 32,768", l.log_requests_max);
    }
    if l.ios_max > 1 << 15 || l.nvme_bytes_max > 0 && l.ios_max < 4 {
        return refuse("ios_max must be from 4 to 32,768", l.ios_max);
    }
    check_policy(&cfg.policy)
}

/// Check that a policy does not contradict itself.
pub(crate) fn check_policy(p: &Policy) -> Result<(), Error> {
    if p.clean_low_percent > p.clean_high_percent || p.clean_high_percent > 100 {
        return refuse("clean_low_percent <= clean_high_percent <= 100 must hold", p.clean_low_percent);
    }
    if p.host_low_percent > p.host_high_percent || p.host_high_percent > 100 {
        return refuse("host_low_percent <= host_high_percent <= 100 must hold", p.host_low_percent);
    }
    if p.host_clean_low_percent > p.host_clean_high_percent || p.host_clean_high_percent > 100 {
        return refuse("host_clean_low_percent <= host_clean_high_percent <= 100 must hold", p.host_clean_low_percent);
    }
    if p.nvme_low_percent > p.nvme_high_percent || p.nvme_high_percent > 100 {
        return refuse("nvme_low_percent <= nvme_high_percent <= 100 must hold", p.nvme_low_percent);
    }
    if p.retention.high_share_percent > 100 {
        return refuse("high_share_percent must be at most 100", p.retention.high_share_percent);
    }
    if p.scan_frames == 0 {
        return refuse("scan_frames must be at least 1", p.scan_frames);
    }
    let a = p.attention;
    if a.sinks == 0 || a.recent < 2 {
        return refuse(
            "sinks must be at least 1 and recent at least 2: agents wait for those pages",
            a.sinks.min(a.recent),
        );
    }
    if a.bandwidth_percent == 0 || a.bandwidth_percent > 100 {
        return refuse("bandwidth_percent must be from 1 to 100", a.bandwidth_percent);
    }
    if p.host_scan_frames == 0 {
        return refuse("host_scan_frames must be at least 1", p.host_scan_frames);
    }
    Ok(())
}
