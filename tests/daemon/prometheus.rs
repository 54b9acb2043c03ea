//! Metrics, alert rules and dashboard by the tools of Prometheus: `promtool` finds nothing to complain about, each alert fires in the
//! state that it names, and a real server that scrapes a loaded daemon has data for every query of the dashboard.
//!
//! If a tool is missing, a test prints that it is skipped; with `KVTIDE_NO_SKIP` set it fails instead.

use crate::BOUND;
use crate::blocks::{Memory, attach_as, hashes, load, store};
use crate::http::{exchange, get};
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use crate::tokens::Files;
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Channel, Client, SeqId};
use kvtide_wire::entry::Level;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ALERTS: &str = include_str!("../../configs/alerts/kvtide.yml");
const ALERT_TESTS: &str = include_str!("../alerts/kvtide.yml");
const DASHBOARD: &str = include_str!("../../configs/grafana/kvtide.json");

/// Blocks of a prefix that the engine of the block API stores in one round.
const PREFIX_BLOCKS: u32 = 8;

/// Return whether a program is installed. If not, the test is skipped.
fn has(program: &str) -> bool {
    match Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => true,
        Err(error) if std::env::var_os("KVTIDE_NO_SKIP").is_some() => panic!("{program} cannot be run: {error}"),
        Err(error) => {
            println!("skipped: {program} cannot be run: {error}");
            false
        }
    }
}

