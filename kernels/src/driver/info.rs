//! The driver's description of its devices.

use super::Driver;
use crate::{Error, Result};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUdevice_attribute_enum as Attribute};
use kvtide_wire::os::numa;
use std::{fmt, path::Path, str::FromStr};

/// A CUDA version, for example 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 12.
    pub major: u32,
    /// 8.
    pub minor: u32,
}

impl Version {
    /// The oldest supported driver: 12.0 (driver package 525). The kernels need [`Self::KERNELS`] in addition.
    pub const NEEDED: Self = Self { major: 12, minor: 0 };

    /// The oldest driver that compiles the shipped kernels: their PTX is ISA 8.4, which came with CUDA 12.4 (driver package 550).
    pub const KERNELS: Self = Self { major: 12, minor: 4 };

    /// Decode CUDA's encoding: 12080 is 12.8.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}.{}", self.major, self.minor)
    }
}

/// Identity of a device, or of a MIG instance: the same in every process and after every boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid {
    /// Its 16 bytes.
    pub bytes: [u8; 16],
    /// Whether it identifies a MIG instance.
    pub mig: bool,
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mig { "MIG" } else { "GPU" })?;
        for (at, byte) in self.bytes.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = Error;

    /// Parse `GPU-` or `MIG-` followed by 32 hexadecimal digits with hyphens anywhere between them.
    fn from_str(text: &str) -> Result<Self> {
        let bad =
            || Error::invalid("UUID of a device", format!("`{text}` is not GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"));
        let (mig, digits) = match (text.strip_prefix("GPU-"), text.strip_prefix("MIG-")) {
            (Some(digits), _) => (false, digits),
            (_, Some(digits)) => (true, digits),
            _ => return Err(bad()),
        };
        let mut bytes = [0; 16];
        let mut filled = 0;
        for digit in digits.chars().filter(|&c| c != '-') {
            let value = digit.to_digit(16).ok_or_else(bad)? as u8;
            let byte = bytes.get_mut(filled / 2).ok_or_else(bad)?;
            *byte = *byte << 4 | value;
            filled += 1;
        }
        if filled == 32 { Ok(Self { bytes, mig }) } else { Err(bad()) }
    }
}

/// A device as the driver describes it. [`super::Works`] lists the features that really work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process; `CUDA_VISIBLE_DEVICES` changes it.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Its address on the PCI bus: domain:bus:device.function.
    pub pci: String,
    /// NUMA node whose memory is nearest to it; `None` if the system does not say.
    pub numa_node: Option<u16>,
    /// Compute capability, for example (9, 0).
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Maximum shared memory of a block, in bytes.
    pub shared_bytes_max: u32,
    /// Copy engines that can work at the same time.
    pub copy_engines: u32,
    pub(super) raw: CUdevice,
}

impl DeviceInfo {
    /// Return a name for messages: ordinal, model and identity.
    #[must_use]
    pub fn label(&self) -> String {
        format!("cuda:{} ({}, {})", self.ordinal, self.name, self.uuid)
    }
}

/// Return all devices that this process may see.
pub(super) fn devices(driver: &Driver) -> Result<Vec<DeviceInfo>> {
    let mut count = 0;
    // SAFETY: writes one int.
    let code = unsafe { (driver.api.cuDeviceGetCount)(&mut count) };
    driver.check(code, "cuDeviceGetCount", || driver.library().to_owned())?;
    (0..u32::try_from(count).unwrap_or(0)).map(|ordinal| device(driver, ordinal)).collect()
}

fn device(driver: &Driver, ordinal: u32) -> Result<DeviceInfo> {
    let api = &driver.api;
    let on = || format!("cuda:{ordinal}");
    let mut raw = 0;
    // SAFETY: writes one handle.
    let code = unsafe { (api.cuDeviceGet)(&mut raw, ordinal as i32) };
    driver.check(code, "cuDeviceGet", on)?;

    let mut text = [0; 256];
    // SAFETY: writes at most the given length, zero byte included.
    let code = unsafe { (api.cuDeviceGetName)(text.as_mut_ptr(), text.len() as i32, raw) };
    driver.check(code, "cuDeviceGetName", on)?;
    let name = string(&text);

    text.fill(0);
    // SAFETY: as above.
    let code = unsafe { (api.cuDeviceGetPCIBusId)(text.as_mut_ptr(), text.len() as i32, raw) };
    driver.check(code, "cuDeviceGetPCIBusId", on)?;
    let pci = string(&text);

    // The first call returns the identity of the whole GPU, the second that of the MIG instance if it is one.
    let (mut whole, mut own) = (zero_uuid(), zero_uuid());
    // SAFETY: writes 16 bytes.
    let code = unsafe { (api.cuDeviceGetUuid)(&mut whole, raw) };
    driver.check(code, "cuDeviceGetUuid", on)?;
    // SAFETY: as above.
    let code = unsafe { (api.cuDeviceGetUuid_v2)(&mut own, raw) };
    driver.check(code, "cuDeviceGetUuid_v2", on)?;

    let mut memory_bytes = 0;
    // SAFETY: writes one size.
    let code = unsafe { (api.cuDeviceTotalMem_v2)(&mut memory_bytes, raw) };
    driver.check(code, "cuDeviceTotalMem_v2", on)?;

    let attribute = |which| attribute(driver, raw, ordinal, which);
    Ok(DeviceInfo {
        ordinal,
        uuid: Uuid { bytes: own.bytes.map(|b| b as u8), mig: whole.bytes != own.bytes || name.contains(" MIG ") },
        name,
        numa_node: numa::of_pci_device(Path::new("/"), &pci),
        pci,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_bytes_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        raw,
    })
}

fn attribute(driver: &Driver, raw: CUdevice, ordinal: u32, which: CUdevice_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: writes one int.
    let code = unsafe { (driver.api.cuDeviceGetAttribute)(&mut value, which, raw) };
    driver.check(code, "cuDeviceGetAttribute", || format!("cuda:{ordinal}, {which:?}"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn zero_uuid() -> cudarc::driver::sys::CUuuid {
    cudarc::driver::sys::CUuuid { bytes: [0; 16] }
}

/// Return the text before the first zero byte.
fn string(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|&&b| b != 0).map(|&b| b as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Uuid, Version};

    #[test]
    fn an_identity_reads_as_it_is_written() {
        let uuid = Uuid { bytes: *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77", mig: false };
        assert_eq!(uuid.to_string(), "GPU-01234567-89ab-cdef-0011-223344556677");
        for mig in [false, true] {
            let uuid = Uuid { mig, ..uuid };
            assert_eq!(uuid.to_string().parse::<Uuid>().unwrap(), uuid);
        }
        for bad in [
            "",
            "GPU-",
            "GPU-0123",
            "0123456789abcdef0011223344556677",
            "GPU-0123456789abcdef00112233445566778",
            "GPU-zz",
        ] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(Version::from_number(12080).to_string(), "CUDA 12.8");
        assert!(Version::from_number(11080) < Version::NEEDED);
        assert!(Version::from_number(12000) >= Version::NEEDED);
        assert!(Version::from_number(13010) > Version::KERNELS);
        assert!(Version::from_number(-1) < Version::NEEDED);
    }
}
