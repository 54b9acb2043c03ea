//! Any text as a configuration, on machines of any size and with any command line. The result is an error that names the file,
//! or a configuration. A configuration can be explained, checked and listed, and its reload changes nothing.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_fuzz::config::{ByteSize, Capacity, CgroupLimit, Config, Machine, Overrides};
use libfuzzer_sys::fuzz_target;

const NAME: &str = "k.toml";

/// Return a machine with sizes from the input; the real machine is not inspected.
fn machine(bytes: &mut Bytes<'_>) -> Machine {
    let size = |shift: u8| 1u64.checked_shl(u32::from(shift)).unwrap_or(0);
    let total_bytes = size(bytes.byte());
    let cgroup = CgroupLimit { file: "/c/memory.max".into(), bytes: size(bytes.byte()) };
    let available_bytes = size(bytes.byte()).min(total_bytes);
    Machine {
        total_bytes,
        available_bytes,
        cgroup: Some(cgroup).filter(|limit| limit.bytes > 0),
        disk_bytes: Some(total_bytes),
    }
}

fn overrides(bytes: &mut Bytes<'_>) -> Overrides {
    let (which, shift) = (bytes.byte(), u32::from(bytes.byte() % 64));
    let given = |bit: u8| which >> bit & 1 == 1;
    let (size, capacity) = (Some(ByteSize(1 << shift)), Some(Capacity::Bytes(1 << shift)));
    Overrides {
        socket: given(0).then(|| "/s/kvtide.sock".into()),
        dir: given(1).then(|| "/s".into()),
        host_bytes: capacity.filter(|_| given(2)),
        slab_bytes: size.filter(|_| given(3)),
        scan_frames: given(4).then_some(shift),
        nvme_dir: given(5).then(|| "/n".into()),
        nvme_bytes: capacity.filter(|_| given(6)),
        remove_dir: given(6),
        http: given(7).then(String::new),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let (machine, overrides) = (machine(&mut bytes), overrides(&mut bytes));
    let text = String::from_utf8_lossy(bytes.0);
    let config = match Config::parse(NAME, &text, &overrides, &machine) {
        Ok(config) => config,
        Err(error) => return assert!(error.to_string().starts_with(NAME), "{error}"),
    };
    // The check whether the machine has enough memory does not panic.
    let _ = machine.holds(&config.tiers.host);
    for finding in config.inversions() {
        assert!(!finding.key.is_empty() && !finding.text.is_empty());
    }
    assert!(config.explanation().iter().all(|section| !section.lines.is_empty()));
    let settings = config.settings();
    assert!(settings.iter().all(|setting| !setting.value.is_empty()));
    let (same, changes) = config.reloaded(config.clone());
    assert!(changes.is_empty() && same == config, "{changes:?}");
    // A reload from the defaults to it changes no value that needs a restart.
    let Ok(defaults) = Config::parse(NAME, "", &Overrides::default(), &machine) else { return };
    let (next, _) = defaults.reloaded(config);
    assert_eq!(next.tiers.host.capacity_bytes, defaults.tiers.host.capacity_bytes);
    assert!(next.nvme().is_none());
});
