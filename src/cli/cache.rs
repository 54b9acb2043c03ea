//! `kvtide cache`: what is cached, where it is and who uses it; pins; eviction by hand.

use super::confirm::Confirm;
use super::status::units::{bytes, duration, percent};
use super::table::Table;
use super::waiting::Waiting;
use super::which::Which;
use clap::{Args, Subcommand};
use kvtide_daemon::config::most_like;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::operate::{Done, Found, Match};
use kvtide_daemon::output;
use kvtide_daemon::status::{Hits, Snapshot, SpaceStatus};
use kvtide_types::hash_from_hex;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Flags of `kvtide cache`.
#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the spaces: cached blocks, bytes by tier, hits
    #[command(after_help = "Examples:\n  kvtide cache list\n  kvtide cache list --json")]
    List(ListArgs),
    /// Show one space: where its blocks are, its hits, its engines
    #[command(after_help = "Examples:\n  kvtide cache show llama\n  kvtide cache show 1 --json")]
    Show(ShowArgs),
    /// Find a block by its hash, or spaces and tenants by a part of their name
    #[command(
        after_help = "kvtide why says where the blocks of a prompt are, and why a block is not cached.\n\nExamples:\n  kvtide cache search llama\n  kvtide cache search 0123456789abcdef0123456789abcdef --json"
    )]
    Search(SearchArgs),
    /// Keep a prefix in the cache: the block with this hash and all blocks before it
    #[command(
        after_help = "The prefix stays until it is unpinned or the daemon ends. At most a quarter of a space's index can be pinned.\n\n\
        Examples:\n  kvtide cache pin 0123456789abcdef0123456789abcdef\n  kvtide cache pin --space 1 0123456789abcdef0123456789abcdef"
    )]
    Pin(BlockArgs),
    /// Let a pinned prefix be evicted again
    #[command(after_help = "Examples:\n  kvtide cache unpin 0123456789abcdef0123456789abcdef\n  \
        kvtide cache unpin --json 0123456789abcdef0123456789abcdef")]
    Unpin(BlockArgs),
    /// Evict a block and all blocks after it
    #[command(after_help = "Blocks that an engine uses, or that are pinned, stay.\n\nExamples:\n  \
        kvtide cache evict --dry-run 0123456789abcdef0123456789abcdef\n  kvtide cache evict --yes 0123456789abcdef0123456789abcdef")]
    Evict(EvictArgs),
    /// Evict all idle blocks of a space, of a tenant or of the daemon
    #[command(
        after_help = "Blocks that an engine uses, or that are pinned, stay. kvtide purge erases the key of a tenant's encrypted blocks \
        on disks.\n\nExamples:\n  kvtide cache clear --space 1 --dry-run\n  kvtide cache clear --all --yes"
    )]
    Clear(ClearArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Name or number of the space
    space: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct SearchArgs {
    /// Hash of a block (32 hexadecimal digits), or a part of the name of a space or tenant
    text: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct BlockArgs {
    /// Hash of the block: 32 hexadecimal digits
    hash: String,
    /// Number of the space; needed only if several spaces have the block
    #[arg(long, value_name = "N")]
    space: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct EvictArgs {
    #[command(flatten)]
    block: BlockArgs,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
struct ClearArgs {
    #[command(flatten)]
    of: Of,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Of {
    /// Name or number of a space
    #[arg(long, value_name = "SPACE")]
    space: Option<String>,
    /// Name of a tenant: its name in [[domains]]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// All spaces
    #[arg(long)]
    all: bool,
}

pub(super) fn run(args: &CacheArgs) -> ExitCode {
    let result = match &args.command {
        Command::List(args) => list(args),
        Command::Show(args) => show(args),
        Command::Search(args) => search(args),
        Command::Pin(args) => on_block("pin", args),
        Command::Unpin(args) => on_block("unpin", args),
        Command::Evict(args) => evict(args),
        Command::Clear(args) => clear(args),
    };
    result.unwrap_or_else(|error| output::failed(&error))
}

/// A space in a list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    space: u32,
    name: &'a str,
    tenant: &'a str,
    sessions: usize,
    blocks: u32,
    pinned: u32,
    host_bytes: u64,
    nvme_bytes: u64,
    hits: Hits,
}

impl Listed<'_> {
    fn of(space: &SpaceStatus) -> Listed<'_> {
        Listed {
            space: space.space,
            name: &space.name,
            tenant: &space.domain,
            sessions: space.sessions,
            blocks: space.occupancy.published,
            pinned: space.occupancy.pinned,
            host_bytes: space.occupancy.host.used_of_all().0,
            nvme_bytes: space.occupancy.nvme_used_of_all().0,
            hits: space.hits,
        }
    }
}

fn list(args: &ListArgs) -> Result<ExitCode, Error> {
    let (_, status, _) = args.which.status()?;
    let spaces: Vec<Listed<'_>> = status.spaces.iter().map(Listed::of).collect();
    if args.json {
        return Ok(output::print_json(&serde_json::json!({ "spaces": spaces }), ExitCode::SUCCESS));
    }
    if spaces.is_empty() {
        return Ok(output::print(
            "no space runs: an engine starts one when it attaches, and finds what NVMe has kept for it\n",
            ExitCode::SUCCESS,
        ));
    }
    let mut table =
        Table::new(&["space", "name", "tenant", "engines", "blocks", "host", "NVMe", "hit rate", "tokens found"]);
    for space in &spaces {
        table.row([
            space.space.to_string(),
            space.name.to_owned(),
            space.tenant.to_owned(),
            space.sessions.to_string(),
            space.blocks.to_string(),
            bytes(space.host_bytes),
            bytes(space.nvme_bytes),
            percent(space.hits.found_tokens, space.hits.asked_tokens),
            space.hits.found_tokens.to_string(),
        ]);
    }
    Ok(output::print(&table.render(), ExitCode::SUCCESS))
}

/// Return the space with this name or number.
fn space_of<'a>(status: &'a Snapshot, text: &str) -> Result<&'a SpaceStatus, Error> {
    let number: Option<u32> = text.parse().ok();
    let mut named = status.spaces.iter().filter(|space| space.name == text);
    let why = match (status.spaces.iter().find(|space| Some(space.space) == number), named.next(), named.count()) {
        (Some(space), ..) | (None, Some(space), 0) => return Ok(space),
        (None, Some(_), more) => {
            format!("{} spaces have the name {text:?}; give the number (kvtide cache list)", more + 1)
        }
        (None, None, _) => {
            let near = most_like(text, status.spaces.iter().map(|space| space.name.as_str()));
            let near = near.map_or(String::new(), |near| format!("did you mean {near:?}? "));
            format!("there is no space {text:?}; {near}kvtide cache list shows the spaces")
        }
    };
    Err(Error::Refused { address: String::new(), code: String::new(), why })
}

