//! Parsing and validation of configuration files, and the text of errors.

use super::section::Shown;
use super::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A machine with a default host tier of 2 GiB.
fn machine() -> Machine {
    Machine { total_bytes: 8 << 30, available_bytes: 4 << 30, cgroup: None, disk_bytes: None }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("k.toml", text, &Overrides::default(), &machine()).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    parse(text).expect_err("the file must be rejected")
}

const REFERENCE: &str = include_str!("../../../configs/kvtided.toml");

/// Return the reference with the given marks removed, so that the marked lines take effect.
fn reference(marks: &[&str]) -> String {
    let line = |line: &str| marks.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).to_owned() + "\n";
    REFERENCE.lines().map(line).collect()
}

#[test]
fn an_empty_file_is_the_defaults_and_the_reference_states_them() {
    let defaults = parse("").unwrap();
    assert_eq!(parse(REFERENCE).unwrap(), defaults, "configs/kvtided.toml shows other values than the defaults");
    // With a disk and a domain, so that their defaults count too.
    let examples = parse(&reference(&["#: "])).unwrap();
    assert!(examples.nvme().is_some() && examples.domains.len() == 1);
    assert_eq!(parse(&reference(&["#: ", "#= "])).unwrap(), examples, "a value after \"#= \" is not the default");
    assert_eq!(parse(&reference(&["#= "])).unwrap(), defaults);
}

#[test]
fn the_reference_is_the_committed_one() {
    committed("../../configs/kvtided.toml", &super::reference());
    committed("../../docs/reference/configuration.md", &page());
}

