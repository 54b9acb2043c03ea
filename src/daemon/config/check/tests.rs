//! Findings and summaries of configurations.

use super::*;
use crate::config::Overrides;

fn config(text: &str) -> Config {
    let machine = Machine { total_bytes: 64 << 30, available_bytes: 64 << 30, cgroup: None, disk_bytes: None };
    Config::parse("k.toml", text, &Overrides::default(), &machine).unwrap_or_else(|error| panic!("{error}"))
}

fn findings(text: &str) -> Vec<String> {
    config(text).inversions().iter().map(ToString::to_string).collect()
}

#[track_caller]
fn finds(text: &str, wanted: &str) {
    let found = findings(text);
    assert!(found.iter().any(|finding| finding.contains(wanted)), "{wanted} is not in {found:#?}");
}

#[test]
fn the_defaults_are_fine() {
    assert_eq!(findings(""), [""; 0]);
}

#[test]
fn tiers_that_are_smaller_than_the_one_above() {
    finds("[tiers.host]\ncapacity = \"4GiB\"\n", "tiers.host.capacity: 4 GiB is less than tier 0 of an 8B model");
    let disk = "[tiers.host]\ncapacity = \"8GiB\"\n[[tiers.nvme.disks]]\ndir = \"/d\"\n";
    finds(
        &format!("{disk}capacity = \"7GiB\"\n"),
        "tiers.nvme.disks: 7 GiB in whole slabs is less than the host tier (8 GiB)",
    );
    assert_eq!(findings(&format!("{disk}capacity = \"100GiB\"\n")), [""; 0]);
    assert_eq!(findings(&format!("{disk}capacity = \"500GiB\"\n")), [""; 0]);
    finds(
        "[limits]\nblocks_max = 1000\nseq_blocks_max = 1000\n[tiers.host]\ncapacity = \"8GiB\"\n",
        "limits.blocks_max: 1000 blocks of an 8B model (2 MiB each) are 1.95 GiB",
    );
    let scan = format!("{disk}capacity = \"100GiB\"\n[edges.nvme_to_host]\nscan_frames = 60000\n");
    finds(&scan, "need 3.70 GiB of host memory with pages of 64KiB, more than a quarter of 8 GiB");
}

#[test]
fn slabs_watermarks_and_deadlines() {
    finds(
        "[tiers.host]\ncapacity = \"8GiB\"\nslab = \"1GiB\"\n",
        "tiers.host.slab: 1GiB is more than a tenth of the tier (8GiB)",
    );
    finds("[tiers.host]\nhigh_percent = 100\n", "tiers.host.high_percent: at 100 nothing is evicted");
    finds("[tiers.host]\nhigh_percent = 90\n", "tiers.host.high_percent: equal to low_percent (90)");
    let disk = "[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"100GiB\"\n";
    finds(&format!("[tiers.nvme]\nhigh_percent = 100\n{disk}"), "tiers.nvme.high_percent: at 100");
    finds(
        &format!("[tiers.nvme]\ntimeout_ms = 30000\n{disk}"),
        "tiers.nvme.timeout_ms: requests fail after limits.request_timeout_ms = 30000",
    );
    let small = "[tiers.nvme]\nslab = \"1GiB\"\n[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"9GiB\"\n";
    finds(small, "tiers.nvme.slab: 1GiB is more than a tenth of tiers.nvme.disks[0].capacity (9GiB)");
}

#[test]
fn endurance_keys_and_codecs() {
    let tier = |tier: &str, disk: &str| {
        format!("[tiers.nvme]\n{tier}\n[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"100GiB\"\n{disk}\n")
    };
    assert_eq!(findings(&tier("admission = \"budget\"", "bytes_per_day = \"1TiB\"")), [""; 0]);
    finds(&tier("admission = \"budget\"", ""), "tiers.nvme.admission: no disk has bytes_per_day");
    let worn = "bytes_per_day = \"1TiB\"\nendurance = ";
    finds(
        &tier("", &format!("{worn}\"364TiB\"")),
        "tiers.nvme.disks[0].endurance: 1 TiB a day use up the rated 364 TiB in 364 days",
    );
    assert_eq!(findings(&tier("", &format!("{worn}\"365TiB\""))), [""; 0]);
    finds(
        &tier("", "bytes_per_day = \"255MiB\""),
        "tiers.nvme.disks[0].bytes_per_day: 255MiB is less than one slab (256MiB)",
    );
    finds(&tier("encryption.key = \"ephemeral\"", ""), "tiers.nvme.encryption.key: the key exists in memory only");
    finds(&tier("codec = \"lz4\"\nslab = \"4KiB\"", ""), "tiers.nvme.codec: a page in slabs of 4KiB has less than two");
    let none = findings(&tier("slab = \"4KiB\"", ""));
    assert!(!none.iter().any(|finding| finding.contains("codec")), "{none:?}");
}

#[test]
fn who_may_reach_it() {
    finds("[http]\nlisten = \"0.0.0.0:9417\"\n", "http.listen: 0.0.0.0:9417 is not on loopback");
    assert_eq!(findings("[http]\nlisten = \"[::1]:1\"\n"), [""; 0]);
    let tenant = "[[domains]]\nname = \"t\"\ntokens = [\"/t\"]\n";
    finds(tenant, "daemon.socket_mode: 0660 lets only the socket's owner and group connect");
    assert_eq!(findings(&format!("[daemon]\nsocket_mode = \"0666\"\n{tenant}")), [""; 0]);
    finds(
        "[[domains]]\nname = \"n\"\nuids = [65534]\n",
        "domains[n].uids: 65534 is the uid of all processes of unmapped users",
    );
    finds(
        "[[domains]]\nname = \"n\"\nuids = [1]\nhost = \"1MiB\"\n",
        "domains[n].host: 1MiB is less than one slab (64MiB)",
    );
    let none =
        "[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"100GiB\"\n[[domains]]\nname = \"n\"\nuids = [1]\nnvme = 0\n";
    finds(none, "domains[n].nvme: 0B is less than one slab (256MiB): the domain gets no NVMe space");
}

