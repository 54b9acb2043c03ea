//! From the parsed file to a configuration: the command line, defaults that depend on other keys or on the machine, and the rules
//! about several keys.

use super::constants::{self, KIB};
use super::kinds::{Extent, Kind};
use super::origin::{Given, Origins, position};
use super::room;
use super::section::Section;
use super::table::{Config, Domain, Encryption, RawConfig, RawDisk};
use super::words;
use super::{ConfigError, FeatureUse, IoEngine, KeyKind, Machine, Overrides, Place};
use kvtide_types::{ByteSize, Capacity, Reserve};
use kvtide_wire::hello::SOCKET_BYTES_MAX;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Create an error for invalid TOML or an unknown key, with its position and its line.
pub(super) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let (line, column) = error.span().map_or((1, 1), |span| position(text, span.start));
    let snippet = text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
    let message = words::own(error.message());
    ConfigError::Syntax { file: file.into(), line, column, snippet, message }
}

/// Return the known name that is most similar to an unknown one, if any is similar.
#[must_use]
pub fn most_like<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |name: &str| strsim::jaro_winkler(unknown, name);
    let best = known.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) > 0.8).then_some(best)
}

pub(super) fn resolve(
    file: &str,
    text: &str,
    mut raw: RawConfig,
    overrides: &Overrides,
    machine: &Machine,
) -> Result<Config, ConfigError> {
    paths_are_text(file, overrides)?;
    command_line(&mut raw, overrides);
    dependent_defaults(file, &mut raw, machine)?;
    let origins = &mut Origins::new(file, text);
    let mut config = Config::resolve(raw, "", origins)?;
    let memory = machine.memory_bytes();
    config.limits.entries_max = entries_max(memory);
    config.limits.tables_bytes_max = memory / constants::TABLES_PART;
    daemon(&config, origins)?;
    watermarks(&config, origins)?;
    host(&config, origins)?;
    disks(&config, origins)?;
    encryption(&config.tiers.nvme.encryption, origins)?;
    limits(&config, origins)?;
    domains(&mut config, origins)?;
    Ok(config)
}

/// Refuse paths of the command line that are not UTF-8: the status, metrics and the log show them as text. A file is always UTF-8.
fn paths_are_text(file: &str, overrides: &Overrides) -> Result<(), ConfigError> {
    let paths =
        [("--socket", &overrides.socket), ("--dir", &overrides.dir), ("--nvme-dir", &overrides.nvme_dir)].into_iter();
    for (flag, path) in paths.filter_map(|(flag, path)| Some((flag, path.as_ref()?))) {
        if path.to_str().is_none() {
            return Err(ConfigError::Value {
                file: file.to_owned(),
                value: format!("{flag} = {path:?}"),
                expected: "a path in UTF-8, because the status and metrics show it as text".to_owned(),
            });
        }
    }
    Ok(())
}

/// Replace values of the file by those of the command line.
fn command_line(raw: &mut RawConfig, overrides: &Overrides) {
    raw.daemon.socket.flag("--socket", overrides.socket.clone());
    raw.daemon.dir.flag("--dir", overrides.dir.clone());
    raw.http.listen.flag("--http", overrides.http.clone());
    raw.tiers.host.capacity_bytes.flag("--host-bytes", overrides.host_bytes);
    raw.tiers.host.slab_bytes.flag("--slab-bytes", overrides.slab_bytes);
    raw.edges.host_to_tier0.frames.flag("--scan-frames", overrides.scan_frames);
    let Some(dir) = &overrides.nvme_dir else { return };
    let first = raw.tiers.nvme.disks.drain(..).next().filter(|disk| disk.device.get().is_none());
    let mut reserve_free = first.map(|disk| disk.reserve_free).unwrap_or_default();
    if overrides.remove_dir {
        reserve_free.default_to(Reserve::Bytes(0));
    }
    let mut disk = RawDisk { dir: Given::Flag("--nvme-dir", dir.clone()), reserve_free, ..RawDisk::default() };
    disk.capacity_bytes.flag("--nvme-bytes", overrides.nvme_bytes);
    raw.tiers.nvme.disks.push(disk);
}