/// Compare a generated file with the committed one, or write it with `KVTIDE_BLESS=1`.
fn committed(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("KVTIDE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let bless = "KVTIDE_BLESS=1 cargo test -p kvtide-daemon reference";
    assert!(found == text, "{} differs from the table of keys; {bless} writes it", path.display());
}

/// Return the reference as a page.
fn page() -> String {
    let mut text = "\
# Configuration

Generated from the table of keys (src/daemon/config/table.rs) by `KVTIDE_BLESS=1 cargo test -p kvtide-daemon reference`. As a file
with every key: [configs/kvtided.toml](../../configs/kvtided.toml), which `kvtide config keys` prints.

Every key is optional. Unknown keys are errors. A size is a number of bytes, or a number and a unit: KiB, MiB, GiB, TiB or PiB. A
changed file is read on SIGHUP; the last column says when a changed value takes effect.
"
    .to_owned();
    for table in reference::tables() {
        if table.rows.is_empty() && table.docs.is_empty() {
            continue;
        }
        let name = if table.is_list { format!("[[{}]]", table.path) } else { format!("[{}]", table.path) };
        text.push_str(&format!("\n## `{name}`\n"));
        if !table.docs.is_empty() {
            text.push_str(&format!("\n{}\n", table.docs.join("\n").replace("\n ", "\n").trim()));
        }
        if table.rows.is_empty() {
            continue;
        }
        text.push_str("\n| key | default | allowed | meaning | takes effect |\n| --- | --- | --- | --- | --- |\n");
        for row in table.rows {
            let default = match row.shown {
                Shown::Default => format!("`{}`", row.default.unwrap_or_default()),
                Shown::Example(example) | Shown::Alternative(example) => format!("e.g. `{example}`"),
            };
            let allowed = row.allowed.unwrap_or_default();
            // The lines of a list stand apart.
            let docs = row.docs.concat().trim().replace("   \"", "<br>\"").replace('|', "\\|");
            let docs: Vec<_> = docs.split_whitespace().collect();
            let row = format!(
                "| `{}` | {default} | {allowed} | {} | {} |\n",
                row.key,
                docs.join(" "),
                reference::when(row.effect)
            );
            text.push_str(&row);
        }
    }
    text
}

#[test]
fn every_example_is_fine_on_the_machine_that_it_is_for() {
    for (name, text) in [
        ("workstation-24g.toml", include_str!("../../../configs/workstation-24g.toml")),
        ("host-8gpu.toml", include_str!("../../../configs/host-8gpu.toml")),
        ("cpu-host.toml", include_str!("../../../configs/cpu-host.toml")),
        ("kvtided.toml", REFERENCE),
    ] {
        let machine = Machine { available_bytes: 64 << 30, disk_bytes: Some(4 << 40), ..machine() };
        let config = Config::parse(name, text, &Overrides::default(), &machine).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(config.inversions(), [], "{name}");
    }
}

#[test]
fn the_nearest_known_key_is_named() {
    let named = |text: &str| refused(text).lines().next().unwrap_or_default().to_owned();
    assert!(named("[tiers.host]\ncapcity = 1\n").contains("; did you mean `capacity`?"));
    assert!(named("[tier]\n").contains("; did you mean `tiers`?"));
    assert!(named("[edges.nvme_to_hos]\n").contains("; did you mean `nvme_to_host`?"));
    assert!(named("[tiers.nvme]\nio = \"iouring\"\n").contains("; did you mean `io_uring`?"));
    assert!(!named("[tiers.host]\nxyz = 1\n").contains("did you mean"));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_what_is_allowed() {
    let error = refused("[tiers.host]\ncapacity = \"1GiB\"\ncapcity = \"2GiB\"\n");
    assert!(error.starts_with("k.toml:3:1: unknown key `capcity`; did you mean `capacity`? Known here: "), "{error}");
    assert!(error.contains("`capacity`") && error.contains("`low_percent`"), "{error}");
    let error = refused("[tiers.hots]\n");
    assert!(
        error.starts_with("k.toml:1:8: unknown key `hots`; did you mean `host`? Known here: `host`, `nvme`"),
        "{error}"
    );
    let error = refused("[[domains]]\nname = \"a\"\nuids = [1]\ngid = 3\n");
    assert!(error.starts_with("k.toml:4:1: unknown key `gid`"), "{error}");
}

#[test]
fn wrong_types_sizes_and_syntax_name_their_line() {
    let error = refused("\n[limits]\nblocks_max = \"many\"\n");
    assert!(
        error.starts_with("k.toml:3:14: ")
            && error.contains("expected a whole number from 0 to 4294967295, found \"many\""),
        "{error}"
    );
    let error = refused("[tiers.host]\ncapacity = \"2GB\"\n");
    assert!(error.starts_with("k.toml:2:12: invalid size \"2GB\"") && error.contains("GiB"), "{error}");
    let error = refused("[limits\n");
    assert!(error.starts_with("k.toml:1:"), "{error}");
    let error = refused("[[domains]]\nuids = [1]\n");
    assert!(error.contains("domains[0].name = \"\" (the default): expected a name"), "{error}");
}

#[test]
fn values_out_of_range_say_what_is_allowed() {
    let error = refused("[edges.host_to_tier0]\nscan_frames = 1\n");
    assert_eq!(error, "k.toml: edges.host_to_tier0.scan_frames = 1 (line 2): expected 2 to 65536");
    let error = refused("[daemon]\nsocket_mode = \"999\"\n");
    assert!(error.contains("socket_mode = \"999\" (line 2): expected an octal"), "{error}");
    let error = refused(&format!("[daemon]\nsocket = \"/{}\"\n", "x".repeat(102)));
    assert!(error.contains("at most 102 bytes"), "{error}");
    assert!(parse(&format!("[daemon]\nsocket = \"/{}\"\n", "x".repeat(101))).is_ok());
}

#[test]
fn capacities_follow_the_machine() {
    // The machine has 8 GiB.
    assert_eq!(parse("[tiers.host]\ncapacity = \"25%\"\n").unwrap().tiers.host.capacity_bytes, 2 << 30);
    let error = refused("[tiers.host]\ncapacity = \"max\"\n");
    assert_eq!(error, "k.toml: tiers.host.capacity = max (line 2): expected a size, or a percentage such as \"50%\"");
    let error = refused("[tiers.host]\ncapacity = \"120%\"\n");
    assert!(error.contains("invalid size \"120%\": expected a size such as"), "{error}");
    let disk = |capacity: &str| {
        let dir = std::env::temp_dir();
        // This machine may have less room than the default keeps free.
        let text = format!("[[tiers.nvme.disks]]\ndir = {dir:?}\nreserve_free = 0\n{capacity}\n");
        let config = parse(&text).unwrap();
        config.tiers.nvme.disks[0].capacity_bytes
    };
    let (tenth, all) = (disk("capacity = \"10%\""), disk("capacity = \"max\""));
    assert!(tenth > 0 && all > 0 && all.abs_diff(disk("")) < all / 10, "{tenth} {all}");
    let device = "[[tiers.nvme.disks]]\ndevice = \"/dev/null\"\n";
    let error = parse(device).unwrap_err().to_string();
    let why = "tiers.nvme.disks[0].capacity = max: expected a size, because that of /dev/null cannot be determined: it is not";
    assert!(error.contains(why), "{error}");
}

#[test]
fn contradictions_name_both_sides() {
    let error = refused("[tiers.host]\nlow_percent = 96\n");
    assert!(error.contains("tiers.host.low_percent = 96 (line 2)"), "{error}");
    assert!(error.contains("tiers.host.high_percent = 95 (the default)"), "{error}");
    let error = refused("[tiers.host]\ncapacity = \"1MiB\"\nslab = \"2MiB\"\n");
    assert!(error.contains("slab = 2MiB (line 3)") && error.contains("capacity = 1MiB (line 2)"), "{error}");
    let error = refused("[limits]\nblocks_max = 10\nseq_blocks_max = 11\n");
    assert!(error.contains("seq_blocks_max = 11 (line 3) contradicts limits.blocks_max = 10 (line 2)"), "{error}");
    let two = "[[domains]]\nname = \"a\"\nuids = [1, 2]\n[[domains]]\nname = \"b\"\nuids = [2]\n";
    let error = refused(two);
    assert!(error.contains("domains[1].uids = [2] (line 6)") && error.contains("domains[0].uids = [1, 2]"), "{error}");
    let error = refused("[[domains]]\nname = \"a\"\nuids = [1]\nhost = \"3GiB\"\n");
    assert!(
        error.contains("domains[0].host = 3GiB (line 4)") && error.contains("capacity = 2GiB (the default)"),
        "{error}"
    );
}

#[test]
fn the_command_line_wins_and_is_named() {
    let overrides = Overrides { host_bytes: Some(Capacity::Bytes(1 << 20)), ..Overrides::default() };
    let config = Config::parse("k.toml", "[tiers.host]\ncapacity = \"1GiB\"\n", &overrides, &machine()).unwrap();
    assert_eq!((config.tiers.host.capacity_bytes, config.tiers.host.slab_bytes), (1 << 20, 1 << 20));
    let error =
        Config::parse("k.toml", "[tiers.host]\nslab = \"1GiB\"\n", &overrides, &machine()).unwrap_err().to_string();
    assert!(error.contains("slab = 1GiB (line 2)") && error.contains("capacity = 1MiB (--host-bytes)"), "{error}");
}

#[test]
fn the_socket_stands_in_the_directory_that_is_named() {
    assert_eq!(parse("[daemon]\ndir = \"/d\"\n").unwrap().daemon.socket, Path::new("/d/kvtide.sock"));
    assert_eq!(parse("[daemon]\ndir = \"/d\"\nsocket = \"/s\"\n").unwrap().daemon.socket, Path::new("/s"));
}

#[test]
fn a_damaged_file_is_an_error_with_its_name_or_a_configuration_and_never_a_panic() {
    let example = reference(&["#= ", "#: "]);
    let mut random = 7u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..3000 {
        let mut bytes = example.clone().into_bytes();
        for _ in 0..=next(3) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = b"[]=\"'\n#.{}-0\xff"[next(13)],
                1 => drop(bytes.remove(at)),
                2 => bytes.truncate(at + 1),
                _ => bytes.insert(at, next(256) as u8),
            }
        }
        match parse(&String::from_utf8_lossy(&bytes)) {
            Ok(_) => right += 1,
            Err(error) => {
                assert!(error.starts_with("k.toml:"), "{error}");
                wrong += 1;
            }
        }
    }
    assert!(right > 300 && wrong > 300, "{right} valid, {wrong} invalid: the damage is one-sided");
}

