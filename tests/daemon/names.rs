//! Metric names, labels and label values in docs/reference/metrics.md, the dashboard and the alert rules exist in a scrape of a
//! daemon under load; those of relays in the alert rules, in a scrape of a relay.

use crate::http::{get, metric};
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use crate::shared::metrics_of_a_relay;
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use std::collections::{BTreeMap, BTreeSet};

const DOCS: &str = include_str!("../../docs/reference/metrics.md");
const ALERTS: &str = include_str!("../../configs/alerts/kvtide.yml");
const DASHBOARD: &str = include_str!("../../configs/grafana/kvtide.json");

/// Labels that the scraper adds, and the label of histogram buckets.
const ADDED: [&str; 3] = ["instance", "job", "le"];

/// Metrics of a daemon: family names as documented, sample names, and the labels and label values of each sample.
#[derive(Default)]
struct Exported {
    families: BTreeSet<String>,
    samples: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl Exported {
    fn read(page: &str) -> Exported {
        let mut exported = Exported::default();
        for line in page.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, _) = described.split_once(' ').unwrap();
                exported.families.insert(name.to_owned());
            } else if !line.starts_with('#') {
                let end = line.find(['{', ' ']).unwrap();
                let labels = exported.samples.entry(line[..end].to_owned()).or_default();
                for (label, value) in selectors(&line[end..]).0 {
                    labels.entry(label).or_default().insert(value);
                }
            }
        }
        exported
    }

    /// Return whether a family, or a sample of a histogram, has this name.
    fn describes(&self, name: &str) -> bool {
        self.families.contains(name) || self.samples.contains_key(name)
    }
}

/// Parse the `{…}` at the start of a text. Return the `label="value"` pairs, and the labels with another operator than `=`.
fn selectors(text: &str) -> (Vec<(String, String)>, Vec<String>) {
    let (mut equal, mut others) = (Vec::new(), Vec::new());
    let Some(mut rest) = text.strip_prefix('{') else { return (equal, others) };
    while let Some((label, after)) = rest.split_once(['=', '!']) {
        let label = label.trim_matches([',', ' ']).to_owned();
        let quote = after.find('"').unwrap();
        let value_end = quote + 1 + after[quote + 1..].find('"').unwrap();
        let value = after[quote + 1..value_end].to_owned();
        match quote == 0 && !rest.contains(&format!("{label}!")) {
            true => equal.push((label, value)),
            false => others.push(label),
        }
        rest = &after[value_end + 1..];
        if rest.starts_with('}') {
            break;
        }
    }
    (equal, others)
}

/// Return every `kvtide_…` name in a text, each with the text after it.
fn names(text: &str) -> Vec<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = text.match_indices("kvtide_").map(|(at, _)| at);
    let whole = starts.filter(|at| !text[..*at].ends_with(is_name));
    whole
        .map(|at| {
            let end = text[at..].find(|c| !is_name(c)).map_or(text.len(), |len| at + len);
            (&text[at..end], &text[end..])
        })
        .collect()
}

/// Return the names, labels and label values of a query that are not exported.
fn problems(query: &str, exported: &Exported) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, rest) in names(query) {
        let Some(labels) = exported.samples.get(name) else {
            problems.push(format!("{name} is not exported"));
            continue;
        };
        let (equal, others) = selectors(rest);
        for (label, value) in &equal {
            if !ADDED.contains(&label.as_str()) && !labels.get(label).is_some_and(|values| values.contains(value)) {
                problems.push(format!("{name} has no {label}=\"{value}\""));
            }
        }
        for label in others.iter().filter(|label| !ADDED.contains(&label.as_str()) && !labels.contains_key(*label)) {
            problems.push(format!("{name} has no label {label}"));
        }
    }
    problems
}

/// Collect all queries of the dashboard.
fn dashboard_queries(value: &serde_json::Value, queries: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(query) if ["expr", "query", "definition"].contains(&key.as_str()) => {
                        queries.push(query.into())
                    }
                    _ => dashboard_queries(value, queries),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| dashboard_queries(value, queries)),
        _ => {}
    }
}

