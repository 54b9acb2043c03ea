//! NVMe regions in the host thread: which space holds each region, which blocks of an earlier run it has, and the grant protocol. A
//! grant is in the disk's index log before the space gets the region.
//!
//! ```text
//! NeedDisk ─▶ node ─▶ log thread: LogMessage::Grant ─▶ flushed: DiskEvent::Granted ─▶ SpaceMessage::DiskGranted
//! ```
//!
//! The record of a grant invalidates all earlier records of the region. It is flushed before the space writes there, so after a
//! restart new bytes are never taken for old blocks.

use super::OtherSpace;
use crate::config::Config;
use crate::orders::{Purge, PurgeEvent, PurgedDisk};
use crate::space::{Left, Region, SpaceMessage};
use kvtide_format::log::{Blocks, Recovered, RecoveredSlab, SlabHeader};
use kvtide_nvme::{Disk, DiskEvent, EraseKeys, KeyError, LogMessage, SlabCode};
use kvtide_rt::mail::RetryQueue;
use kvtide_tiering::api::Status;
use kvtide_tiering::node::{DiskConfig, DiskGrant, DiskStatus, Disks, DisksConfig, Evicted, NoDisk};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after a return in which a space gets no region. Each grant and each return costs a record and a flush of an index log,
/// which no write budget bounds. A space that returns and requests in a loop costs at most twenty flushes per second.
const REST: Duration = Duration::from_millis(100);

/// Return the daily write limit of each disk of a configuration, if set.
pub(crate) fn bytes_per_day(config: &Config) -> Vec<Option<u64>> {
    config.nvme().into_iter().flat_map(|nvme| nvme.disks.iter().map(|disk| disk.bytes_per_day)).collect()
}

/// The regions of all disks.
pub(super) struct Regions {
    node: Disks,
    disks: Vec<Disk>,
    /// Messages to the disks' log threads, by disk.
    logs: Vec<RetryQueue<LogMessage>>,
    /// Names of the domains, in the node's order.
    domains: Vec<String>,
    /// Regions of an earlier run, or of a space that ended, by disk and region.
    unclaimed: BTreeMap<(u32, u32), Unclaimed>,
    /// Slab header of each space.
    spaces: BTreeMap<u32, SlabHeader>,
    /// Spaces that wait for a region, with the preferred disk, in order of their requests.
    waiting: VecDeque<(u32, Option<u32>)>,
    /// Grants while their record is being flushed, by disk and number.
    logging: BTreeMap<(u32, u64), Logging>,
    /// Headers in the index log of the regions that spaces hold, by space and slab.
    held: BTreeMap<(u32, u32), SlabHeader>,
    /// Number of the next grant, not used on any disk yet.
    next_grant: u64,
    /// Daily write limit of each disk, if set.
    bytes_per_day: Vec<Option<u64>>,
    /// Daily write rate last sent to each space.
    rates: BTreeMap<u32, u64>,
    /// Time at which each space last returned a region, for [`REST`].
    returned: BTreeMap<u32, Instant>,
    /// Domains of spaces that ended without returning all their regions.
    lost: BTreeSet<String>,
    /// Messages for spaces, to be sent.
    post: Vec<(u32, SpaceMessage)>,
}

/// Recorded blocks of a region that no space holds.
struct Unclaimed {
    header: SlabHeader,
    blocks: Blocks,
    /// Highest generation used in its slots.
    generation: u32,
}

impl From<RecoveredSlab> for Unclaimed {
    fn from(slab: RecoveredSlab) -> Unclaimed {
        let generation = slab.blocks.iter().map(|put| put.generation).max().unwrap_or(0);
        Unclaimed { header: slab.header, blocks: slab.blocks, generation }
    }
}

/// A grant that is being recorded in a log.
struct Logging {
    space: u32,
    grant: DiskGrant,
    header: SlabHeader,
}