#[test]
fn a_reload_takes_what_may_change_and_reports_the_rest() {
    let running = parse("[tiers.host]\ncapacity = \"1GiB\"\n[[domains]]\nname = \"a\"\nuids = [1]\n").unwrap();
    let text = "[tiers.host]\ncapacity = \"4GiB\"\nlow_percent = 80\n[limits]\nseqs_max = 7\n[edges.host_to_tier0]\n\
                scan_frames = 9\n[eviction]\npolicy = \"lru\"\nrecompute_tokens_per_s = 5000\n\
                [[domains]]\nname = \"b\"\nuids = [1]\n";
    let new = parse(text).unwrap();
    let (next, changes) = running.reloaded(new.clone());
    let effect = |key: &str| changes.iter().find(|change| change.key == key).map(|change| change.effect);
    assert_eq!(effect("tiers.host.capacity"), Some(Effect::Restart));
    assert_eq!(effect("tiers.host.low_percent"), Some(Effect::Now));
    assert_eq!(effect("limits.seqs_max"), Some(Effect::NewSpaces));
    assert_eq!(effect("edges.host_to_tier0.scan_frames"), Some(Effect::NewSessions));
    assert_eq!(effect("limits.lanes_max"), None);
    assert_eq!(effect("eviction.recompute_tokens_per_s"), Some(Effect::Now));
    assert_eq!(next.eviction.recompute_tokens_per_s, 5_000);
    let gone = changes.iter().find(|change| change.key == "domains[a].uids").unwrap();
    assert_eq!((gone.from.as_deref(), gone.to.as_deref()), (Some("[1]"), None));
    assert_eq!((next.tiers.host.capacity_bytes, next.tiers.host.low_percent), (1 << 30, 80));
    let names: Vec<_> = next.domains.iter().map(|d| (d.name.as_str(), d.uids.len(), d.host_bytes)).collect();
    assert_eq!(
        names,
        [("a", 0, 1 << 30), ("b", 1, 1 << 30)],
        "a keeps its index, the quota of b fits the running tier"
    );
    assert_eq!(effect("domains[b].host"), Some(Effect::Now));
    assert_eq!(changes.iter().find(|c| c.key == "domains[b].host").unwrap().to.as_deref(), Some("\"1GiB\""));
    // The same file once more: only the values that wait for a restart still differ.
    let (_, again) = next.reloaded(new);
    let again: Vec<_> = again.iter().map(|change| change.key.as_str()).collect();
    assert_eq!(again, ["tiers.host.capacity"]);
    assert_eq!(running.reloaded(running.clone()), (running, vec![]));
}

