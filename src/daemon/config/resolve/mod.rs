//! Resolves a parsed file into a configuration: applies defaults, checks ranges and contradictions.

mod daemon;
mod disks;
mod domains;
mod eviction;
mod limits;
mod nvme;
mod tiers;

use super::raw::Raw;
use super::size::ByteSize;
use super::sourced::{File, Sourced};
use super::{Config, IntegritySample, Machine, Overrides, defaults};
use crate::config::ConfigError;

/// Create an error for invalid TOML or an unknown key, with its position and its line.
pub(super) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let source = File { name: file, text };
    let (line, column) = error.span().map_or((1, 1), |span| source.place(span.start));
    let snippet = text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
    let message = match nearest(error.message()) {
        Some(key) => format!("{}; did you mean `{key}`?", error.message()),
        None => error.message().to_owned(),
    };
    ConfigError::Syntax { file: file.into(), line, column, snippet, message }
}

/// Find the unknown name in "unknown field `a`, expected one of `b`, `c`" and return the most similar known one, if any is similar.
fn nearest(message: &str) -> Option<&str> {
    let (unknown, known) = message
        .strip_prefix("unknown field `")
        .or_else(|| message.strip_prefix("unknown variant `"))?
        .split_once('`')?;
    most_like(unknown, known.split('`').skip(1).step_by(2))
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
    raw: Raw,
    overrides: &Overrides,
    machine: &Machine,
) -> Result<Config, ConfigError> {
    let file = File { name: file, text };
    let daemon = daemon::daemon(file, raw.daemon, overrides)?;
    let http = daemon::http(file, raw.http, overrides)?;
    let capacity = tiers::host_capacity(file, &raw.tiers.host, overrides, machine);
    let host = tiers::host(file, &capacity, raw.tiers.host, overrides)?;
    let disks = disks::disks(file, raw.tiers.nvme.disks.clone(), overrides)?;
    let capacities = Capacities { host: capacity, nvme: disks.total.clone() };
    let nvme = nvme::nvme(file, raw.tiers.nvme, disks)?;
    let one_in = file.field("canary.one_in", raw.canary.one_in, defaults::SAMPLE_ONE_IN);
    let sample = IntegritySample { one_in: one_in.value };
    let edges = tiers::edges(file, raw.edges, overrides, &capacities.host, nvme.is_some())?;
    let attention = tiers::attention(file, raw.attention)?;
    let sessions_max = file.field("limits.sessions_max", raw.limits.sessions_max.clone(), defaults::SESSIONS_MAX);
    let limits = limits::limits(file, &sessions_max, raw.limits, machine)?;
    let domains = domains::domains(file, raw.domains, &capacities, &sessions_max)?;
    let eviction = eviction::eviction(file, raw.eviction)?;
    Ok(Config { daemon, http, host, nvme, sample, edges, attention, eviction, limits, domains })
}

/// Capacities of the tiers, the limits of quotas.
struct Capacities {
    host: Sourced<ByteSize>,
    nvme: Sourced<ByteSize>,
}

fn watermarks(file: File<'_>, low: &Sourced<u8>, high: &Sourced<u8>) -> Result<(u8, u8), ConfigError> {
    let range = defaults::PERCENT_RANGE;
    let (low_percent, high_percent) = (file.in_range(low, &range)?, file.in_range(high, &range)?);
    if low_percent > high_percent {
        return Err(file.contradiction(low, high, "the low watermark must not be above the high one"));
    }
    Ok((low_percent, high_percent))
}