/// Run `promtool` with an input and return its output.
fn promtool(args: &[&str], input: &str) -> Output {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Return what a program wrote.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// A daemon with three tiers, and an engine of each API, each in a domain of its own.
struct Loaded {
    paged: Engine,
    seqs: Vec<(SeqId, u32)>,
    _client: Client,
    channel: Channel,
    memory: Memory,
    rounds: u128,
    _daemon: PrivateDaemon,
    address: SocketAddr,
    _files: Files,
    _dir: Dir,
}

impl Loaded {
    fn start() -> Loaded {
        let dir = Dir::new();
        let files = Files::new();
        let uid = rustix::process::geteuid().as_raw();
        // The quota leaves host memory for the other tenant.
        let rest = format!(
            "[integrity_sample]\none_in = 1\n\
             [[domains]]\nname = \"paged\"\nuids = [{uid}]\nhost = \"512KiB\"\n\
             [[domains]]\nname = \"blocks\"\ntokens = [\"{}\"]\n",
            files.path("a").display()
        );
        let options = nvme_options(&dir, NVME_BYTES, "", &rest);
        // The disk's table is the last one: these keys apply to it.
        let config = options.config.map(|text| text + "bytes_per_day = \"1TiB\"\nendurance = \"1PiB\"\n");
        let host_bytes = Some(1 << 20);
        let options = Options { http: Some("127.0.0.1:0".into()), host_bytes, config, ..options };
        let mut daemon = PrivateDaemon::start(&options).unwrap();
        let address = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
        let mut paged = Engine::attach(daemon.socket(), 1);
        let seqs = paged.write_all();
        let (_client, channel, memory) = attach_as(daemon.socket(), Some(files.path("a")), (1, 0), 2 * PREFIX_BLOCKS);
        Loaded { paged, seqs, _client, channel, memory, rounds: 0, _daemon: daemon, address, _files: files, _dir: dir }
    }

    /// Read all sequences; store, look up and load a prefix.
    fn round(&mut self) {
        self.rounds += 1;
        self.paged.read_all(&self.seqs).unwrap();
        store(&mut self.channel, &mut self.memory, self.rounds, PREFIX_BLOCKS, Level::Published);
        for prefix in [self.rounds, self.rounds + 1] {
            let found = self.channel.lookup(&hashes(prefix, PREFIX_BLOCKS), BOUND).unwrap();
            assert_eq!(found.blocks, if prefix == self.rounds { PREFIX_BLOCKS } else { 0 });
        }
        load(&mut self.channel, &mut self.memory, self.rounds, PREFIX_BLOCKS);
    }
}

/// A Prometheus server that scrapes a daemon every second and evaluates the alert rules.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Prometheus {
    fn start(dir: &Path, target: SocketAddr) -> Prometheus {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/alerts/kvtide.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\n\
             scrape_configs: [{{job_name: kvtide, static_configs: [{{targets: [{:?}]}}]}}]\n",
            target.to_string()
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        // Another process may take the port before the server does.
        (0..3).find_map(|_| Prometheus::try_start(dir)).unwrap_or_else(|| {
            panic!("prometheus does not start: {}", fs::read_to_string(dir.join("log")).unwrap_or_default())
        })
    }

    fn try_start(dir: &Path) -> Option<Prometheus> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = dir.join("log");
        let mut command = Command::new("prometheus");
        command.arg(format!("--web.listen-address={address}"));
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let mut server = Prometheus { child: command.spawn().unwrap(), address, log };
        let deadline = Instant::now() + BOUND;
        while std::net::TcpStream::connect(address).is_err() || get(address, "/-/ready").0 != 200 {
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "prometheus is not ready: {}", server.log());
            // PACE: polls a start of half a second, with a bound.
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Return the data of an answer of its API.
    fn api(&self, path: &str) -> Value {
        // HTTP 1.0: the answer comes in one piece.
        let (_, _, body) = exchange(self.address, &format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n"));
        let mut answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
        assert_eq!(answer["status"], "success", "{path}: {body}");
        answer["data"].take()
    }

    /// Return the values of a query's present samples.
    fn query(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.api(&format!("query?query={encoded}"));
        let samples = data["result"].as_array().unwrap().iter();
        samples.map(|sample| sample["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Return title and query of each target of the dashboard's panels, as Grafana would send the query.
fn panel_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let of_panel = |panel: &Value| -> Vec<(String, String)> {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} has no query");
        let query = |target: &Value| {
            let query = target["expr"].as_str().unwrap();
            [("$__rate_interval", "30s"), ("$__range", "1m"), ("$instance", ".*"), ("$space", ".*")]
                .into_iter()
                .fold(query.to_owned(), |query, (variable, value)| query.replace(variable, value))
        };
        targets.iter().map(|target| (title.to_owned(), query(target))).collect()
    };
    let queries: Vec<_> = panels.flat_map(of_panel).collect();
    assert!(queries.iter().all(|(_, query)| !query.contains('$')), "a variable without a value: {queries:#?}");
    queries
}

#[test]
fn promtool_accepts_what_a_loaded_daemon_exports() {
    if !has("promtool") {
        return;
    }
    let mut loaded = Loaded::start();
    loaded.round();
    let (code, _, page) = get(loaded.address, "/metrics");
    assert_eq!(code, 200);
    let checked = promtool(&["check", "metrics"], &page);
    assert_eq!((checked.status.code(), said(&checked).as_str()), (Some(0), ""), "{page}");
    let wrong = promtool(&["check", "metrics"], "# TYPE a_total gauge\na_total 1\n");
    assert_eq!(wrong.status.code(), Some(3), "{}", said(&wrong));
}

#[test]
fn each_alert_fires_in_the_state_that_it_names_and_not_otherwise() {
    let named = |text: &'static str, before: &str, end: char| -> BTreeSet<&'static str> {
        let after = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
        after.filter_map(|rest| rest.split(end).next()).collect()
    };
    let alerts = named(ALERTS, "- alert: ", '\n');
    assert!(alerts.len() > 20, "{alerts:?}");
    assert_eq!(alerts, named(ALERT_TESTS, "alertname=\"", '"'), "left: alerts, right: those with a test");
    // Labels in the text of an alert are labels of the alert.
    for alert in ALERTS.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let of_alert = format!("ALERTS{{alertname=\"{name}\"");
        for label in named(alert, "$labels.", ' ') {
            let mut fired = ALERT_TESTS.lines().filter(|line| line.contains(&of_alert));
            assert!(fired.all(|line| line.contains(&format!(" {label}=\""))), "{name} has no label {label}");
        }
    }
    if !has("promtool") {
        return;
    }
    for args in [["check", "rules", "configs/alerts/kvtide.yml"], ["test", "rules", "tests/alerts/kvtide.yml"]] {
        let checked = promtool(&args, "");
        assert!(checked.status.success(), "{args:?}: {}", said(&checked));
    }
}

#[test]
fn a_server_that_scrapes_a_loaded_daemon_has_data_for_every_panel() {
    if !has("prometheus") {
        return;
    }
    let mut loaded = Loaded::start();
    let dir = Dir::new();
    let server = Prometheus::start(dir.path(), loaded.address);
    let mut missing = panel_queries();
    assert!(missing.len() > 80, "{missing:#?}");
    // A rate needs activity between two scrapes, so the load goes on until each query had data.
    let deadline = Instant::now() + 2 * BOUND;
    while !missing.is_empty() {
        assert!(Instant::now() < deadline, "no data after {} rounds: {missing:#?}\n{}", loaded.rounds, server.log());
        loaded.round();
        missing.retain(|(_, query)| server.query(query).iter().all(|value| value.is_nan()));
    }
    // All rules have been evaluated without an error, and no critical alert fires: the daemon is healthy.
    let evaluated = |rules: &[Value]| rules.iter().all(|rule| rule["health"] != "unknown");
    let rules = loop {
        let rules = server.api("rules")["groups"][0]["rules"].as_array().unwrap().clone();
        if evaluated(&rules) {
            break rules;
        }
        assert!(Instant::now() < deadline, "rules are not evaluated: {rules:#?}");
    };
    assert_eq!(rules.len(), ALERTS.matches("- alert: ").count());
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        assert!(rule["labels"]["severity"] != "critical" || rule["state"] != "firing", "{rule:#}");
    }
    // Samples with equal labels would be dropped with this message.
    assert!(!server.log().contains("Error on ingesting"), "{}", server.log());
}