#[test]
fn a_new_capacity_changes_no_quota_before_the_restart() {
    let disk = |bytes: &str| format!("[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"{bytes}\"\n");
    let host = |bytes: &str| format!("[tiers.host]\ncapacity = \"{bytes}\"\n");
    let domain = "[[domains]]\nname = \"a\"\nuids = [1]\n";
    for (domains, quotas) in [
        (String::new(), (2 << 30, 8 << 30)),
        (domain.to_owned(), (2 << 30, 8 << 30)),
        (format!("{domain}host = \"1GiB\"\nnvme = \"4GiB\"\n"), (1 << 30, 4 << 30)),
    ] {
        let running = parse(&format!("{}{}{domains}", host("2GiB"), disk("8GiB"))).unwrap();
        for (host_bytes, nvme_bytes) in [("1GiB", "4GiB"), ("3GiB", "16GiB")] {
            let new = parse(&format!("{}{}{domains}", host(host_bytes), disk(nvme_bytes))).unwrap();
            let (next, changes) = running.reloaded(new);
            let changed: Vec<_> = changes.iter().map(|change| (change.key.as_str(), change.effect)).collect();
            let restart = |key: &'static str| (key, Effect::Restart);
            assert!(changed.contains(&restart("tiers.host.capacity")), "{changed:?}");
            assert!(changed.contains(&restart("tiers.nvme.disks[0].capacity")), "{changed:?}");
            assert!(changed.iter().all(|(_, effect)| *effect == Effect::Restart), "{changed:?}");
            assert_eq!((next.domains[0].host_bytes, next.domains[0].nvme_bytes), quotas);
        }
    }
}