fn show(args: &ShowArgs) -> Result<ExitCode, Error> {
    let (_, status, _) = args.which.status()?;
    let space = space_of(&status, &args.space)?;
    if args.json {
        return Ok(output::print_json(&serde_json::json!({ "space": space }), ExitCode::SUCCESS));
    }
    let full = &space.occupancy;
    let room = |(used, all): (u64, u64)| format!("{} of {}", bytes(used), bytes(all));
    let mut text = format!("space {} {}  (tenant {})\n", space.space, space.name, space.domain);
    let _ = writeln!(
        text,
        "  blocks   {} cached, {} of them only on NVMe, {} pinned",
        full.published, full.index_only, full.pinned
    );
    let _ = writeln!(text, "  tier 0   {} used", room(full.tier0.used_of_all()));
    let _ = writeln!(text, "  host     {} used", room(full.host.used_of_all()));
    let _ = writeln!(text, "  NVMe     {} used", room(full.nvme_used_of_all()));
    text += &hits_text(&space.hits);
    for session in &space.attached {
        let known = status.sessions.iter().find(|info| info.session == session.session).cloned().unwrap_or_default();
        let _ = writeln!(
            text,
            "  engine   session {}, {} (pid {}), shard {}: {} of {} tokens found, {} loaded",
            session.session,
            known.program,
            known.pid,
            known.shard,
            session.hits.found_tokens,
            session.hits.asked_tokens,
            session.hits.loaded_tokens.total()
        );
    }
    Ok(output::print(&text, ExitCode::SUCCESS))
}