impl Regions {
    /// Create the state from the recovered index of each disk.
    pub fn new(config: &Config, disks: &[Disk], recovered: Vec<Recovered>) -> Regions {
        let weights = config.nvme().into_iter().flat_map(|nvme| nvme.disks.iter().map(|disk| disk.weight));
        let node = Disks::new(DisksConfig {
            region_bytes: config.nvme().map_or(0, |nvme| nvme.slab_bytes),
            disks: disks
                .iter()
                .zip(weights)
                .map(|(disk, weight)| DiskConfig { regions: disk.regions(), weight })
                .collect(),
            quotas_bytes: config.domains.iter().map(|domain| domain.nvme_bytes).collect(),
        });
        let slabs = (0u32..).zip(recovered).flat_map(|(disk, recovered)| {
            recovered.slabs.into_iter().map(move |slab| ((disk, slab.header.region), Unclaimed::from(slab)))
        });
        let unclaimed: BTreeMap<_, _> = slabs.collect();
        let next_grant = unclaimed.values().map(|unclaimed| unclaimed.header.grant + 1).max().unwrap_or(1);
        let mut regions = Regions {
            node,
            logs: disks.iter().map(|disk| RetryQueue::new(disk.log())).collect(),
            disks: disks.to_vec(),
            domains: config.domains.iter().map(|domain| domain.name.clone()).collect(),
            unclaimed,
            spaces: BTreeMap::new(),
            waiting: VecDeque::new(),
            logging: BTreeMap::new(),
            held: BTreeMap::new(),
            next_grant,
            bytes_per_day: bytes_per_day(config),
            rates: BTreeMap::new(),
            returned: BTreeMap::new(),
            lost: BTreeSet::new(),
            post: Vec::new(),
        };
        regions.add_recovered();
        regions
    }

    /// Return true if there are disks.
    pub fn exist(&self) -> bool {
        !self.disks.is_empty()
    }

    /// Take the messages for spaces, including changed write rates.
    pub fn take_post(&mut self) -> Vec<(u32, SpaceMessage)> {
        let rates: BTreeMap<u32, u64> = self.node.rates(&self.bytes_per_day).collect();
        for (&space, &nvme_bytes_per_day) in &rates {
            if self.rates.get(&space) != Some(&nvme_bytes_per_day) {
                self.post.push((space, SpaceMessage::Rate { nvme_bytes_per_day }));
            }
        }
        self.rates = rates;
        std::mem::take(&mut self.post)
    }

    /// Send the waiting messages to the logs. Return true if none waits any more.
    pub fn flush(&mut self) -> bool {
        self.logs.iter_mut().fold(true, |all, log| log.flush() & all)
    }

    /// Add a space with the slab header `slab`. It gets the regions that an earlier run left for it, and the identity of the first of
    /// `others` that has blocks.
    pub fn join(&mut self, space: u32, domain: usize, slab: SlabHeader, others: Vec<OtherSpace>) {
        let has_blocks = |other: &OtherSpace| {
            let mut regions = self.unclaimed.values().filter(|unclaimed| unclaimed.header.key == other.stored);
            regions.any(|unclaimed| !unclaimed.blocks.is_empty())
        };
        let other_identity = others.into_iter().find(has_blocks).map_or_else(String::new, |other| other.identity);
        if let Err(error) = self.node.join(space, domain, slab.slot_bytes) {
            tracing::error!("space {space}: cannot use NVMe: {error}");
            return self.post.push((space, SpaceMessage::Adopted { regions: Vec::new(), other_identity }));
        }
        let mut mine: Vec<_> =
            self.unclaimed.iter().filter(|(_, unclaimed)| unclaimed.header.key == slab.key).collect();
        mine.sort_unstable_by_key(|(_, unclaimed)| unclaimed.header.grant);
        let mine: Vec<(u32, u32)> = mine.into_iter().map(|(at, _)| *at).collect();
        let regions = mine.into_iter().filter_map(|at| self.adopt(space, at, &slab)).collect();
        self.spaces.insert(space, slab);
        self.post.push((space, SpaceMessage::Adopted { regions, other_identity }));
    }

