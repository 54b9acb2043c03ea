//! Tests of `[domains.events]`.

use super::*;

const STORE: &str = "[store]\nurl = \"redis://h\"\n";

/// Parse a file whose first domain has these keys of events.
fn parse(keys: &str) -> Result<Config, String> {
    let text = format!("[[domains]]\nname = \"a\"\nshared_key_file = \"/k\"\n[domains.events]\n{keys}\n{STORE}");
    Config::parse(Path::new("relay.toml"), &text).map_err(|error| error.to_string())
}

fn events(keys: &str) -> Events {
    parse(keys).unwrap().domains.remove(0).events.unwrap()
}

#[test]
fn by_default_named_users_get_events_at_unix_sockets() {
    let found = events("uids = [7]");
    assert_eq!((&found.publish, &found.replay), (&publish(), &replay()));
    assert_eq!((found.uids, found.mode, found.token_file, found.anyone), (vec![7], None, None, false));
    assert_eq!(events("uids = [7]\nmode = \"0600\"").mode, Some(Mode(0o600)));
}

/// The example has every key; those in comments have the defaults, except for `uids`, which has none.
#[test]
fn the_example_has_every_key_with_its_default() {
    let text = include_str!("../../../../configs/relay.toml");
    let table = text.split("# [domains.events]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let keys = |start: &str| -> String {
        let lines = table.lines().filter_map(|line| line.strip_prefix(start)).filter(|line| line.contains(" = "));
        lines.map(|line| format!("{line}\n")).collect()
    };
    let found = Events { mode: None, ..events(&keys("# ")) };
    assert_eq!(format!("{found:?}"), format!("{:?}", events("uids = [1001]")));
    assert!(keys("# ").contains("mode = \"0660\""), "the default, which is MODE");
    for key in format!("{found:#?}").lines().filter_map(|line| Some(line.strip_prefix("    ")?.split_once(": ")?.0)) {
        assert!(table.contains(&format!("# {key} = ")), "{key}");
    }
    // One of the two keys that exclude each other.
    let tcp = events(&keys("## ").replace("anyone = true\n", ""));
    assert!(tcp.token_file.is_some() && tcp.publish.to_string() == "tcp://127.0.0.1:5557");
}

#[test]
fn each_space_has_addresses_of_its_own() {
    let found = events("publish = \"tcp://[::1]:65520\"\nreplay = \"tcp://127.0.0.1:5657\"\nanyone = true");
    let shown = |address: &Address, index| address.of_space(index).to_string();
    assert_eq!([0, 1, 15].map(|i| shown(&found.publish, i)), [65520, 65521, 65535].map(|p| format!("tcp://[::1]:{p}")));
    assert_eq!(shown(&found.replay, 2), "tcp://127.0.0.1:5659");
    assert_eq!([0, 1].map(|i| shown(&publish(), i)), ["", "-2"].map(|end| format!("{}{end}", publish())));
}

