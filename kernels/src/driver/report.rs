//! Results of the probe, as text and as JSON.

use super::{Device, DeviceInfo, Driver, Version, Which, Works, trials};
use crate::Pinned;
use kvtide_wire::os::{huge, map::Access, memfd::Memfd};
use std::{fmt, sync::Arc};

/// The driver, and the features that work on each device.
#[derive(Clone, Debug)]
pub struct Report {
    /// Path of the driver's library.
    pub library: String,
    /// CUDA version.
    pub version: Version,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`: hardware queues that the streams of a context share; 8 if not set.
    pub queues: Option<String>,
    /// Huge pages of host memory, as its two kinds get them.
    pub huge_pages: HugePages,
    /// Devices by ordinal.
    pub devices: Vec<DeviceReport>,
}

/// Bytes on huge pages, of [`HugePages::TRIED`] bytes of host memory; `None` if it could not be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Pinned memory of kvtide, registered with the first device.
    pub pinned_bytes: Option<u64>,
    /// Shared memory like a slab.
    pub shared_bytes: Option<u64>,
}

impl HugePages {
    /// Bytes of each kind that are tried.
    pub const TRIED: u64 = 8 << 20;

    fn of(device: Option<&Arc<Device>>) -> Self {
        let shared = || {
            let memfd = Memfd::shared("kvtide trial", Self::TRIED).ok()?;
            let map = memfd.map(Access::ReadWrite).ok()?;
            huge::mapped_bytes(map.as_ptr(), map.len())
        };
        let pinned = |device| {
            let pinned = Pinned::new(device, Self::TRIED as usize).ok()?;
            for at in (0..pinned.bytes()).step_by(4096) {
                // SAFETY: within the memory, which is ours alone. A driver that pins pages later than at registration sees them used.
                unsafe { pinned.as_ptr().add(at).write_volatile(0) };
            }
            pinned.huge_bytes()
        };
        Self { pinned_bytes: device.and_then(pinned), shared_bytes: shared() }
    }
}

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// The driver's description.
    pub info: DeviceInfo,
    /// Free memory in bytes; `None` if the query failed.
    pub free_bytes: Option<u64>,
    /// Features that work, or the reason why they could not be tried.
    pub works: Result<Works, String>,
}

/// Try every device.
pub(super) fn of(driver: &Arc<Driver>) -> Report {
    let mut first = None;
    let devices = driver.devices().iter().map(|info| {
        let opened = Device::open(driver, Which::Ordinal(info.ordinal));
        first = first.take().or_else(|| opened.as_ref().ok().cloned());
        let (free_bytes, works) = match opened {
            Ok(device) => {
                let works = device.works().cloned().map_err(|e| e.to_string());
                (device.memory().ok().map(|(free, _)| free), works)
            }
            Err(e) => (None, Err(e.to_string())),
        };
        DeviceReport { info: info.clone(), free_bytes, works }
    });
    let devices = devices.collect();
    Report {
        library: driver.library().to_owned(),
        version: driver.version(),
        queues: std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok(),
        huge_pages: HugePages::of(first.as_ref()),
        devices,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver: {}, {}", self.version, self.library)?;
        if let Some(need) = trials::kernels_need(self.version) {
            writeln!(f, "  {need}")?;
        }
        let queues = self.queues.as_deref().unwrap_or("not set: 8");
        writeln!(f, "hardware queues: CUDA_DEVICE_MAX_CONNECTIONS {queues}")?;
        let huge = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| (bytes >> 20).to_string());
        let HugePages { pinned_bytes, shared_bytes } = self.huge_pages;
        let tried = HugePages::TRIED >> 20;
        writeln!(
            f,
            "huge pages, of {tried} MiB: {} MiB of pinned memory, {} MiB of shared memory",
            huge(pinned_bytes),
            huge(shared_bytes)
        )?;
        if self.devices.is_empty() {
            writeln!(f, "no device is visible")?;
        }
        for device in &self.devices {
            device.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        let (major, minor) = info.capability;
        writeln!(f, "cuda:{}: {}{}", info.ordinal, info.name, if info.uuid.mig { " (a MIG instance)" } else { "" })?;
        let node = info.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
        writeln!(f, "  identity            {}, PCI {}, NUMA node {node}", info.uuid, info.pci)?;
        writeln!(
            f,
            "  hardware            compute capability {major}.{minor}, {} multiprocessors, {} copy engines, {} MiB L2",
            info.multiprocessors,
            info.copy_engines,
            info.l2_bytes >> 20
        )?;
        let free = self.free_bytes.map_or_else(|| "unknown".to_owned(), |free| format!("{} MiB", free >> 20));
        writeln!(f, "  memory              {} MiB, {free} of it free", info.memory_bytes >> 20)?;
        match &self.works {
            Ok(works) => works.all().iter().try_for_each(|(name, trial)| writeln!(f, "  {name:<20}{trial}")),
            Err(why) => writeln!(f, "  nothing could be tried: {why}"),
        }
    }
}

impl Report {
    /// Return the same as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let devices: Vec<String> = self.devices.iter().map(device_json).collect();
        format!(
            r#"{{"library":{},"cuda":"{}.{}","max_connections":{},"huge_pages":{},"devices":[{}]}}"#,
            quoted(&self.library),
            self.version.major,
            self.version.minor,
            self.queues.as_deref().map_or_else(|| "null".to_owned(), quoted),
            self.huge_pages.to_json(),
            devices.join(",")
        )
    }
}

impl HugePages {
    fn to_json(self) -> String {
        let number = |bytes: Option<u64>| bytes.map_or_else(|| "null".to_owned(), |bytes| bytes.to_string());
        let (pinned, shared) = (number(self.pinned_bytes), number(self.shared_bytes));
        format!(r#"{{"tried_bytes":{},"pinned_bytes":{pinned},"shared_bytes":{shared}}}"#, Self::TRIED)
    }
}

fn device_json(device: &DeviceReport) -> String {
    let info = &device.info;
    let works = match &device.works {
        Ok(works) => {
            let each = works.all().map(|(name, trial)| match trial {
                super::Trial::Works { took } => format!(r#""{name}":{{"works":true,"tried_us":{}}}"#, took.as_micros()),
                super::Trial::Fails { why } => format!(r#""{name}":{{"works":false,"why":{}}}"#, quoted(why)),
            });
            format!("{{{}}}", each.join(","))
        }
        Err(why) => format!(r#"{{"error":{}}}"#, quoted(why)),
    };
    format!(
        concat!(
            r#"{{"ordinal":{},"name":{},"uuid":"{}","mig":{},"pci":{},"numa_node":{},"compute_capability":"{}.{}","multiprocessors":{},"#,
            r#""copy_engines":{},"l2_bytes":{},"memory_bytes":{},"free_bytes":{},"works":{}}}"#
        ),
        info.ordinal,
        quoted(&info.name),
        info.uuid,
        info.uuid.mig,
        quoted(&info.pci),
        info.numa_node.map_or_else(|| "null".to_owned(), |node| node.to_string()),
        info.capability.0,
        info.capability.1,
        info.multiprocessors,
        info.copy_engines,
        info.l2_bytes,
        info.memory_bytes,
        device.free_bytes.map_or_else(|| "null".to_owned(), |free| free.to_string()),
        works,
    )
}

/// Return a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_from_a_driver_cannot_break_the_json() {
        assert_eq!(super::quoted("a\"b\\c\nd"), r#""a\"b\\c\u000ad""#);
    }
}