    fn adopt(&mut self, space: u32, (disk, region): (u32, u32), slab: &SlabHeader) -> Option<Region> {
        let unclaimed = self.unclaimed.remove(&(disk, region))?;
        let SlabHeader { grant, .. } = unclaimed.header;
        let fits = SlabHeader {
            region,
            grant,
            codec: unclaimed.header.codec,
            encrypted: unclaimed.header.encrypted,
            ..slab.clone()
        };
        let code = self.code(disk, &unclaimed.header);
        let granted =
            if unclaimed.header == fits && code.is_ok() { self.node.adopt(space, disk, region) } else { None };
        let (Some(granted), Ok(code)) = (granted, code) else {
            tracing::error!(
                "disk {disk}: region {region} does not match the layout of space {space}; its blocks are dropped: {:?}",
                unclaimed.header
            );
            self.node.drop_unclaimed(disk, region);
            self.free(disk, region, grant);
            return None;
        };
        self.held.insert((space, granted.slab), fits);
        let generation = self.generation(disk).max(unclaimed.generation);
        Some(Region { grant: granted, generation, code, blocks: Some(unclaimed.blocks) })
    }

    /// Return the encoding of a slab, if any. Without the key of its domain, the region cannot be used.
    fn code(&self, disk: u32, slab: &SlabHeader) -> Result<Option<Arc<SlabCode>>, KeyError> {
        let code = self.disks.get(disk as usize).map_or(Ok(None), |disk| disk.code(slab));
        code.inspect_err(|error| tracing::error!("disk {disk}: region {}: {error}", slab.region))
    }

    /// Return the highest generation that earlier runs may have used on a disk.
    fn generation(&self, disk: u32) -> u32 {
        self.disks.get(disk as usize).map_or(0, |disk| disk.starts() << 16)
    }

    /// Handle a space's request for a region, preferably on the disk `wanted`.
    pub fn need(&mut self, space: u32, wanted: Option<u32>) {
        self.waiting.push_back((space, wanted));
        self.grant();
    }

    /// Answer the waiting requests that can be answered now.
    pub fn grant(&mut self) {
        let now = Instant::now();
        self.returned.retain(|_, at| *at + REST > now);
        for _ in 0..self.waiting.len() {
            let Some((space, wanted)) = self.waiting.pop_front() else { return };
            if self.returned.contains_key(&space) {
                self.waiting.push_back((space, wanted));
                continue;
            }
            match self.node.grant(space, wanted) {
                Ok((grant, evicted)) => {
                    self.evicted(evicted);
                    self.record(space, grant);
                }
                Err(NoDisk::Full | NoDisk::Unknown) => self.post.push((space, SpaceMessage::DiskRefused)),
            }
        }
    }

    /// Return when the first space held back by [`REST`] can get a region again.
    pub fn due(&self) -> Option<Instant> {
        let resting = self.waiting.iter().filter_map(|(space, _)| self.returned.get(space));
        resting.map(|at| *at + REST).min()
    }

    /// Record a grant; the space gets the region when the record is flushed.
    fn record(&mut self, space: u32, grant: DiskGrant) {
        let Some(slab) = self.spaces.get(&space) else { return };
        let number = self.next_grant;
        self.next_grant += 1;
        let (codec, encrypted) = self.disks.get(grant.disk as usize).map_or((0, false), Disk::coding);
        let header = SlabHeader { region: grant.region, grant: number, codec, encrypted, ..slab.clone() };
        self.logging.insert((grant.disk, number), Logging { space, grant, header: header.clone() });
        self.tell_log(grant.disk, LogMessage::Grant(header));
    }

    fn evicted(&mut self, evicted: impl IntoIterator<Item = Evicted>) {
        for Evicted { disk, region } in evicted {
            let Some(slab) = self.unclaimed.remove(&(disk, region)) else { continue };
            let (grant, blocks, domain) = (slab.header.grant, slab.blocks.len(), slab.header.domain);
            tracing::info!(
                "disk {disk}: region {region} is freed; it held {blocks} unclaimed blocks of domain {domain}"
            );
            self.free(disk, region, grant);
        }
    }

