//! Wrong configurations: `kvtide config check` refuses each as the start does, with the same words.

use super::super::disks;
use super::*;
use crate::check::Report;
use crate::config::{Overrides, Source};
use std::collections::HashSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Wrong files. Nothing in them depends on the machine.
const WRONG: [&str; 45] = [
    "[tiers.host\n",
    "a = \n",
    "[deamon]\n",
    "[daemon]\nsockets = \"/s\"\n",
    "[daemon]\nlog = \"warning\"\n",
    "[daemon]\nlog = \"info,kvtide_daemon=debugging\"\n",
    "[daemon]\nlog = 1\n",
    "[daemon]\nsocket = true\n",
    "[daemon]\nsocket_mode = \"0999\"\n",
    "[daemon]\nsocket_mode = 432\n",
    "[daemon]\nspin_us = 100001\n",
    "[daemon]\nspin_us = -1\n",
    "[daemon]\nspin_us = \"50\"\n",
    "[daemon]\nspin_us = 1.5\n",
    "[daemon]\nhandshake_ms = 0\n",
    "[daemon]\nrecorder = \"2GiB\"\n",
    "daemon = 5\n",
    "[[daemon]]\n",
    "[http]\nlisten = \"localhost\"\n",
    "[http]\nlisten = 9417\n",
    "[http]\ntoken_file = \"operator.token\"\n",
    "[tiers.host]\ncapacity = \"2GB\"\n",
    "[tiers.host]\ncapacity = \"101%\"\n",
    "[tiers.host]\ncapacity = -5\n",
    "[tiers.host]\ncapacity = 1.5\n",
    "[tiers.host]\ncapacity = \"64MiB\"\nslab = \"128MiB\"\n",
    "[tiers.host]\nprefault = \"yes\"\n",
    "[tiers.host]\nhigh_percent = 101\n",
    "[tiers.host]\nhigh_percent = 300\n",
    "[tiers.host]\nhigh_percent = 10\nlow_percent = 20\n",
    "[tiers.host]\nhigh_percent = 90\nhigh_percent = 90\n",
    "[tiers.nvme]\nadmission = \"al\"\n",
    "[tiers.nvme]\nadmission = 1\n",
    "[tiers.nvme]\ndepth = 0\n",
    "[tiers.nvme]\ndisks = {}\n",
    "[tiers.nvme.disks]\ndir = \"/d\"\n",
    "[[tiers.nvme.disks]]\ndir = \"d\"\ncapacity = \"1GiB\"\n",
    "[[tiers.nvme.disks]]\ncapacity = \"1GiB\"\n",
    "[[tiers.nvme.disks]]\ndir = \"/d\"\ncapacity = \"1GiB\"\nreserve_free = \"100%\"\n",
    "[limits]\nlanes_max = 70000\n",
    "[limits]\nblocks_max = 10\nseq_blocks_max = 20\n",
    "[domains]\nname = \"a\"\n",
    "[[domains]]\nname = \"a\"\n",
    "[[domains]]\nname = \"a\"\nuids = 1000\n",
    "[[domains]]\nname = \"a\"\nuids = [\"root\"]\n",
];

/// Files that are wrong on this machine, with a part of the error. `@`: a directory with the files of [`Place::new`].
const WRONG_HERE: [(&str, &str); 20] = [
    ("[tiers.host]\ncapacity = \"64TiB\"\n", "tiers.host.capacity = 64TiB exceeds"),
    ("[daemon]\ndir = \"@/file\"\n", "cannot create the daemon's directory"),
    ("[daemon]\ndir = \"@/file/below\"\n", "cannot create the daemon's directory"),
    ("[daemon]\nsocket = \"@/file\"\n", "the file there is not a socket"),
    ("[daemon]\nsocket = \"@/beside\"\n", "the file there is not a socket"),
    ("[daemon]\nsocket = \"@/open/socket\"\n", "writable by all users"),
    ("[daemon]\nsocket = \"@/file/socket\"\n", "cannot create the socket directory"),
    ("[http]\nlisten = \"192.0.2.1:9417\"\n", "no interface of this machine"),
    ("[http]\ntoken_file = \"@/none\"\n", "cannot read the token file"),
    ("[[domains]]\nname = \"a\"\ntokens = [\"@/none\"]\n", "cannot read the token file"),
    ("[[domains]]\nname = \"a\"\ntokens = [\"@/short\"]\n", "expected 32 to 512"),
    ("[[domains]]\nname = \"a\"\ntokens = [\"@/readable\"]\n", "mode 0644 gives"),
    ("[[domains]]\nname = \"a\"\ntokens = [\"@/token\", \"@/again\"]\n", "same token as"),
    ("[[domains]]\nname = \"a\"\nuids = [1]\nrelay_tokens = [\"@/none\"]\n", "cannot read the token file"),
    ("[[tiers.nvme.disks]]\ndir = \"@/none/parent/disk\"\nDISK", "cannot create the directory"),
    ("[[tiers.nvme.disks]]\ndir = \"@/file\"\nDISK", "is not a directory"),
    ("[[tiers.nvme.disks]]\ndir = \"@/open\"\nDISK", "is accessible to other users"),
    ("[[tiers.nvme.disks]]\ndir = \"@/foreign\"\nDISK", "The file was not changed"),
    ("[[tiers.nvme.disks]]\ndir = \"@/new\"\ncapacity = \"60TiB\"\n", "does not fit"),
    (
        "[[tiers.nvme.disks]]\ndir = \"@/keyed\"\nDISK[tiers.nvme.encryption]\nkey = \"file\"\npath = \"@/none\"\n",
        "cannot read the key",
    ),
];

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        for (dir, mode) in [("", 0o700), ("run", 0o700), ("open", 0o777), ("foreign", 0o700)] {
            let dir = place.0.path().join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        }
        for (file, text, mode) in [
            ("file", "text", 0o600),
            ("beside.http", "text", 0o600),
            ("open/other", "text", 0o600),
            ("foreign/kvtide.store", "a file of another program", 0o600),
            ("short", "short", 0o600),
            ("readable", TOKEN, 0o644),
            ("token", TOKEN, 0o600),
            ("again", TOKEN, 0o600),
        ] {
            let path = place.0.path().join(file);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        place
    }

    /// Return the source of a file with this text, in a directory and without HTTP, unless the text sets them.
    fn source(&self, text: &str) -> Source {
        let text = text.replace('@', self.0.path().to_str().unwrap());
        let text = text.replace("DISK", "capacity = \"64MiB\"\nreserve_free = 0\n");
        let file = self.0.path().join("kvtided.toml");
        fs::write(&file, &text).unwrap();
        let overrides = Overrides {
            dir: (!text.contains("[daemon]\ndir")).then(|| self.0.path().join("run")),
            http: (!text.contains("listen")).then(String::new),
            ..Overrides::default()
        };
        Source::new(Some(file), overrides).unwrap()
    }
}