/// Return two lines about hits.
pub(super) fn hits_text(hits: &Hits) -> String {
    let Hits { asked_tokens, found_tokens, loaded_tokens, .. } = *hits;
    format!(
        "  hits     {} of the tokens asked for: {found_tokens} of {asked_tokens}; since start\n  \
           loaded   {} tokens: {} from tier 0, {} from host memory, {} from NVMe; loading took {}\n",
        percent(found_tokens, asked_tokens),
        loaded_tokens.total(),
        loaded_tokens.tier0,
        loaded_tokens.host,
        loaded_tokens.nvme,
        load_time(hits)
    ) + &slow(hits).map_or(String::new(), |slow| format!("  SLOW     {slow}\n"))
}

/// Return the time that loading took. The time that it saved is not shown: computing was never measured, only estimated by
/// `eviction.recompute_tokens_per_s`.
pub(super) fn load_time(hits: &Hits) -> String {
    short(hits.load_us as f64 * 1e-6)
}

/// Say that loading is slower than computing, if it is by the configured speed.
pub(super) fn slow(hits: &Hits) -> Option<String> {
    let computing = short(hits.recompute_us as f64 * 1e-6);
    (hits.recompute_us > 0 && hits.saved_us() < 0).then(|| {
        format!(
            "loading took {}; computing would take {computing} by eviction.recompute_tokens_per_s: set it to the prefill speed of your \
             engine",
            load_time(hits)
        )
    })
}

fn short(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 60.0 => format!("{seconds:.1} s"),
        seconds => duration(seconds),
    }
}

fn search(args: &SearchArgs) -> Result<ExitCode, Error> {
    let text = &args.text;
    let found: Found = args.which.read(&format!("/v1/cache/search?q={}", encoded(text)), None)?;
    let status = ExitCode::from(if found.matches.is_empty() { output::FAILED } else { 0 });
    if args.json {
        return Ok(output::print_json(&found, status));
    }
    if found.matches.is_empty() {
        let hint = match (found.near, hash_from_hex(text)) {
            (Some(near), _) => format!("; did you mean {near:?}?"),
            (None, Some(_)) => format!("; `kvtide why {text}` says why"),
            (None, None) => String::new(),
        };
        output::say(format_args!("kvtide: no cached block, space or tenant matches {text:?}{hint}"));
        return Ok(status);
    }
    let mut lines: String = found.matches.iter().map(shown).collect();
    if found.more > 0 {
        let _ = writeln!(lines, "and {} more", found.more);
    }
    Ok(output::print(&lines, status))
}

/// Describe a match in a few lines.
fn shown(found: &Match) -> String {
    let mut text = match (&*found.kind, &found.hash) {
        ("block", Some(hash)) => {
            let position = found.position.unwrap_or_default();
            format!(
                "block {hash}  in space {} {} (tenant {}), {position} blocks before it\n",
                found.space, found.name, found.tenant
            )
        }
        ("space", _) => {
            format!("space {} {}  (tenant {})  {} blocks\n", found.space, found.name, found.tenant, found.blocks)
        }
        _ => format!("{} {}  {} blocks\n", found.kind, found.name, found.blocks),
    };
    let tiers: Vec<String> = found.tiers.iter().map(|tier| format!("{} {}", tier.tier, bytes(tier.bytes))).collect();
    let _ = writeln!(text, "  where      {}", tiers.join(", "));
    for user in &found.users {
        let since = duration(user.since_s as f64);
        let _ =
            writeln!(text, "  used by    session {}, {} (pid {}), for {since}", user.session, user.program, user.pid);
    }
    if found.pinned {
        let end = if found.kind == "block" && !found.ends_pinned { ": a longer prefix is" } else { "" };
        let _ = writeln!(text, "  pinned     yes{end}");
    }
    if let Some(evicted) = &found.evicted_next {
        let _ = writeln!(text, "  evicted by {evicted}");
    }
    text
}

