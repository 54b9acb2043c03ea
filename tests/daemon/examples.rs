//! The examples in the help of every command are command lines that work.

use crate::blocks::{attach, store};
use crate::nvme::{Dir, NVME_BYTES, nvme_options};
use crate::relay::with_relays;
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_types::hash_from_hex;
use kvtide_wire::entry::Level;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The block that the examples name.
const HASH: &str = "0123456789abcdef0123456789abcdef";

/// Return the commands without subcommands, with the words that lead to them.
fn leaves<'a>(of: &'a clap::Command, path: &[&str]) -> Vec<(String, &'a clap::Command)> {
    let mut found = Vec::new();
    for command in of.get_subcommands().filter(|command| !command.is_hide_set()) {
        let path: Vec<&str> = path.iter().copied().chain([command.get_name()]).collect();
        match command.has_subcommands() {
            true => found.extend(leaves(command, &path)),
            false => found.push((path.join(" "), command)),
        }
    }
    found
}

/// Return the examples of a command: the lines behind "Examples:".
fn examples(command: &clap::Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().skip_while(|line| line.trim() != "Examples:").skip(1);
    lines.take_while(|line| line.starts_with("  ")).map(|line| line.trim().to_owned()).collect()
}

/// Commands that run for minutes or need a device. Their examples are parsed here; `.ci/long` runs these commands.
fn is_long(command: &str) -> bool {
    command == "demo" || command == "crash-test" || command.starts_with("bench ") || command == "replay attention"
}

#[test]
fn every_command_has_two_examples_that_work() {
    let (stopped, dir, scratch) = (Dir::new(), Dir::new(), Dir::new());
    // A disk that no daemon uses, with a block of the tenant.
    let daemon = PrivateDaemon::start(&nvme_options(&stopped, NVME_BYTES, "", "")).unwrap();
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    store(&mut channel, &mut memory, 1, 4, Level::Stored);
    drop((channel, client, memory, daemon));
    let config = scratch.path().join("kvtided.toml");
    fs::write(&config, "[tiers.host]\ncapacity = \"64MiB\"\n").unwrap();
    // The file system of this machine may have less room than a daemon keeps free.
    let small = scratch.path().join("small.toml");
    fs::write(&small, "[[tiers.nvme.disks]]\nreserve_free = 0\n").unwrap();
    let trace = scratch.path().join("trace.jsonl");
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/traces/requests"), &trace).unwrap();
    let hashes = scratch.path().join("hashes");
    fs::write(&hashes, HASH).unwrap();
    let (store_dir, nvme) = (stopped.store(), scratch.path().join("nvme"));
    let places = [
        ("/etc/kvtide/kvtided.toml", config.to_str().unwrap()),
        ("/var/lib/kvtide/nvme0", store_dir.parent().unwrap().to_str().unwrap()),
        ("/tmp/kvtide-man", scratch.path().to_str().unwrap()),
        ("/var/tmp/kvtide", nvme.to_str().unwrap()),
        ("/tmp/kvtide", scratch.path().to_str().unwrap()),
        ("trace.jsonl", trace.to_str().unwrap()),
        ("FILE", hashes.to_str().unwrap()),
        ("llama", "blocks"),
        ("600", "0"),
    ];
    let word_here = |word: &str| {
        let place = places.iter().find(|(there, _)| word.starts_with(there));
        place.map_or(word.to_owned(), |(there, here)| word.replacen(there, here, 1))
    };
    let here = |line: &str| line.split(' ').map(word_here).collect::<Vec<_>>().join(" ");
    let daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", &with_relays("default"))).unwrap();
    let socket = daemon.socket();
    let (client, mut channel, mut memory) = attach(socket, 1, 0, 8);
    let mut problems = Vec::new();
    let all = kvtide_cli::commands();
    for (name, command) in leaves(&all, &[]) {
        let found = examples(command);
        if found.len() != 2 {
            problems.push(format!("{name}: {} examples", found.len()));
        }
        for example in found {
            // Each finds what it names: the block, and it is pinned if it is to be unpinned.
            (0..8).for_each(|block| memory.write(block, 1, block));
            let hash = hash_from_hex(HASH).unwrap();
            channel.store((0, 0), &[hash], &[0], Level::Published, crate::BOUND).unwrap();
            if name == "cache unpin" {
                run(socket, &format!("kvtide cache pin {HASH}"));
            }
            let mut line = here(&example);
            if line.contains("--nvme-dir") && name == "daemon" {
                line.push_str(&format!(" --config {}", small.display()));
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Err(error) = all.clone().try_get_matches_from(&words) {
                problems.push(format!("{example}: {error}"));
            }
            if is_long(&name) {
                continue;
            }
            let (status, said) = run(socket, &line);
            // What is missing on this host, sessions that are left and data that is not encrypted are results too.
            let expected: &[i32] =
                if ["doctor", "drain", "config check", "purge"].contains(&&*name) { &[0, 1] } else { &[0] };
            if !expected.contains(&status) {
                problems.push(format!("{example}: status {status}: {said}"));
            }
            run(socket, "kvtide drain --end");
            run(socket, &format!("kvtide cache unpin {HASH}"));
        }
    }
    drop(client);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn run(socket: &Path, line: &str) -> (i32, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], "kvtide", "{line}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    command.args(&words[1..]).env("KVTIDE_SOCKET", socket).stdin(Stdio::null());
    let ended = command.output().unwrap();
    let said = [&ended.stdout[..], &ended.stderr[..]].concat();
    (ended.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}