/// Run the steps of the start after its checks, up to the first error.
fn start(source: &Source) -> Result<(), Error> {
    let config = source.load()?;
    let dir = &config.daemon.dir;
    let failed = |source| Error::File { action: "create the daemon's directory", path: dir.clone(), source };
    fs::create_dir_all(dir).map_err(failed)?;
    config.http.listen.map(http::bind).transpose()?;
    Tokens::load(&config.domains)?;
    http::access(&config)?;
    let _listener = attach::bind(&config.daemon.socket, config.daemon.socket_mode)?;
    let _http = http::bind_socket(&config.daemon.socket, config.daemon.socket_mode)?;
    if let Some(tier) = config.nvme() {
        kvtide_nvme::open_all(&disks::all_settings(tier), &mut |_| ())?;
    }
    Ok(())
}

/// Return the errors of a check.
fn errors(report: &Report) -> Vec<String> {
    let report = serde_json::to_value(report).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let texts = findings.filter(|finding| finding["severity"] == "error").map(|finding| &finding["text"]);
    texts.chain([&report["error"]]).filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Return words that stand twice in a message: a cause that is repeated.
fn repeated(message: &str) -> Option<String> {
    /// Fewer words in a row stand twice in good messages too.
    const WORDS: usize = 4;
    let words: Vec<&str> = message.lines().next().unwrap_or_default().split_whitespace().collect();
    let mut seen = HashSet::new();
    words.windows(WORDS).find(|window| !seen.insert(window.to_vec())).map(|window| window.join(" "))
}

#[test]
fn what_depends_on_the_user_stops_the_daemon_and_is_a_warning_of_the_tool() {
    let place = Place::new();
    let dir = place.0.path().join("theirs");
    fs::create_dir(&dir).unwrap();
    if std::os::unix::fs::chown(&dir, Some(12345), None).is_err() {
        return eprintln!("SKIPPED: needs root to change the owner of a directory");
    }
    let source = place.source("[[tiers.nvme.disks]]\ndir = \"@/theirs\"\nDISK");
    let error = start(&source).unwrap_err().to_string();
    assert!(error.contains("is owned by uid 12345"), "{error}");
    assert_eq!(errors(&Report::of_daemon(&source)), [error]);
    assert_eq!(errors(&Report::of(&source)), [""; 0], "the daemon may run as that user");
}

#[test]
fn a_check_refuses_what_the_start_refuses_with_the_same_words() {
    let place = Place::new();
    let rows = WRONG.iter().map(|text| (*text, "kvtided.toml")).chain(WRONG_HERE);
    for (text, part) in rows {
        let source = place.source(text);
        let report = Report::of_daemon(&source);
        assert_eq!(errors(&report), errors(&Report::of(&source)), "{text}");
        let checked = errors(&report);
        let error = start(&source).expect_err(text).to_string();
        assert!(!report.starts() && checked.contains(&error), "{text}: start: {error}; check: {checked:#?}");
        assert!(error.contains(part), "{text}: {part} is not in: {error}");
        if let Ok(config) = source.load() {
            let first = obstacles(&config, &source.machine).into_iter().next().map(|first| first.error.to_string());
            assert_eq!(first, Some(error.clone()), "{text}");
        }
        assert_eq!(repeated(&error), None, "{text}: {error}");
        for word in [
            "invalid type",
            "invalid value",
            "wanted",
            "expected u",
            "expected a sequence",
            "unknown variant",
            "unknown field",
            "struct",
        ] {
            assert!(!error.contains(word), "{text}: the word of a library, {word}: {error}");
        }
    }
    let right = place.source("[[tiers.nvme.disks]]\ndir = \"@/right\"\nDISK");
    assert_eq!(errors(&Report::of(&right)), [""; 0]);
    assert!(!place.0.path().join("right").exists(), "a check creates nothing");
    start(&right).unwrap();
    assert_eq!(errors(&Report::of(&right)), [""; 0], "a store that is there is right too");
    let below = place.source("[daemon]\ndir = \"@/later/run\"\n[[tiers.nvme.disks]]\ndir = \"@/later/run/disk\"\nDISK");
    assert_eq!(errors(&Report::of(&below)), [""; 0], "the start makes the directory of the daemon first");
    start(&below).unwrap();
}
