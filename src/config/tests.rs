//! What a file may say, and the text of what is wrong with it.

use super::*;
use std::path::Path;

/// A machine of no particular size, whose default host tier has 2 GiB.
fn machine() -> Machine {
    Machine { total_bytes: 8 << 30, available_bytes: 4 << 30, cgroup: None }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("k.toml", text, &Overrides::default(), &machine()).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    parse(text).expect_err("the file is wrong")
}

#[test]
fn an_empty_file_is_the_defaults_and_the_example_states_them() {
    let defaults = parse("").unwrap();
    let example = include_str!("../../configs/kvtided.toml");
    assert_eq!(parse(example).unwrap(), defaults, "configs/kvtided.toml shows other values than the defaults");
    let uncommented: String = example.lines().map(|l| l.strip_prefix("#= ").unwrap_or(l).to_owned() + "\n").collect();
    assert_eq!(parse(&uncommented).unwrap(), defaults, "a commented value in configs/kvtided.toml is not the default");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_what_is_allowed() {
    let error = refused("[tiers.host]\ncapacity = \"1GiB\"\ncapcity = \"2GiB\"\n");
    assert!(error.starts_with("k.toml:3:1: unknown field `capcity`"), "{error}");
    assert!(error.contains("`capacity`") && error.contains("`low_percent`"), "{error}");
    let error = refused("[tiers.hots]\n");
    assert!(error.starts_with("k.toml:1:8: unknown field `hots`, expected `host` or `nvme`"), "{error}");
    let error = refused("[[domains]]\nname = \"a\"\nuids = [1]\ngid = 3\n");
    assert!(error.starts_with("k.toml:4:1: unknown field `gid`"), "{error}");
}

#[test]
fn wrong_types_sizes_and_syntax_name_their_line() {
    let error = refused("\n[limits]\nblocks_max = \"many\"\n");
    assert!(error.starts_with("k.toml:3:14: ") && error.contains("expected u32"), "{error}");
    let error = refused("[tiers.host]\ncapacity = \"2GB\"\n");
    assert!(error.starts_with("k.toml:2:12: \"2GB\" is no size") && error.contains("GiB"), "{error}");
    let error = refused("[limits\n");
    assert!(error.starts_with("k.toml:1:"), "{error}");
    let error = refused("[[domains]]\nuids = [1]\n");
    assert!(error.contains("missing field `name`"), "{error}");
}

#[test]
fn values_out_of_range_say_what_is_allowed() {
    let error = refused("[edges.host_to_tier0]\nscan_frames = 1\n");
    assert_eq!(error, "k.toml: edges.host_to_tier0.scan_frames = 1 (line 2): expected 2 to 65536");
    let error = refused("[daemon]\nsocket_mode = \"999\"\n");
    assert!(error.contains("socket_mode = \"999\" (line 2): expected an octal"), "{error}");
    let error = refused("[limits]\njobs_max = 100\n");
    assert!(error.contains("expected a power of two"), "{error}");
    let error = refused(&format!("[daemon]\nsocket = \"/{}\"\n", "x".repeat(107)));
    assert!(error.contains("at most 107 bytes"), "{error}");
    assert!(parse(&format!("[daemon]\nsocket = \"/{}\"\n", "x".repeat(106))).is_ok());
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
    let overrides = Overrides { host_bytes: Some(ByteSize(1 << 20)), ..Overrides::default() };
    let config = Config::parse("k.toml", "[tiers.host]\ncapacity = \"1GiB\"\n", &overrides, &machine()).unwrap();
    assert_eq!((config.host.capacity_bytes, config.host.slab_bytes), (1 << 20, 1 << 20));
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
    let example = include_str!("../../configs/kvtided.toml").replace("#= ", "");
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
    assert!(right > 300 && wrong > 300, "{right} right, {wrong} wrong: the damage is one-sided");
}

#[test]
fn a_reload_takes_what_may_change_and_reports_the_rest() {
    let running = parse("[tiers.host]\ncapacity = \"1GiB\"\n[[domains]]\nname = \"a\"\nuids = [1]\n").unwrap();
    let text = "[tiers.host]\ncapacity = \"4GiB\"\nlow_percent = 80\n[limits]\nseqs_max = 7\n[edges.host_to_tier0]\nscan_frames = 9\n\
                [[domains]]\nname = \"b\"\nuids = [1]\n";
    let new = parse(text).unwrap();
    let changes = running.changes(&new);
    let effect = |key: &str| changes.iter().find(|change| change.key == key).map(|change| change.effect);
    assert_eq!(effect("tiers.host.capacity"), Some(Effect::Restart));
    assert_eq!(effect("tiers.host.low_percent"), Some(Effect::Now));
    assert_eq!(effect("limits.seqs_max"), Some(Effect::NewSpaces));
    assert_eq!(effect("edges.host_to_tier0.scan_frames"), Some(Effect::NewSessions));
    assert_eq!(effect("limits.lanes_max"), None);
    let gone = changes.iter().find(|change| change.key == "domains[a].uids").unwrap();
    assert_eq!((gone.from.as_deref(), gone.to.as_deref()), (Some("[1]"), None));
    let next = running.reloaded(&new);
    assert_eq!((next.host.capacity_bytes, next.host.low_percent), (1 << 30, 80));
    let names: Vec<_> = next.domains.iter().map(|d| (d.name.as_str(), d.uids.len(), d.host_bytes)).collect();
    assert_eq!(names, [("a", 0, 1 << 30), ("b", 1, 1 << 30)], "a keeps its place, b's quota fits what is there");
    assert!(running.changes(&running).is_empty());
}