    fn free(&mut self, disk: u32, region: u32, grant: u64) {
        self.tell_log(disk, LogMessage::Free { region, grant });
    }

    fn tell_log(&mut self, disk: u32, message: LogMessage) {
        if let Some(log) = self.logs.get_mut(disk as usize) {
            log.send(message);
        }
    }

    /// Take a region back; no record in it is valid any more.
    pub fn take_back(&mut self, space: u32, slab: u32) {
        match (self.node.take_back(space, slab), self.held.remove(&(space, slab))) {
            (Some((disk, region)), Some(header)) => self.free(disk, region, header.grant),
            _ => tracing::error!("space {space}: returned NVMe slab {slab}, which it does not own"),
        }
        self.returned.insert(space, Instant::now());
        self.grant();
    }

    /// Keep a region with its recorded blocks when its space ends: for the same space later in this run, or for the next run.
    pub fn add_unclaimed(&mut self, space: u32, Left { slab, blocks, generation }: Left) {
        let Some(header) = self.held.remove(&(space, slab)) else { return };
        let Some((disk, region)) = self.node.take_back(space, slab) else { return };
        let domain = self.domain(&header.domain);
        if self.node.add_unclaimed(disk, region, domain, header.grant) {
            self.unclaimed.insert((disk, region), Unclaimed { header, blocks, generation });
        }
    }

    /// Drop the regions of a tenant without running spaces, and erase its keys on each disk.
    pub fn purge(&mut self, purge: &Purge) {
        let tenant = &purge.tenant;
        let lost = self.lost.contains(tenant).then(|| {
            "a space of the tenant ended without returning its regions: restart the daemon, then purge again".to_owned()
        });
        for disk in 0..self.disks.len() as u32 {
            let not_encrypted = self.disks.get(disk as usize).is_some_and(|disk| !disk.coding().1);
            let mut purged = PurgedDisk { not_encrypted, ..PurgedDisk::default() };
            let on_disk = self.unclaimed.range((disk, 0)..=(disk, u32::MAX));
            let of_tenant = on_disk.filter(|(_, unclaimed)| unclaimed.header.domain == *tenant);
            for at in of_tenant.map(|(at, _)| *at).collect::<Vec<_>>() {
                let Some(Unclaimed { header, .. }) = self.unclaimed.remove(&at) else { continue };
                *(if header.encrypted { &mut purged.encrypted_slabs } else { &mut purged.plain_slabs }) += 1;
                self.node.drop_unclaimed(disk, header.region);
                self.free(disk, header.region, header.grant);
            }
            let (events, lost) = (purge.events.clone(), lost.clone());
            let answer = Box::new(move |erased: Result<u32, KeyError>| {
                let (keys_erased, error) =
                    erased.map_or_else(|error| (0, Some(error.to_string())), |keys| (keys, None));
                let purged = PurgedDisk { keys_erased, error: error.or(lost), ..purged };
                // The client may have disconnected.
                let _ = events.send(PurgeEvent::Disk(disk, purged));
            });
            self.tell_log(disk, LogMessage::EraseKeys(EraseKeys { domain: tenant.clone(), answer }));
        }
        self.grant();
    }

    fn domain(&self, name: &str) -> Option<usize> {
        self.domains.iter().position(|domain| domain == name)
    }

    /// Set new quotas, names of domains, and daily write limits of disks. There may be new domains.
    pub fn set_quotas(&mut self, names: Vec<String>, quotas_bytes: Vec<u64>, bytes_per_day: Vec<Option<u64>>) {
        self.bytes_per_day = bytes_per_day;
        self.domains = names;
        let evicted = self.node.set_quotas(quotas_bytes);
        self.evicted(evicted);
        for (&(disk, region), slab) in &self.unclaimed {
            if let Some(domain) = self.domains.iter().position(|domain| *domain == slab.header.domain) {
                self.node.assign_domain(disk, region, domain);
            }
        }
        let evicted = self.node.trim();
        self.evicted(evicted);
        self.grant();
    }

