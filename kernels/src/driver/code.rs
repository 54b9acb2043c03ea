//! Results of the driver as numbers, because a newer driver may return an unknown one.

/// A `CUresult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub u32);

impl Code {
    pub const SUCCESS: Self = Self(0);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_READY: Self = Self(600);

    /// Return whether the context is unusable afterwards: every later call returns the code again.
    ///
    /// These are the codes that the driver's reference describes as leaving "the process in an inconsistent state", and those of a
    /// removed device: 4 deinitialised, 46 unavailable, 214 ECC, 220 NVLink, 226 contained, 700 illegal address, 702 launch
    /// timeout, 709 context destroyed, 710 assert, 714 to 719 faults of a kernel, 721 tensor memory leak, 810 MPS client
    /// terminated, 911 external device, 999 unknown.
    pub fn is_lost(self) -> bool {
        matches!(self.0, 4 | 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 911 | 999)
    }

    /// Return whether the driver did not answer because of a graph capture in the process: 900 to 908. That says nothing about the
    /// work that was asked about: ask again.
    pub fn is_capture(self) -> bool {
        matches!(self.0, 900..=908)
    }

    /// Return the usual cause of a failure of cuInit.
    pub fn hint(self) -> &'static str {
        match self.0 {
            3 | 999 => "the kernel module may not be loaded, or a device node under /dev may be missing (container?)",
            34 => "this is the toolkit's stub library, not a driver: take its folder out of LD_LIBRARY_PATH",
            100 => "no GPU is visible: check CUDA_VISIBLE_DEVICES and the devices of the container",
            802 => "the system is not ready: on NVSwitch machines the fabric manager must run",
            803 => {
                "kernel module and library differ in version: reboot, or mount the host's library into the container"
            }
            804 => "the forward compatibility package does not support this GPU",
            805..=810 => "the environment requests MPS, which does not respond",
            _ => "see the driver's log (dmesg)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn a_full_memory_or_a_running_copy_does_not_lose_the_device() {
        for code in [Code::SUCCESS, Code::OUT_OF_MEMORY, Code::NOT_READY, Code(1), Code(801)] {
            assert!(!code.is_lost(), "{code:?}");
        }
        assert!(Code(700).is_lost() && Code(719).is_lost() && Code(46).is_lost());
    }
}