/// Set the defaults and the percentages that depend on other keys or on the machine.
fn dependent_defaults(file: &str, raw: &mut RawConfig, machine: &Machine) -> Result<(), ConfigError> {
    if let Some(dir) = raw.daemon.dir.get() {
        raw.daemon.socket.default_to(dir.join(constants::SOCKET_NAME));
    }
    let host = &mut raw.tiers.host;
    host.capacity_bytes.default_to(Capacity::Bytes(default_capacity(machine)));
    host.capacity_bytes.change(|capacity| match capacity {
        Capacity::Percent(percent) => {
            Ok::<_, ConfigError>(Capacity::Bytes(room::part(machine.memory_bytes(), *percent)))
        }
        other => Ok(*other),
    })?;
    let capacity = host.capacity_bytes.get().and_then(Extent::number).unwrap_or_default();
    host.slab_bytes.default_to(ByteSize(constants::SLAB.min(capacity)));
    let nvme = &mut raw.tiers.nvme;
    for (index, disk) in nvme.disks.iter_mut().enumerate() {
        let given = |path: &Given<PathBuf>| path.get().filter(|path| !path.as_os_str().is_empty()).cloned();
        let (dir, device) = (given(&disk.dir), given(&disk.device));
        if device.is_some() {
            // A raw device has no file system.
            disk.reserve_free.default_to(Reserve::Bytes(0));
        }
        let place = match (&dir, &device) {
            (Some(dir), _) => Place::Dir(dir),
            (None, Some(device)) => Place::Device(device),
            // An error that names both keys follows.
            (None, None) => continue,
        };
        disk.capacity_bytes.default_to(Capacity::Max);
        let reserve = disk.reserve_free.get().copied().unwrap_or(constants::RESERVE_FREE);
        let slab = nvme.slab_bytes.get().map(|size| size.0);
        disk.capacity_bytes.change(|capacity| {
            let refused = |error| ConfigError::Value {
                file: file.to_owned(),
                value: format!("tiers.nvme.disks[{index}].capacity = {capacity}"),
                expected: format!("a size, because that of {} cannot be determined: {error}", place.path().display()),
            };
            room::disk(*capacity, place, reserve, slab, machine.disk_bytes).map(Capacity::Bytes).map_err(refused)
        })?;
    }
    let smallest = nvme.disks.iter().filter_map(|disk| Extent::number(disk.capacity_bytes.get()?)).min();
    if let Some(smallest) = smallest {
        nvme.slab_bytes.default_to(ByteSize(constants::default_nvme_slab(smallest)));
    }
    let limits = &mut raw.limits;
    if let Some(blocks) = limits.blocks_max.get().filter(|blocks| **blocks > 0) {
        limits.seq_blocks_max.default_to(constants::SEQ_BLOCKS_MAX.min(*blocks));
    }
    if let Some(sessions) = limits.sessions_max.get() {
        let most = u32::from(constants::SPACE_SESSIONS_MAX);
        limits.space_sessions_max.default_to(most.min(*sessions) as u16);
    }
    Ok(())
}

/// Return the default host capacity: half of the available memory, in whole slabs. Engines keep the other half.
fn default_capacity(machine: &Machine) -> u64 {
    let half = machine.available_bytes / 2;
    (half - half % constants::SLAB).clamp(constants::HOST_CAPACITY_MIN, constants::HOST_CAPACITY_MAX)
}

/// Return the maximum number of blocks in the index of a space for the memory of the machine.
fn entries_max(memory_bytes: u64) -> u32 {
    let entries = memory_bytes / constants::INDEX_PART / constants::INDEX_BYTES;
    u32::try_from(entries).unwrap_or(u32::MAX).clamp(constants::ENTRIES_MIN, constants::ENTRIES_MAX)
}

fn daemon(config: &Config, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let most = constants::SOCKET_PATH_BYTES_MAX;
    let bytes = config.daemon.socket.as_os_str().len();
    if bytes <= most {
        return Ok(());
    }
    if origins.is_given("daemon.socket") {
        return Err(origins.wrong("daemon.socket", format!("a path of at most {most} bytes; it has {bytes}")));
    }
    // Its default is in the directory, which is the value to change.
    let name = constants::SOCKET_NAME;
    let (dir, dir_most) = (config.daemon.dir.as_os_str().len(), most - name.len() - 1);
    let expected = format!(
        "a path of at most {dir_most} bytes, because the socket {name} is in it; it has {dir}. Set a shorter one, or daemon.socket"
    );
    Err(origins.wrong("daemon.dir", expected))
}

fn watermarks(config: &Config, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let tiers = &config.tiers;
    for (table, low, high) in [
        ("tiers.host", tiers.host.low_percent, tiers.host.high_percent),
        ("tiers.nvme", tiers.nvme.low_percent, tiers.nvme.high_percent),
    ] {
        if low > high {
            let key = |end| format!("{table}.{end}_percent");
            let rule = "the low watermark must not be above the high one";
            return Err(origins.contradiction(&key("low"), &key("high"), rule));
        }
    }
    Ok(())
}

fn host(config: &Config, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let host = &config.tiers.host;
    if host.slab_bytes > host.capacity_bytes {
        let rule = "a slab must fit into the host tier";
        return Err(origins.contradiction("tiers.host.slab", "tiers.host.capacity", rule));
    }
    let streaming = u64::from(config.edges.nvme_to_host.frames) * 4 * KIB;
    if config.nvme().is_some() && streaming > host.capacity_bytes {
        let rule = "the host tier must hold this many frames of at least 4 KiB";
        return Err(origins.contradiction("tiers.host.capacity", "edges.nvme_to_host.scan_frames", rule));
    }
    Ok(())
}

