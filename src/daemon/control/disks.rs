//! The NVMe disks of the configuration: all of them start or none. Each has a thread of its own.

use crate::config::{self, Config, Disk as DiskConfig, NvmeTier};
use crate::error::Error;
use crate::host::NodeMessage;
use crate::status::{Bounds, ThreadRegistry};
use crate::supervisor;
use kvtide_format::log::Recovered;
use kvtide_nvme::{
    self, Discard, Disk, DiskFigures, DiskThread, Encryption, KeySource, Obstacle, OpenDisk, Place, Settings,
};
use kvtide_rt::mail::{Address, RetryQueue};
use std::path::Path;
use std::sync::Arc;

/// The running disks.
#[derive(Debug)]
pub(super) struct Disks {
    threads: Vec<DiskThread>,
}

impl Disks {
    /// Open all disks, then start their threads. A disk that cannot be used stops the start before anything is written to another
    /// disk. Disk events go to the host thread; the recovered index of each disk is returned.
    ///
    /// # Errors
    /// A directory or file cannot be used, or a required feature is missing there.
    pub fn start(
        config: &Config,
        node: &Address<NodeMessage>,
        thread_registry: &ThreadRegistry,
    ) -> Result<(Disks, Vec<Recovered>), Error> {
        let Some(tier) = config.nvme() else { return Ok((Disks { threads: Vec::new() }, Vec::new())) };
        let settings = all_settings(tier);
        let mut open = kvtide_nvme::open_all(&settings, &mut |progress| starting(thread_registry, progress))?;
        for (settings, disk) in settings.iter().zip(&open) {
            let (number, path) = (settings.number, settings.place.path().display());
            let (regions, bytes, mode) = (disk.regions(), settings.region_bytes, disk.mode());
            tracing::info!("disk {number} ({path}): {regions} regions of {bytes} bytes, I/O mode {mode}");
        }
        let recovered = open.iter_mut().map(OpenDisk::take_recovered).collect();
        let threads = open.into_iter().map(|disk| {
            // The host thread keeps up: its mailbox holds more messages than there are different events, and later ones repeat
            // earlier ones.
            let mut events = RetryQueue::new(node.clone());
            disk.start(Box::new(move |event| events.send(event.into())))
        });
        Ok((Disks { threads: threads.collect::<Result<_, _>>()? }, recovered))
    }

    /// Return the disk handles, in order, for the threads that send transfers.
    pub fn disks(&self) -> Arc<[Disk]> {
        self.threads.iter().map(|thread| thread.disk().clone()).collect()
    }

    /// Return the published stats of the disks, in order.
    pub fn figures(&self) -> Vec<DiskFigures> {
        self.threads.iter().map(|thread| thread.figures().clone()).collect()
    }

    /// Stop the disk threads. All threads that send them transfers must have ended.
    pub fn end(self) {
        for thread in self.threads {
            thread.end();
        }
    }
}

/// Check the disks as [`Disks::start`] does before it changes anything.
pub(super) fn check(config: &Config) -> Vec<Obstacle> {
    // The start makes these first.
    let made: Vec<&Path> = [Some(&*config.daemon.dir), config.daemon.socket.parent()].into_iter().flatten().collect();
    config.nvme().map_or(Vec::new(), |tier| kvtide_nvme::check_all(&all_settings(tier), &made))
}

pub(super) fn all_settings(tier: &NvmeTier) -> Vec<Settings> {
    (0..).zip(&tier.disks).map(|(number, disk)| settings(number, tier, disk)).collect()
}

/// Report start-up progress to status requests and to the service manager.
fn starting(thread_registry: &ThreadRegistry, progress: &str) {
    thread_registry.progress(progress);
    supervisor::starting(progress);
}

/// Return the configured write limits of each disk.
pub(super) fn bounds(config: &Config) -> Vec<Bounds> {
    let disks = config.nvme().into_iter().flat_map(|nvme| &nvme.disks);
    disks.map(|disk| Bounds { bytes_per_day: disk.bytes_per_day, endurance_bytes: disk.endurance_bytes }).collect()
}

/// Return the settings of a disk for its I/O thread.
fn settings(number: u16, tier: &NvmeTier, disk: &DiskConfig) -> Settings {
    Settings {
        number,
        place: match disk.place() {
            config::Place::Dir(path) => Place::Dir(path.to_owned()),
            config::Place::Device(path) => Place::Device(path.to_owned()),
        },
        capacity_bytes: disk.capacity_bytes,
        region_bytes: tier.slab_bytes,
        reserve_free: disk.reserve_free,
        engine: tier.io,
        direct: tier.direct,
        registered: tier.registered,
        depth: tier.depth.into(),
        writeback_bytes: tier.writeback_bytes,
        timeout: tier.timeout,
        discard: tier.discards.then_some(Discard::DEFAULT),
        codec: tier.codec,
        encryption: Encryption { source: (&tier.encryption.source()).into(), new_slabs: tier.encryption.new_slabs },
        ..Settings::default()
    }
}

impl From<&config::KeySource> for KeySource {
    fn from(source: &config::KeySource) -> KeySource {
        match source {
            config::KeySource::Off => KeySource::Off,
            config::KeySource::File(path) => KeySource::File(path.clone()),
            config::KeySource::Credential(name) => KeySource::Credential(name.clone()),
            config::KeySource::Ephemeral => KeySource::Ephemeral,
        }
    }
}