    /// Handle a disk event.
    pub fn handle(&mut self, event: DiskEvent) {
        match event {
            DiskEvent::Granted { disk, region, grant, status } => self.recorded(disk.into(), region, grant, status),
            // The I/O thread has logged the reason.
            DiskEvent::Failed { disk, .. } => self.fail(disk.into()),
            // The I/O thread has logged it; the disk's transfers end when it responds again.
            DiskEvent::Stalled { .. } => {}
        }
        self.grant();
    }

    /// Reserve regions with blocks of an earlier run until their space attaches.
    fn add_recovered(&mut self) {
        let found: Vec<(u32, u32, Option<usize>, u64)> = (self.unclaimed.iter())
            .map(|((disk, region), slab)| (*disk, *region, self.domain(&slab.header.domain), slab.header.grant))
            .collect();
        for (disk, region, domain, grant) in found {
            if !self.node.add_unclaimed(disk, region, domain, grant) {
                tracing::error!("disk {disk}: cannot reserve region {region} for the blocks of an earlier run");
                self.unclaimed.remove(&(disk, region));
            }
        }
        let evicted = self.node.trim();
        self.evicted(evicted);
    }

    fn recorded(&mut self, disk: u32, region: u32, number: u64, status: Status) {
        // The space has left meanwhile.
        let Some(Logging { space, grant, header }) = self.logging.remove(&(disk, number)) else { return };
        if status == Status::Ok
            && let Ok(code) = self.code(disk, &header)
        {
            self.held.insert((space, grant.slab), header);
            let region = Region { grant, generation: self.generation(disk), code, blocks: None };
            return self.post.push((space, SpaceMessage::DiskGranted(region)));
        }
        tracing::error!("disk {disk}: cannot record the grant of region {region} ({status:?}); the region is not used");
        self.node.take_back(space, grant.slab);
        self.post.push((space, SpaceMessage::DiskRefused));
    }

    /// Handle a failed disk: notify the spaces that hold slabs there; grants being recorded there wait for another disk.
    fn fail(&mut self, disk: u32) {
        let coming: Vec<u64> = self.logging.range((disk, 0)..=(disk, u64::MAX)).map(|((_, grant), _)| *grant).collect();
        for number in coming {
            let Some(Logging { space, grant, .. }) = self.logging.remove(&(disk, number)) else { continue };
            self.node.take_back(space, grant.slab);
            self.waiting.push_front((space, None));
        }
        self.unclaimed.retain(|(on, _), _| *on != disk);
        for (space, slab) in self.node.fail(disk) {
            self.post.push((space, SpaceMessage::DiskGone { slab }));
        }
    }

    /// Remove a space that has ended. Regions that it did not return stay unused until the daemon restarts.
    pub fn leave(&mut self, space: u32) {
        self.waiting.retain(|(waiting, _)| *waiting != space);
        // The space did not get these regions, so no transfer can be in flight there.
        let coming: Vec<_> =
            self.logging.iter().filter(|(_, coming)| coming.space == space).map(|(key, _)| *key).collect();
        for (disk, number) in coming {
            let Some(Logging { grant, .. }) = self.logging.remove(&(disk, number)) else { continue };
            self.node.take_back(space, grant.slab);
            self.free(disk, grant.region, number);
        }
        let lost = self.node.leave(space);
        if lost > 0 {
            self.lost.extend(self.spaces.get(&space).map(|slab| slab.domain.clone()));
            tracing::error!(
                "space {space}: ended without returning {lost} NVMe regions; they stay unused until the daemon restarts"
            );
        }
        self.held.retain(|(of, _), _| *of != space);
        self.spaces.remove(&space);
        self.returned.remove(&space);
        self.grant();
    }

    /// Return the status of each disk.
    pub fn status(&self) -> Vec<DiskStatus> {
        self.node.status().collect()
    }

    /// Return the bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.node.region_bytes()
    }
}