#[test]
fn disks_tokens_and_quotas_that_contradict_each_other() {
    let disk = |dir: &str| format!("[[tiers.nvme.disks]]\ndir = \"{dir}\"\ncapacity = \"1GiB\"\n");
    let error = refused(&format!("{}{}", disk("/a/b"), disk("/a/./b/")));
    assert!(error.contains("disks[1].dir = \"/a/./b/\" (line 5) contradicts tiers.nvme.disks[0].dir"), "{error}");
    assert!(refused(&disk("a")).contains("an absolute path"));
    let error = refused(&format!("[tiers.nvme]\nslab = \"1000\"\n{}", disk("/a")));
    assert!(error.contains("expected 4KiB to 1GiB"), "{error}");
    let error = refused("[tiers.nvme]\nslab = \"1GiB\"\n[[tiers.nvme.disks]]\ndir = \"/a\"\ncapacity = \"512MiB\"\n");
    assert!(
        error.contains("slab = 1GiB (line 2) contradicts tiers.nvme.disks[0].capacity = 512MiB (line 5)"),
        "{error}"
    );
    let domain = |rest: &str| format!("[[domains]]\nname = \"a\"\nuids = [1]\n{rest}");
    let error = refused(&domain("nvme = \"1GiB\"\n"));
    assert!(error.contains("nvme = 1GiB (line 4) contradicts tiers.nvme.disks = 0B: "), "{error}");
    let error = refused(&format!("{}{}{}", disk("/a"), disk("/b"), domain("nvme = \"3GiB\"\n")));
    assert!(error.contains("nvme = 3GiB (line 10) contradicts the sum of tiers.nvme.disks = 2GiB"), "{error}");
    let error = refused("[[domains]]\nname = \"a\"\n");
    assert!(error.contains("a domain needs a uid or a token"), "{error}");
    let error = refused("[[domains]]\nname = \"a\"\ntokens = [\"/t\"]\n[[domains]]\nname = \"b\"\ntokens = [\"/t\"]\n");
    assert!(error.contains("/t can belong to one domain and one role only"), "{error}");
    for (path, part) in [("relative.sock".to_owned(), "absolute"), (format!("/{}", "x".repeat(107)), "107 bytes")] {
        let error = refused(&format!("[[domains]]\nname = \"a\"\nuids = [1]\nrelay_socket = \"{path}\"\n"));
        assert!(
            error.contains("domains[0].relay_socket") && error.contains("line 4") && error.contains(part),
            "{error}"
        );
    }
    let both = "[[domains]]\nname = \"a\"\ntokens = [\"/t\"]\nrelay_tokens = [\"/t\"]\n";
    let error = refused(both);
    assert!(error.contains("domains[0].relay_tokens = [\"/t\"] (line 4) contradicts domains[0].tokens"), "{error}");
    assert!(refused("[[domains]]\nname = \"a\"\ntokens = [\"t\"]\n").contains("absolute paths"));
    let error = refused(&format!("[tiers.nvme]\nio = \"threads\"\nregistered = \"required\"\n{}", disk("/a")));
    assert!(error.contains("only io_uring can register memory"), "{error}");
    let error = refused(&format!("[tiers.host]\ncapacity = \"64KiB\"\n{}", disk("/a")));
    assert!(error.contains("capacity = 64KiB (line 2) contradicts edges.nvme_to_host.scan_frames = 32"), "{error}");
    assert!(refused("[http]\nlisten = \"localhost\"\n").contains("an address and a port"));
    for (wrong, why) in [
        ("https://collector:4318", "without TLS"),
        ("http://localhost:4318/v1/traces", "without /v1/traces"),
        ("localhost:4318", "a URL such as"),
        ("http://", "a URL such as"),
        ("http://localhost/?a", "a URL such as"),
        ("http://localhost:4318/v1/traces/", "without /v1/traces"),
        ("http://me:secret@localhost:4318", "without a user and password"),
        ("https://me:sec@ret@localhost", "tracing.endpoint = \"https://…@localhost\""),
    ] {
        let error = refused(&format!("[tracing]\nendpoint = \"{wrong}\"\n"));
        assert!(error.contains("tracing.endpoint = ") && error.contains("(line 2)") && error.contains(why), "{error}");
        assert!(!error.contains("me:"), "{error}");
    }
    let config = parse("[tracing]\nendpoint = \"http://[::1]:4318/base/\"\n").unwrap();
    assert_eq!(config.tracing.endpoint.as_deref(), Some("http://[::1]:4318/base/"));
    for (wrong, why) in [
        ("kvtide=noisy", "\"noisy\" is no level"),
        ("warning", "\"warning\" is no level; did you mean \"warn\"?"),
        ("info,verbose", "\"verbose\" is no level; did you mean \"debug\"?"),
        ("warn ", "begins or ends with a blank; did you mean \"warn\"?"),
    ] {
        let error = refused(&format!("[daemon]\nlog = \"{wrong}\"\n"));
        assert!(error.contains("daemon.log = ") && error.contains("(line 2)") && error.contains(why), "{error}");
    }
}