fn disks(config: &Config, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let nvme = &config.tiers.nvme;
    let key = |index: usize, field: &str| format!("tiers.nvme.disks[{index}].{field}");
    let mut paths: HashMap<PathBuf, String> = HashMap::new();
    for (index, disk) in nvme.disks.iter().enumerate() {
        let key = |field| key(index, field);
        let path = match (&disk.dir, &disk.device) {
            (Some(_), Some(_)) => {
                let rule = "a disk is either a directory or a raw device; remove one of them";
                return Err(origins.contradiction(&key("dir"), &key("device"), rule));
            }
            (None, None) => return Err(origins.wrong(&key("capacity"), "`dir` or `device` in the same table")),
            (Some(dir), None) => dir,
            (None, Some(_)) if origins.is_given(&key("reserve_free")) => {
                let rule = "a raw device has no file system; remove reserve_free";
                return Err(origins.contradiction(&key("reserve_free"), &key("device"), rule));
            }
            (None, Some(device)) => device,
        };
        let own = key(disk.place().key());
        if index >= constants::DISKS_MAX {
            return Err(origins.wrong(&own, format!("at most {} disks", constants::DISKS_MAX)));
        }
        if let Some(other) = paths.insert(normal(path), own.clone()) {
            return Err(origins.contradiction(&own, &other, "two disks cannot use the same directory or device"));
        }
        if nvme.slab_bytes > disk.capacity_bytes {
            let rule = "a slab must fit into every disk";
            return Err(origins.contradiction("tiers.nvme.slab", &key("capacity"), rule));
        }
    }
    if !nvme.slab_bytes.is_multiple_of(constants::NVME_ALIGN) {
        return Err(origins.wrong("tiers.nvme.slab", format!("a multiple of {}", constants::NVME_ALIGN)));
    }
    if nvme.io == IoEngine::Threads && nvme.registered == FeatureUse::Required {
        let rule = "only io_uring can register memory";
        return Err(origins.contradiction("tiers.nvme.registered", "tiers.nvme.io", rule));
    }
    Ok(())
}

/// Normalize a path: remove `.`, doubled and trailing slashes.
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Check `[tiers.nvme.encryption]`. A path or a name that the kind of key does not use is an error, because the operator expects it
/// to be used.
fn encryption(encryption: &Encryption, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let key = |field: &str| format!("tiers.nvme.encryption.{field}");
    if origins.is_given(&key("path")) && encryption.key != KeyKind::File {
        return Err(origins.contradiction(&key("path"), &key("key"), "a path is used with key = \"file\" only"));
    }
    if origins.is_given(&key("name")) && encryption.key != KeyKind::Credential {
        return Err(origins.contradiction(&key("name"), &key("key"), "a name is used with key = \"credential\" only"));
    }
    if encryption.key == KeyKind::Ephemeral && !encryption.new_slabs {
        let rule = "an ephemeral key cannot read existing slabs; use new_slabs = true";
        return Err(origins.contradiction(&key("new_slabs"), &key("key"), rule));
    }
    if encryption.key == KeyKind::File && encryption.path.is_none() {
        return Err(origins.wrong(&key("key"), "`path`, the file of the key, in the same table"));
    }
    let name = encryption.name.as_str();
    let is_file_name = !name.is_empty()
        && name.len() <= constants::CREDENTIAL_BYTES_MAX
        && !name.contains(['/', '\0'])
        && name != "."
        && name != "..";
    if !is_file_name {
        return Err(origins.wrong(&key("name"), "a credential name, which is a file name without a directory"));
    }
    Ok(())
}

fn limits(config: &Config, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let limits = &config.limits;
    if limits.blocks_max.is_some_and(|blocks_max| limits.seq_blocks_max > blocks_max) {
        let rule = "a sequence cannot have more blocks than its space";
        return Err(origins.contradiction("limits.seq_blocks_max", "limits.blocks_max", rule));
    }
    if u32::from(limits.space_sessions_max) > limits.sessions_max {
        let rule = "a space cannot have more sessions than the daemon";
        return Err(origins.contradiction("limits.space_sessions_max", "limits.sessions_max", rule));
    }
    Ok(())
}

