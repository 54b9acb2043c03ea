//! Settings of this process's stand-in, read from the environment at its first call.

use std::sync::OnceLock;

/// Maximum number of devices.
pub(crate) const DEVICES_MAX: usize = 8;

/// Settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub seed: u64,
    pub devices: usize,
    /// Bytes of each device.
    pub memory: usize,
    /// Version in CUDA's encoding: 12080 is 12.8.
    pub version: i32,
    /// Calls that wait for the whole device keep every other call from enqueueing, and fail at once if a stream waits for a word.
    /// Streams share hardware queues. For processes with one test at a time: other tests' streams would count too.
    pub strict: bool,
    /// Number of hardware queues.
    pub connections: u64,
}

/// Return the settings.
pub(crate) fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        seed: number("KVTIDE_SIM_SEED", 0x5eed),
        devices: (number("KVTIDE_SIM_DEVICES", 1) as usize).min(DEVICES_MAX),
        memory: number("KVTIDE_SIM_MEMORY", 16 << 30) as usize,
        version: number("KVTIDE_SIM_VERSION", 12080) as i32,
        strict: number("KVTIDE_SIM_STRICT", 0) != 0,
        connections: number("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32),
    })
}

/// Return a number from the environment. An invalid one ends the process, because the test would prove nothing.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("kvtide stand-in: {name}={text} is not a number");
            std::process::abort()
        }),
    }
}