#[test]
fn a_disk_is_a_directory_or_a_device_and_a_key_has_one_source() {
    let disk = |rest: &str| format!("[[tiers.nvme.disks]]\ncapacity = \"1GiB\"\n{rest}");
    let nvme = |text: &str| parse(text).unwrap_or_else(|error| panic!("{error}")).tiers.nvme;
    let device = &nvme(&disk("device = \"/dev/x\"\n")).disks[0];
    assert_eq!((device.place(), device.reserve_free), (Place::Device(Path::new("/dev/x")), Reserve::Bytes(0)));
    let error = refused(&disk("dir = \"/a\"\ndevice = \"/dev/x\"\n"));
    assert!(error.contains("disks[0].dir = \"/a\" (line 3) contradicts tiers.nvme.disks[0].device"), "{error}");
    let error = refused(&disk(""));
    assert!(error.contains("capacity = 1GiB (line 2): expected `dir` or `device` in the same table"), "{error}");
    let error = refused(&disk("device = \"/dev/x\"\nreserve_free = \"5%\"\n"));
    assert!(error.contains("reserve_free = 5% (line 4) contradicts") && error.contains("no file system"), "{error}");
    assert!(refused(&disk("device = \"dev/x\"\n")).contains("an absolute path"));
    assert!(refused(&disk("dir = \"/a\"\nweight = 0\n")).contains("weight = 0 (line 4): expected 1 to 10000"));
    assert!(refused(&disk("dir = \"/a\"\nendurance = \"1025PiB\"\n")).contains("endurance"));
    let worn = &nvme(&disk("dir = \"/a\"\nbytes_per_day = \"3TiB\"\nendurance = 0\n")).disks[0];
    assert_eq!((worn.bytes_per_day, worn.endurance_bytes), (Some(3 << 40), None), "0 means not set");

    let keyed = |rest: &str| disk(&format!("dir = \"/a\"\n[tiers.nvme.encryption]\n{rest}"));
    assert_eq!(nvme(&keyed("key = \"file\"\npath = \"/k\"\n")).encryption.source(), KeySource::File("/k".into()));
    assert_eq!(nvme(&keyed("key = \"credential\"\n")).encryption.source(), KeySource::Credential("kvtide-key".into()));
    assert_eq!(nvme(&keyed("key = \"ephemeral\"\n")).encryption.source(), KeySource::Ephemeral);
    let read_only = nvme(&keyed("key = \"credential\"\nnew_slabs = false\n"));
    assert!(
        !read_only.encryption.new_slabs && !read_only.codes(),
        "existing encrypted slabs can be read, new slabs are not encrypted"
    );
    let error = refused(&keyed("key = \"ephemeral\"\nnew_slabs = false\n"));
    assert!(error.contains("new_slabs = false (line 6) contradicts"), "{error}");
    let error = refused(&keyed("key = \"file\"\n"));
    assert!(error.contains("expected `path`, the file of the key, in the same table"), "{error}");
    let error = refused(&keyed("path = \"/k\"\n"));
    assert!(error.contains("path = \"/k\" (line 5) contradicts") && error.contains("(the default)"), "{error}");
    let error = refused(&keyed("key = \"file\"\npath = \"/k\"\nname = \"n\"\n"));
    assert!(error.contains("a name is used with key = \"credential\" only"), "{error}");
    for name in ["", "..", "a/b", "a\\u0000b"] {
        let error = refused(&keyed(&format!("key = \"credential\"\nname = \"{name}\"\n")));
        assert!(error.contains("a file name without a directory"), "{error}");
    }
    assert!(refused(&keyed("key = \"of\"\n")).contains("did you mean `off`?"));
}

