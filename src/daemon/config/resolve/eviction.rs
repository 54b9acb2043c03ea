//! `[eviction]`.

use crate::config::raw::RawEviction;
use crate::config::sourced::File;
use crate::config::{ConfigError, Eviction, defaults};
use kvtide_tiering::api;
use std::time::Duration;

pub(super) fn eviction(file: File<'_>, raw: RawEviction) -> Result<Eviction, ConfigError> {
    let policy = file.field("eviction.policy", raw.policy, defaults::EVICTION.to_owned());
    let Some(found) = api::Eviction::from_name(&policy.value) else {
        let names = api::Eviction::ALL.map(|policy| format!("`{}`", policy.name())).join(", ");
        return Err(file.value(&policy, format!("one of {names}")));
    };
    let ttl = file.field("eviction.ttl_s", raw.ttl_s, defaults::TTL_S);
    let high = file.field("eviction.high_share_percent", raw.high_share_percent, defaults::HIGH_SHARE_PERCENT);
    let rate = "eviction.recompute_tokens_per_s";
    let doubles = "eviction.attention_doubles_at";
    let ending = file.field("eviction.ending_tokens", raw.ending_tokens, defaults::ENDING_TOKENS);
    Ok(Eviction {
        policy: found,
        ttl: Duration::from_secs(file.in_range(&ttl, &defaults::TTL_S_RANGE)?),
        high_share_percent: file.in_range(&high, &defaults::PERCENT_RANGE)?,
        recompute_tokens_per_s: file.field(rate, raw.recompute_tokens_per_s, defaults::RECOMPUTE_TOKENS_PER_S).value,
        attention_doubles_at: file.field(doubles, raw.attention_doubles_at, defaults::ATTENTION_DOUBLES_AT).value,
        ending_tokens: ending.value,
    })
}