#[test]
fn what_operators_name_is_what_a_loaded_daemon_exports() {
    let dir = Dir::new();
    let mut options = Options { http: Some("127.0.0.1:0".into()), ..nvme_options(&dir, NVME_BYTES, "", "") };
    // The disk's table is the last one: these keys apply to it. Both are needed for kvtide_disk_life_seconds.
    options.config = options.config.map(|text| text + "bytes_per_day = \"1TiB\"\nendurance = \"1PiB\"\n");
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let address = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seqs = engine.write_all();
    engine.read_all(&seqs).unwrap();
    let (code, _, page) = get(address, "/metrics");
    assert_eq!(code, 200);
    let exported = Exported::read(&page);

    // The effects of the load are visible.
    for (name, labels) in [
        ("kvtide_page_requests_total", &["tier=\"nvme\""][..]),
        ("kvtide_migration_bytes_total", &["source=\"host\"", "destination=\"nvme\""]),
        ("kvtide_migration_bytes_total", &["source=\"nvme\"", "destination=\"host\""]),
        ("kvtide_disk_bytes_total", &["operation=\"write\"", "class=\"write_back\""]),
        ("kvtide_disk_device_seconds_count", &["operation=\"read\""]),
        ("kvtide_requests_total", &["operation=\"step\""]),
        ("kvtide_request_seconds_total", &["operation=\"other\""]),
        ("kvtide_tier_bytes", &["tier=\"nvme\"", "state=\"used\""]),
        ("kvtide_disk_written_today_bytes", &[]),
        ("kvtide_disk_page_written_bytes_total", &[]),
        ("kvtide_disk_device_written_bytes_total", &["kind=\"pages\""]),
        ("kvtide_disk_write_amplification", &[]),
        ("kvtide_disk_life_seconds", &[]),
        ("kvtide_disk_day_limit_bytes", &[]),
        ("kvtide_disk_log_limit_bytes", &[]),
    ] {
        assert!(metric(&page, name, labels) > Some(0.0), "{name} {labels:?} in:\n{page}");
    }
    assert_eq!(metric(&page, "kvtide_disk_info", &["mode=\""]), Some(1.0));
    assert_eq!(metric(&page, "kvtide_lost_pages_total", &[]), Some(0.0));

    let series = page.lines().filter(|line| line.contains("space=\"1\"")).count();
    assert!((100..=120).contains(&series), "{series} series of one space");

    // Every exported family has a row in the tables, and every row names an exported family.
    let rows = DOCS.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(documented, exported.families, "left: docs/reference/metrics.md, right: exported");
    for (name, _) in names(DOCS) {
        assert!(exported.describes(name), "docs/reference/metrics.md names {name}, which is not exported");
    }

    let mut queries = Vec::new();
    dashboard_queries(&serde_json::from_str(DASHBOARD).unwrap(), &mut queries);
    let of_dashboard = queries.iter().flat_map(|query| problems(query, &exported));
    let with_relay = Exported::read(&(page + &metrics_of_a_relay(&daemon)));
    let rules = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let of_alerts = rules.clone().flat_map(|query| problems(query, &with_relay));
    let found: Vec<String> = of_dashboard.chain(of_alerts).collect();
    assert!(found.is_empty(), "{found:#?}");
    assert!(queries.len() > 40 && rules.count() > 10, "fewer queries found than the dashboard and the rules contain");
    for (text, exported) in [(ALERTS, &with_relay), (DASHBOARD, &exported)] {
        for (name, _) in names(text) {
            assert!(exported.samples.contains_key(name), "{name} appears outside of a query and is not exported");
        }
    }
}

#[test]
fn the_check_fails_on_bad_names_labels_and_values() {
    let page = "# TYPE kvtide_a_total counter\nkvtide_a_total{tier=\"host\",name=\"x\"} 1\n# TYPE kvtide_b gauge\nkvtide_b 2\n";
    let exported = Exported::read(page);
    assert_eq!(exported.families, BTreeSet::from(["kvtide_a_total".into(), "kvtide_b".into()]));
    let count = |query: &str| problems(query, &exported).len();
    assert_eq!(
        count("rate(kvtide_a_total{tier=\"host\", name=~\"$space\", instance=~\"$instance\"}[5m]) > kvtide_b"),
        0
    );
    assert_eq!(count("kvtide_a"), 1, "without its _total");
    assert_eq!(count("kvtide_a_total{tier=\"disk\"}"), 1);
    assert_eq!(count("kvtide_a_total{tear=~\"host\"} + kvtide_a_total{tier!=\"none\", tear!~\"x\"}"), 2);
    assert_eq!(count("kvtide_b{tier=\"host\"}"), 1);
}