#[test]
fn the_command_lines_disk_is_the_only_one() {
    let overrides = Overrides {
        nvme_dir: Some("/own".into()),
        nvme_bytes: Some(Capacity::Bytes(64 << 20)),
        http: Some(String::new()),
        ..Overrides::default()
    };
    let text = "[tiers.nvme]\ndepth = 7\n[[tiers.nvme.disks]]\ndir = \"/a\"\ncapacity = \"1TiB\"\n";
    let config = Config::parse("k.toml", text, &overrides, &machine()).unwrap();
    assert_eq!(config.http.listen, None);
    let nvme = config.tiers.nvme;
    assert_eq!((nvme.disks.len(), nvme.disks[0].place().path(), nvme.depth), (1, Path::new("/own"), 7));
    assert_eq!((nvme.capacity_bytes(), nvme.slab_bytes), (64 << 20, 4 << 20), "a sixteenth of a small disk");
    let reserve =
        |overrides| Config::parse("k.toml", text, &overrides, &machine()).unwrap().tiers.nvme.disks[0].reserve_free;
    assert_eq!(reserve(overrides.clone()), Reserve::Percent(5));
    assert_eq!(
        reserve(Overrides { remove_dir: true, ..overrides }),
        Reserve::Bytes(0),
        "it is removed with the daemon"
    );
}

#[test]
fn an_unconfigured_host_tier_is_half_of_what_the_machine_gives() {
    let capacity = |available_bytes| {
        let machine = Machine { available_bytes, ..machine() };
        Config::parse("k.toml", "", &Overrides::default(), &machine).unwrap().tiers.host.capacity_bytes
    };
    assert_eq!(capacity(3 << 30), 1536 << 20);
    assert_eq!(capacity((3 << 30) + 4097), 1536 << 20, "whole slabs");
    assert_eq!(capacity(1 << 40), 8 << 30);
    assert_eq!(capacity(0), 64 << 20);
}

/// A reload reads these files again, although the keys that name them have not changed. Each has a test that changes the file.
#[test]
fn the_files_that_a_reload_reads_are_listed() {
    let named = |row: &super::section::Row| match row.shown {
        super::section::Shown::Default => row.default.as_ref().is_some_and(|value| value.contains('/')),
        super::section::Shown::Example(value) | super::section::Shown::Alternative(value) => value.contains('/'),
    };
    let mut files = Vec::new();
    for table in super::reference::tables() {
        let rows = table.rows.iter().filter(|row| row.effect != Effect::Restart && named(row));
        files.extend(rows.map(|row| super::section::join(&table.path, row.key)));
    }
    assert_eq!(
        files,
        [
            "http.token_file",      // tests/daemon/operate.rs: actions_over_an_address_need_the_operators_token
            "domains.tokens",       // tests/daemon/reload.rs: tenants_come_and_go_and_tokens_change
            "domains.relay_tokens", // the same function
            "domains.relay_socket", // no file: engines are told its path
        ]
    );
}

#[test]
fn a_path_that_is_no_text_names_its_flag() {
    let path = || Some(PathBuf::from(OsStr::from_bytes(b"/data/\xff")));
    for (flag, overrides) in [
        ("--socket", Overrides { socket: path(), ..Overrides::default() }),
        ("--dir", Overrides { dir: path(), ..Overrides::default() }),
        ("--nvme-dir", Overrides { nvme_dir: path(), ..Overrides::default() }),
    ] {
        let error = Config::parse("k.toml", "", &overrides, &machine()).unwrap_err().to_string();
        assert!(error.contains(&format!("{flag} = \"/data/\\xFF\": expected a path in UTF-8")), "{error}");
    }
}

#[test]
fn a_socket_path_that_is_too_long_names_what_made_it_so() {
    let long = |bytes: usize| PathBuf::from(format!("/{}", "d".repeat(bytes - 1)));
    let dir = |bytes| Overrides { dir: Some(long(bytes)), ..Overrides::default() };
    Config::parse("k.toml", "", &dir(90), &machine()).unwrap();
    let error = Config::parse("k.toml", "", &dir(91), &machine()).unwrap_err().to_string();
    assert!(
        error.contains("daemon.dir = ") && error.contains("(--dir): expected a path of at most 90 bytes"),
        "{error}"
    );
    assert!(error.contains("it has 91") && !error.contains("the default"), "{error}");
    let error = refused(&format!("[daemon]\ndir = \"{}\"\n", long(91).display()));
    assert!(error.contains("daemon.dir = ") && error.contains("(line 2)"), "{error}");
    let socket = Overrides { socket: Some(long(103)), ..Overrides::default() };
    let error = Config::parse("k.toml", "", &socket, &machine()).unwrap_err().to_string();
    assert!(error.contains("(--socket): expected a path of at most 102 bytes; it has 103"), "{error}");
}