#[test]
fn what_does_not_fit_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let here = |text: &str, machine: &Machine| -> Vec<Finding> { config(text).findings_here(machine) };
    let small = Machine { total_bytes: 4 << 30, available_bytes: 2 << 30, cgroup: None, disk_bytes: None };
    let named = |found: &[Finding], severity, part: &str| {
        assert!(found.iter().all(|finding| finding.this_machine));
        let hit = |finding: &Finding| finding.severity == severity && finding.to_string().contains(part);
        assert!(found.iter().any(hit), "{part} is not in {found:#?}");
    };
    let host = |bytes: &str, rest: &str| format!("[tiers.host]\ncapacity = \"{bytes}\"\n{rest}");
    named(&here(&host("3GiB", "prefault = false\n"), &small), Severity::Warning, "more than the memory available now");
    let large = Machine { total_bytes: 2 << 40, available_bytes: 1 << 40, cgroup: None, disk_bytes: None };
    named(&here("", &large), Severity::Warning, "the default is at most 8 GiB, but this machine has 1 TiB available");
    let found = here(&host("512GiB", ""), &large);
    assert!(!found.iter().any(|finding| finding.to_string().contains("the default is at most")), "{found:#?}");
    let socket = format!("[daemon]\ndir = \"{}/none\"\n", dir.display());
    named(&here(&socket, &small), Severity::Warning, "/none does not exist");
    let disk =
        |dir: &std::path::Path, bytes: &str| format!("[[tiers.nvme.disks]]\ndir = {dir:?}\ncapacity = \"{bytes}\"\n");
    let both = format!("{}{}", disk(&dir.join("a"), "1MiB"), disk(&dir.join("b"), "1MiB"));
    named(&here(&both, &small), Severity::Warning, "on the same file system as");
    let device = |path: &str| format!("[[tiers.nvme.disks]]\ndevice = \"{path}\"\ncapacity = \"1TiB\"\n");
    named(&here(&device("/dev/kvtide-none"), &small), Severity::Error, "/dev/kvtide-none: No such file");
    named(&here(&device("/dev/null"), &small), Severity::Error, "/dev/null is not a block device");
    assert!(std::fs::read_dir(dir).unwrap().next().is_none(), "the check must not create files");
}

#[test]
fn an_explanation_says_bytes_and_people() {
    let text = "[tiers.host]\ncapacity = \"8GiB\"\n[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"100GiB\"\n\
                [[domains]]\nname = \"a\"\nuids = [7, 8]\ntokens = [\"/t\"]\nhost = \"1GiB\"\n";
    let all: Vec<String> = config(text).explanation().into_iter().flat_map(|section| section.lines).collect();
    for line in [
        "Capacity: 8 GiB (8589934592 bytes) in 128 slabs of 64MiB, allocated from the start on.",
        "Unreferenced blocks are evicted above 95 % (7.60 GiB, 8160437862 bytes), down to 90 % (7.20 GiB, 7730941132 bytes).",
        "/d: 100 GiB (107374182400 bytes), 400 slabs. At start, 5% of its file system must stay free.",
        "Admission: every published block, soon after it is published, so that it survives a restart.",
        "Encryption is off: prompts can be read from the disk.",
        "One page in 256 is verified end to end, from the engine that stores it to the engine that loads it.",
        "a: uid 7, 8 and clients with a token from /t. Limits: 1 GiB (1073741824 bytes) of host memory, \
         100 GiB (107374182400 bytes) of NVMe, 256 sessions.",
    ] {
        assert!(all.iter().any(|said| said.contains(line)), "{line} is not in {all:#?}");
    }
}

#[test]
fn an_explanation_says_what_a_disk_may_take() {
    let text = "[tiers.nvme]\ncodec = \"planes-zstd\"\nadmission = \"budget\"\n[tiers.nvme.encryption]\nkey = \"credential\"\n\
                [[tiers.nvme.disks]]\ndevice = \"/dev/d\"\ncapacity = \"1TiB\"\nbytes_per_day = \"2TiB\"\nendurance = \"6PiB\"\n";
    let all: Vec<String> = config(text).explanation().into_iter().flat_map(|section| section.lines).collect();
    for line in [
        "/dev/d (raw device): 1 TiB (1099511627776 bytes), 4096 slabs.",
        "/dev/d: at most 2 TiB written a day. The rated 6 PiB last at least 3072 days.",
        "Admission: published blocks within bytes_per_day of each disk, those with the most expected hits first.",
        "Compression of new slabs: planes-zstd (the bytes of each value split into planes, then zstd at level 1).",
        "New slabs are encrypted with the key in the systemd credential kvtide-key.",
        "Unused regions of raw devices are discarded.",
    ] {
        assert!(all.iter().any(|said| said.contains(line)), "{line} is not in {all:#?}");
    }
}

#[test]
fn a_finding_names_its_key_once() {
    let finding = |text: &str| {
        let (key, text) = ("tiers.host.capacity".to_owned(), text.to_owned());
        Finding { severity: Severity::Error, key, text, this_machine: true }.to_string()
    };
    assert_eq!(finding("tiers.host.capacity = 1TiB exceeds it"), "error: tiers.host.capacity = 1TiB exceeds it");
    assert_eq!(finding("it is too large"), "error: tiers.host.capacity: it is too large");
}