/// Encode a text for a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn on_block(action: &str, args: &BlockArgs) -> Result<ExitCode, Error> {
    let body = serde_json::json!({ "hash": args.hash, "space": args.space }).to_string();
    let done: Done = args.which.read(&format!("/v1/cache/{action}"), Some(&body))?;
    Ok(told(&done, args.json))
}

fn told(done: &Done, json: bool) -> ExitCode {
    match json {
        true => output::print_json(done, ExitCode::SUCCESS),
        false => output::print(&format!("{}\n", done.text), ExitCode::SUCCESS),
    }
}

fn evict(args: &EvictArgs) -> Result<ExitCode, Error> {
    let EvictArgs { block, confirm } = args;
    // What is not there is an error before the question.
    let found: Found = block.which.read(&format!("/v1/cache/search?q={}", encoded(&block.hash)), None)?;
    let is_asked = |found: &&Match| found.kind == "block" && block.space.is_none_or(|space| space == found.space);
    // If several spaces have it and none was named, the daemon refuses.
    let Some(found) = found.matches.iter().find(is_asked) else {
        let space = block.space.map_or("no space has a".to_owned(), |space| format!("space {space} has no"));
        let why = format!("{space} block with the hash {}", block.hash);
        return Err(Error::Refused { address: String::new(), code: String::new(), why });
    };
    let what = format!("evict block {} and the blocks after it of space {} ({})", block.hash, found.space, found.name);
    if let Err(status) = confirm.ask(&what) {
        return Ok(status);
    }
    on_block("evict", block)
}

fn clear(args: &ClearArgs) -> Result<ExitCode, Error> {
    let (_, status, _) = args.which.status()?;
    let (body, blocks, of) = match (&args.of.space, &args.of.tenant) {
        (Some(text), _) => {
            let space = space_of(&status, text)?;
            let of = format!("space {} ({})", space.space, space.name);
            (serde_json::json!({ "space": space.space }), u64::from(space.occupancy.published), of)
        }
        (_, Some(name)) => {
            let tenant = status.tenants.iter().find(|tenant| tenant.name == *name);
            let blocks = tenant.map_or(0, |tenant| tenant.blocks);
            (serde_json::json!({ "tenant": name }), blocks, format!("tenant {name}"))
        }
        _ => {
            let blocks = status.spaces.iter().map(|space| u64::from(space.occupancy.published)).sum();
            (serde_json::json!({ "all": true }), blocks, format!("{} spaces", status.spaces.len()))
        }
    };
    let what = format!("evict up to {blocks} cached blocks of {of}; those that engines use or that are pinned stay");
    if let Err(status) = args.confirm.ask(&what) {
        return Ok(status);
    }
    let (body, mut waiting, mut all) = (body.to_string(), Waiting::new(), Done::default());
    loop {
        let done: Done = args.which.read("/v1/cache/clear", Some(&body))?;
        let evicted = all.evicted + done.evicted;
        all = Done { evicted, ..done };
        // Blocks stored meanwhile do not count.
        if !all.more || evicted > blocks {
            break;
        }
        waiting.tell(&format!("evicting: {evicted} of up to {blocks} blocks evicted"), None);
    }
    drop(waiting);
    let stay = if all.left > 0 { format!("; {} stay: in use or pinned", all.left) } else { String::new() };
    all.text = format!("evicted {} blocks of {of}{stay}", all.evicted);
    Ok(told(&all, args.json))
}