/// Check `[[domains]]` and fill in the quotas: one that is not given becomes the limit of the daemon.
fn domains(config: &mut Config, origins: &mut Origins<'_>) -> Result<(), ConfigError> {
    let (host_bytes, nvme_bytes) = (config.tiers.host.capacity_bytes, config.tiers.nvme.capacity_bytes());
    let sessions_max = config.limits.sessions_max;
    if config.domains.is_empty() {
        config.domains.push(Domain {
            name: "default".into(),
            uids: vec![rustix::process::geteuid().as_raw()],
            tokens: Vec::new(),
            relay_uids: Vec::new(),
            relay_tokens: Vec::new(),
            relay_socket: PathBuf::new(),
            host_bytes,
            nvme_bytes,
            sessions_max,
            has_whole_host: true,
            has_whole_nvme: true,
        });
        return Ok(());
    }
    let nvme_key = match config.tiers.nvme.disks.len() {
        0 => "tiers.nvme.disks",
        1 => "tiers.nvme.disks[0].capacity",
        _ => "the sum of tiers.nvme.disks",
    };
    if nvme_key != "tiers.nvme.disks[0].capacity" {
        origins.derived(nvme_key, ByteSize(nvme_bytes));
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut owners: HashMap<(&str, u32), usize> = HashMap::new();
    let mut tokens: HashMap<&Path, (usize, &str)> = HashMap::new();
    for (index, domain) in config.domains.iter().enumerate() {
        one_domain(index, domain, origins)?;
        let key = |index: usize, field: &str| format!("domains[{index}].{field}");
        if let Some(other) = names.insert(&domain.name, index) {
            let rule = "domain names must be unique";
            return Err(origins.contradiction(&key(index, "name"), &key(other, "name"), rule));
        }
        for (field, uids) in [("uids", &domain.uids), ("relay_uids", &domain.relay_uids)] {
            for uid in uids {
                if let Some(other) = owners.insert((field, *uid), index) {
                    let rule = format!("uid {uid} can belong to one domain only; list it once");
                    return Err(origins.contradiction(&key(index, field), &key(other, field), rule));
                }
            }
        }
        for (field, paths) in [("tokens", &domain.tokens), ("relay_tokens", &domain.relay_tokens)] {
            for path in paths {
                if let Some((other, of)) = tokens.insert(path, (index, field)) {
                    let rule = format!("{} can belong to one domain and one role only; list it once", path.display());
                    return Err(origins.contradiction(&key(index, field), &key(other, of), rule));
                }
            }
        }
    }
    for (index, domain) in config.domains.iter_mut().enumerate() {
        let key = |field: &str| format!("domains[{index}].{field}");
        domain.has_whole_host = !origins.is_given(&key("host"));
        domain.has_whole_nvme = !origins.is_given(&key("nvme"));
        for (field, quota, whole, limit, rule) in [
            ("host", &mut domain.host_bytes, host_bytes, "tiers.host.capacity", "must fit into the host tier"),
            ("nvme", &mut domain.nvme_bytes, nvme_bytes, nvme_key, "must fit into the NVMe tier"),
        ] {
            if !origins.is_given(&key(field)) {
                *quota = whole;
            } else if *quota > whole {
                return Err(origins.contradiction(&key(field), limit, format_args!("the quota of a domain {rule}")));
            }
        }
        if !origins.is_given(&key("sessions_max")) {
            domain.sessions_max = sessions_max;
        } else if domain.sessions_max > sessions_max {
            let rule = "a domain cannot have more sessions than the daemon";
            return Err(origins.contradiction(&key("sessions_max"), "limits.sessions_max", rule));
        }
    }
    Ok(())
}

fn one_domain(index: usize, domain: &Domain, origins: &Origins<'_>) -> Result<(), ConfigError> {
    let key = |field: &str| format!("domains[{index}].{field}");
    if domain.name.is_empty() || domain.name.len() > 64 || domain.name.chars().any(char::is_control) {
        return Err(origins.wrong(&key("name"), "a name of 1 to 64 bytes without control characters"));
    }
    if domain.uids.is_empty() && domain.tokens.is_empty() {
        let rule = "a domain needs a uid or a token; without them no client can attach";
        return Err(origins.contradiction(&key("uids"), &key("tokens"), rule));
    }
    for (field, paths) in [("tokens", &domain.tokens), ("relay_tokens", &domain.relay_tokens)] {
        if paths.len() > constants::TOKENS_MAX {
            return Err(origins.wrong(&key(field), format_args!("at most {} files", constants::TOKENS_MAX)));
        }
        if !paths.iter().all(|path| path.is_absolute()) {
            return Err(origins.wrong(&key(field), "absolute paths"));
        }
    }
    let socket = &domain.relay_socket;
    if !socket.as_os_str().is_empty() && (!socket.is_absolute() || socket.as_os_str().len() > SOCKET_BYTES_MAX) {
        let expected = format_args!("an absolute path of at most {SOCKET_BYTES_MAX} bytes").to_string();
        return Err(origins.wrong(&key("relay_socket"), expected));
    }
    Ok(())
}