#[test]
fn keys_that_do_not_fit_together_are_refused_with_what_to_do() {
    const TCP: &str = "publish = \"tcp://127.0.0.1:5557\"\nreplay = \"tcp://127.0.0.1:5657\"\n";
    let tcp = |rest: &str| format!("{TCP}{rest}");
    for (keys, parts) in [
        ("".into(), vec!["line 1: domain \"a\": [domains.events]", "expected uids"]),
        (tcp(""), vec!["set token_file", "ipc:// with uids", "anyone = true"]),
        (tcp("anyone = false"), vec!["set token_file"]),
        (tcp("uids = [1]"), vec!["uids is for ipc://", "token_file"]),
        (tcp("mode = \"0660\"\nanyone = true"), vec!["mode is for ipc://"]),
        (tcp("token_file = \"/t\"\nanyone = true"), vec!["either token_file or anyone"]),
        (tcp("uids = [1]\nanyone = true"), vec!["uids is for ipc://"]),
        ("uids = [1]\ntoken_file = \"/t\"".into(), vec!["token_file is for tcp://", "uids"]),
        ("uids = [1]\nanyone = true".into(), vec!["anyone is for tcp://", "uids"]),
        ("uids = [1]\nreplay = \"tcp://h:1\"".into(), vec!["both ipc:// or both tcp://"]),
        (format!("uids = {:?}", vec![1; 65]), vec!["65 user ids", "maximum is 64"]),
        (
            "publish = \"tcp://h:65521\"\nreplay = \"tcp://h:5557\"\nanyone = true".into(),
            vec!["port 65521", "65520 at most"],
        ),
        ("uids = [1]\nmode = \"999\"".into(), vec!["line 6", "\"999\"", "expected an octal"]),
        ("uids = [1]\nmode = \"0o66\"".into(), vec!["expected an octal"]),
        ("publish = \"5558\"".into(), vec!["line 5", "5558", "ipc:///PATH or tcp://HOST:PORT"]),
        ("publish = \"tcp://a:0\"".into(), vec!["line 5", "tcp://HOST:PORT"]),
        ("publish = \"tcp://*:1\"".into(), vec!["0.0.0.0"]),
        ("publish = \"ipc://@kvtide\"".into(), vec!["absolute path"]),
        ("publish = \"ipc://events\"".into(), vec!["absolute path"]),
        (format!("publish = \"ipc:///{}\"", "p".repeat(105)), vec!["more than 104 bytes"]),
        ("uids = [1]\ntokens_mib = 0".into(), vec!["tokens_mib = 0"]),
        (
            "publish = \"tcp://h:5557\"\nreplay = \"tcp://h:5558\"\nanyone = true".into(),
            vec!["publish and replay", "16 apart"],
        ),
        ("uids = [1]\npublish = \"ipc:///e\"\nreplay = \"ipc:///e-2\"".into(), vec!["publish and replay", "ipc:///e-"]),
    ] {
        let error = parse(&keys).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{keys}: {parts:?}: {error}");
    }
    // The table of all domains is gone.
    let text = format!("[[domains]]\nname = \"a\"\nshared_key_file = \"/k\"\n{STORE}[events]\n");
    assert!(Config::parse(Path::new("relay.toml"), &text).unwrap_err().to_string().contains("unknown field `events`"));
}

#[test]
fn domains_share_neither_addresses_nor_tokens() {
    let second = |keys: &str| {
        let domain = "[[domains]]\nname = \"b\"\nshared_key_file = \"/l\"\ntoken_file = \"/t\"\n[domains.events]";
        parse(&format!("uids = [1]\n{domain}\nuids = [1]\n{keys}"))
    };
    let own = "publish = \"ipc:///b-publish\"\nreplay = \"ipc:///b-replay\"";
    let error = second(own).unwrap_err();
    assert!(error.contains("line 6: domain \"b\"") && error.contains("tokens_dir /var/lib/kvtide-relay"), "{error}");
    let error = second("tokens_dir = \"/b\"").unwrap_err();
    assert!(error.contains("also an address of domain \"a\""), "{error}");
    let error =
        second("tokens_dir = \"/b\"\npublish = \"ipc:///p\"\nreplay = \"ipc:///run/kvtide-relay/events-publish-3\"")
            .unwrap_err();
    assert!(error.contains("address of domain \"a\""), "{error}");
    assert_eq!(second(&format!("tokens_dir = \"/b\"\n{own}")).unwrap().domains.len(), 2);
}

#[test]
fn events_for_everyone_or_over_a_network_are_warned_about() {
    let tcp =
        |host: &str, rest: &str| format!("publish = \"tcp://{host}:5557\"\nreplay = \"tcp://{host}:5657\"\n{rest}");
    let warnings = |keys: String| parse(&keys).unwrap().warnings().join("; ");
    assert_eq!(warnings("uids = [1]".into()), "");
    assert_eq!(warnings(tcp("127.0.0.1", "token_file = \"/t\"")), "");
    assert_eq!(warnings(tcp("[::1]", "token_file = \"/t\"")), "");
    let anyone = warnings(tcp("127.0.0.1", "anyone = true"));
    assert!(
        anyone.contains("domain \"a\"") && anyone.contains("every user") && !anyone.contains("network"),
        "{anyone}"
    );
    let remote = warnings(tcp("0.0.0.0", "token_file = \"/t\""));
    assert!(remote.contains("without encryption") && !remote.contains("every user"), "{remote}");
}
