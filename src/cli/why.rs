//! `kvtide why`: where the blocks of a prompt are, or why they are not cached.

use super::status::units::{bytes, duration};
use super::which::Which;
use clap::Args;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::operate::{HASHES_MAX, Located, LocatedBlock, LocatedIn, LookupOfRequest, Missing};
use kvtide_daemon::output;
use kvtide_types::{Cause, hash_from_hex};
use serde::Serialize;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Maximum blocks: a million tokens in blocks of 16.
const BLOCKS_MAX: usize = 1 << 16;
/// Maximum bytes of a file: a hash and a line end for each block, twice.
const FILE_BYTES_MAX: u64 = 2 * 33 * BLOCKS_MAX as u64;

/// Flags of `kvtide why`.
#[derive(Debug, Args)]
#[command(
    after_help = "Engines make hashes from token ids, each in its own way. This prints those of a prompt, with the Python of the engine:\n  \
    python -m kvtide.prompt_hashes vllm --prompt-tokens FILE --block-tokens 16 | kvtide why --hashes -\n\n\
    With [tracing], a trace id in place of a hash explains the last lookup of that request.\n\n\
    Exit status: 0: a space has one of the blocks or more, or knows the trace id; 1: none does, or the question failed (stderr says why); 3: no daemon answers.\n\n\
    Examples:\n  kvtide why 0123456789abcdef0123456789abcdef\n  kvtide why --hashes FILE --json"
)]
pub(super) struct WhyArgs {
    /// Hash of a block, or trace id of a request: 32 hexadecimal digits
    #[arg(required_unless_present = "hashes", conflicts_with = "hashes")]
    hash: Option<String>,
    /// File with the hashes of a prompt's blocks in order, separated by white space (-: stdin)
    #[arg(long, value_name = "FILE")]
    hashes: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

pub(super) fn run(args: &WhyArgs) -> ExitCode {
    explain(args).unwrap_or_else(|error| output::failed(&error))
}

fn explain(args: &WhyArgs) -> Result<ExitCode, Error> {
    let (name, text) = match (&args.hash, &args.hashes) {
        (_, Some(file)) => {
            let failed = |source| Error::File { action: "read the hashes", path: file.clone(), source };
            let name = if is_stdin(file) { "stdin: ".to_owned() } else { format!("{}: ", file.display()) };
            (name, read(file).map_err(failed)?)
        }
        (hash, None) => (String::new(), hash.clone().unwrap_or_default()),
    };
    let refused = |why| Error::Refused { address: String::new(), code: String::new(), why: format!("{name}{why}") };
    let hashes = parse(&text).map_err(refused)?;
    let (mut spaces, mut unclaimed_bytes) = (BTreeMap::new(), 0);
    for (part, hashes) in hashes.chunks(HASHES_MAX).enumerate() {
        let body = json!({ "hashes": hashes }).to_string();
        let found: Located = args.which.read("/v1/cache/why", Some(&body))?;
        unclaimed_bytes = found.unclaimed_bytes;
        add(&mut spaces, part * HASHES_MAX, found);
    }
    let prompt = Prompt::new(hashes.len(), spaces, unclaimed_bytes);
    let is_known = |space: &InSpace| space.has_any() || space.located.request.is_some();
    let status = ExitCode::from(if prompt.spaces.iter().any(is_known) { 0 } else { output::FAILED });
    Ok(match args.json {
        true => output::print_json(&prompt, status),
        false => output::print(&prompt.text(), status),
    })
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

fn read(file: &Path) -> io::Result<String> {
    let reader: Box<dyn Read> = if is_stdin(file) { Box::new(io::stdin()) } else { Box::new(File::open(file)?) };
    let mut bytes = Vec::new();
    reader.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let why = format!("it has more than {FILE_BYTES_MAX} bytes; give the first blocks of the prompt");
        return Err(io::Error::other(why));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Return the hashes of a text. An error says what is wrong.
fn parse(text: &str) -> Result<Vec<&str>, String> {
    let hashes: Vec<&str> = text.split_ascii_whitespace().collect();
    if let Some(at) = hashes.iter().position(|hash| hash_from_hex(hash).is_none()) {
        let wrong: String = hashes[at].chars().take(40).collect();
        return Err(format!(
            "hash {} is {wrong:?}; a hash has 32 hexadecimal digits (python -m kvtide.prompt_hashes makes hashes from token ids)",
            at + 1
        ));
    }
    match hashes.len() {
        0 => Err("it has no hashes; give those of all blocks of the prompt, from the first one on".into()),
        more if more > BLOCKS_MAX => {
            Err(format!("it has {more} hashes, at most {BLOCKS_MAX} are possible; give the first blocks of the prompt"))
        }
        _ => Ok(hashes),
    }
}

/// A prompt, and what spaces know of it.
#[derive(Debug, Serialize)]
struct Prompt {
    blocks: usize,
    spaces: Vec<InSpace>,
    unclaimed_bytes: u64,
}

/// What a space knows of a prompt.
#[derive(Debug, Serialize)]
struct InSpace {
    /// Blocks that lookups find, from the first one on without a gap.
    prefix_blocks: usize,
    #[serde(flatten)]
    located: LocatedIn,
}

/// Add what was found of the blocks from `first` on.
fn add(spaces: &mut BTreeMap<u32, LocatedIn>, first: usize, found: Located) {
    for mut located in found.spaces {
        let blocks = std::mem::take(&mut located.blocks);
        let known = spaces.entry(located.space).or_insert(located);
        known.blocks.extend(blocks.into_iter().map(|block| LocatedBlock { index: first + block.index, ..block }));
    }
}

impl Prompt {
    /// Put the spaces with the longest prefixes first.
    fn new(blocks: usize, spaces: BTreeMap<u32, LocatedIn>, unclaimed_bytes: u64) -> Prompt {
        let mut spaces: Vec<InSpace> = spaces.into_values().map(InSpace::new).collect();
        spaces.sort_by_key(|space| (Reverse(space.prefix_blocks), space.located.blocks.is_empty()));
        Prompt { blocks, spaces, unclaimed_bytes }
    }

    fn text(&self) -> String {
        let knows = |space: &InSpace| !space.located.blocks.is_empty() || space.located.request.is_some();
        let is_one = |space: &InSpace, other: &LocatedIn| {
            (&space.located.name, &space.located.tenant) == (&other.name, &other.tenant)
        };
        // A space of the same name is that of the same model with another fingerprint.
        let is_shown = |space: &&InSpace| self.spaces.iter().any(|other| knows(other) && is_one(space, &other.located));
        let (shown, others): (Vec<&InSpace>, Vec<&InSpace>) = self.spaces.iter().partition(is_shown);
        let mut text = String::new();
        for space in &shown {
            text += &space.text(self.blocks);
            let first = shown.iter().find(|first| is_one(first, &space.located));
            text += &first.map(|first| differences(&first.located, &space.located)).unwrap_or_default();
        }
        for other in &others {
            let known = duration(other.located.known_s as f64);
            let _ = writeln!(text, "{}: no engine has stored these blocks in the last {known}", other.title());
        }
        if self.spaces.is_empty() {
            text += "no space runs: an engine starts one when it attaches, and finds what NVMe has kept for it\n";
        } else if shown.is_empty() {
            text += "If engines have computed the prompt: were the hashes made with their block size, hash function, seed, salt and \
                     epoch? Blocks that were only in memory do not survive the end of a space or of the daemon. A trace id is known if the \
                     daemon traces and the request was sampled.\n";
        }
        if self.unclaimed_bytes > 0 {
            let held = bytes(self.unclaimed_bytes);
            let _ = writeln!(
                text,
                "The disks hold {held} of spaces that do not run. Their blocks cannot be searched until an engine of theirs attaches."
            );
        }
        text
    }
}

impl InSpace {
    fn new(located: LocatedIn) -> InSpace {
        let found = located.blocks.iter().filter(|block| block.missing.is_none()).map(|block| block.index);
        InSpace { prefix_blocks: found.enumerate().take_while(|(at, index)| at == index).count(), located }
    }

    /// Return whether lookups find one of the blocks.
    fn has_any(&self) -> bool {
        self.located.blocks.iter().any(|block| block.missing.is_none())
    }

    fn title(&self) -> String {
        let LocatedIn { space, name, tenant, .. } = &self.located;
        format!("space {space} {name}  (tenant {tenant})")
    }

    /// Describe the lookup of a request: what it found last, and why it did not find the next block.
    fn of_request(&self, LookupOfRequest { found, missing, since_s }: &LookupOfRequest) -> String {
        let mut text =
            format!("{}\n  request    its last lookup was {} ago\n", self.title(), duration(*since_s as f64));
        let blocks = &self.located.blocks;
        for (title, hash, none) in [
            ("found", found, "none of the blocks that it asked for"),
            ("not found", missing, "none: it found all blocks that it asked for"),
        ] {
            let Some(hash) = hash else {
                let _ = writeln!(text, "  {title:<10} {none}");
                continue;
            };
            let (what, advice) = self.described(&[blocks.iter().find(|block| block.hash == *hash)]);
            let _ = writeln!(text, "  {title:<10} {hash}: now {what}");
            if !advice.is_empty() {
                let _ = writeln!(text, "{:13}{advice}", "");
            }
        }
        text
    }

    /// Describe the blocks, in one line for consecutive ones that are alike.
    fn text(&self, blocks: usize) -> String {
        if let Some(request) = &self.located.request {
            return self.of_request(request);
        }
        let mut each: Vec<Option<&LocatedBlock>> = vec![None; blocks];
        for block in &self.located.blocks {
            if let Some(at) = each.get_mut(block.index) {
                *at = Some(block);
            }
        }
        let mut text = format!("{}\n  prefix     {} of {blocks} blocks are cached\n", self.title(), self.prefix_blocks);
        let mut first = 0;
        for same in each.chunk_by(|one, next| are_alike(*one, *next)) {
            let end = first + same.len();
            let range = if same.len() == 1 { end.to_string() } else { format!("{}-{end}", first + 1) };
            let (what, advice) = self.described(same);
            let _ = writeln!(text, "  {range:<10} {what}");
            if !advice.is_empty() {
                let _ = writeln!(text, "{:13}{advice}", "");
            }
            first = end;
        }
        text
    }

    /// Say where blocks that are alike are, or why they are missing, and what keeps such blocks.
    fn described(&self, same: &[Option<&LocatedBlock>]) -> (String, &'static str) {
        let Some(block) = same[0] else {
            let known = duration(self.located.known_s as f64);
            return (format!("not cached: no engine has stored it in the last {known}"), "");
        };
        let Some(missing) = &block.missing else { return (place(block), "") };
        let ages = same.iter().filter_map(|block| Some((*block)?.missing.as_ref()?.since_s));
        let (least, most) = ages.fold((u64::MAX, 0), |(least, most), s| (least.min(s), most.max(s)));
        let shown = [least, most].map(|s| duration(s as f64));
        let ago = if shown[0] == shown[1] { shown[0].clone() } else { format!("{} to {}", shown[0], shown[1]) };
        explained(missing, &ago)
    }
}

/// Return whether two blocks are described alike, but for the time.
fn are_alike(one: Option<&LocatedBlock>, next: Option<&LocatedBlock>) -> bool {
    let missing = |block: &LocatedBlock| block.missing.clone().map(|missing| Missing { since_s: 0, ..missing });
    let kind = |block: &LocatedBlock| (place(block), missing(block));
    one.map(kind) == next.map(kind)
}

/// Say where a block is.
fn place(block: &LocatedBlock) -> String {
    let tiers: Vec<&str> = block.tiers.iter().filter(|tier| tier.bytes > 0).map(|tier| tier.tier.as_str()).collect();
    // Its pages are on their way between tiers.
    let tiers = if tiers.is_empty() { "cached".to_owned() } else { tiers.join(", ") };
    tiers + if block.pinned { ", pinned" } else { "" }
}

/// Say why a block is missing, since when, and what keeps such blocks.
fn explained(missing: &Missing, ago: &str) -> (String, &'static str) {
    let Some(cause) = Cause::from_name(&missing.cause) else {
        return (format!("not cached: {}, {ago} ago; this kvtide is older than the daemon", missing.cause), "");
    };
    let tier = match missing.tier.as_deref() {
        Some("tier0") => " from the memory of an engine",
        Some("host") => " from host memory",
        Some("nvme") => " from NVMe",
        _ => "",
    };
    let evicted = |why: &str| format!("evicted{tier} {ago} ago: {why}");
    let more_memory =
        "To keep more: raise tiers.host.capacity, or the host quota of the domain, or add a disk to tiers.nvme.disks";
    let more_nvme =
        "To keep more: raise the capacity of tiers.nvme.disks, or the nvme quota of the domain, or add a disk";
    let (what, advice) = match cause {
        Cause::NeverStored => ("no engine is known to have stored it".into(), ""),
        Cause::Incomplete => (
            "not all ranks of the engine (tensor or pipeline parallel) have stored their part".into(),
            "Lookups need all: see the logs of the ranks",
        ),
        Cause::MemoryFull => (evicted("the space needed host memory for other blocks"), more_memory),
        Cause::OtherSpace => (evicted("another space needed the host memory"), more_memory),
        Cause::IndexFull => (
            evicted("the space has its maximum number of blocks"),
            "To keep more: use more tokens per block; kvtide config check shows how many blocks the index holds",
        ),
        Cause::NvmeFull => (evicted("NVMe space was needed for other blocks"), more_nvme),
        Cause::NotAdmitted => (
            evicted("tiers.nvme.admission had kept it from NVMe"),
            "To keep such blocks: set tiers.nvme.admission = \"all\", or raise tiers.host.capacity",
        ),
        Cause::OverBudget => (
            evicted("the write budget had kept it from NVMe"),
            "To keep such blocks: raise bytes_per_day of tiers.nvme.disks; kvtide advise prints a sufficient value",
        ),
        Cause::Unwritten => (
            evicted("it was not written to NVMe yet"),
            "Stores are faster than the disks. To keep such blocks: add a disk, or raise tiers.host.capacity",
        ),
        Cause::Expired => {
            (evicted("it was not used for eviction.ttl_s"), "To keep such blocks: raise eviction.ttl_s, or set it to 0")
        }
        Cause::Operator => (evicted("an operator evicted it, by kvtide cache evict or clear"), ""),
        Cause::Corrupt => (
            format!("dropped {ago} ago: its bytes differed from the stored ones"),
            "No wrong byte was served. Check the disk and the memory: kvtide status, and the daemon's log",
        ),
        Cause::Unreadable => (
            format!("dropped {ago} ago: its disk could not read it"),
            "Check the disk: kvtide status, and the daemon's log",
        ),
        Cause::DiskLost => (
            format!("dropped {ago} ago: its disk went out of service"),
            "Check the disk: kvtide status, and the daemon's log",
        ),
        Cause::EngineLost => (
            format!("dropped {ago} ago: only the memory of an engine had it, and the engine ended"),
            "To keep such blocks: raise tiers.host.capacity, or have the engine publish them with the level stored",
        ),
        Cause::StoreNoRoom => (format!("a store {ago} ago found no room for it in time"), more_memory),
        Cause::StoreNoParent => (format!("a store {ago} ago found the block before it gone"), more_memory),
        Cause::StoreFailed => (
            format!("a store {ago} ago failed or was canceled, or its engine ended"),
            "The log of the engine has the error",
        ),
        Cause::RestoreNoParent => (format!("a start {ago} ago found it on NVMe, but not the block before it"), ""),
        Cause::RestoreRefused => (
            format!("a start {ago} ago found it on NVMe, but the index was full or its record did not fit"),
            "The index may hold fewer blocks than before: kvtide config check",
        ),
    };
    let ancestor =
        if missing.with_ancestor { ", or rather a block before it, without which it is of no use" } else { "" };
    (format!("not cached: {what}{ancestor}"), advice)
}

/// Say in which parts the identities of the engines of two spaces of one name differ; nothing if one is unknown.
fn differences(one: &LocatedIn, other: &LocatedIn) -> String {
    let parts = |space: &LocatedIn| -> Option<BTreeMap<String, String>> {
        serde_json::from_str(space.identity.as_deref()?).ok()
    };
    let (Some(first), Some(second)) = (parts(one), parts(other)) else { return String::new() };
    if one.space == other.space {
        return String::new();
    }
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let value = |of: &BTreeMap<String, String>, name: &String| of.get(name).map_or("-", String::as_str).to_owned();
    let differ = names.into_iter().filter(|name| first.get(*name) != second.get(*name));
    let lines: String = differ
        .map(|name| format!("{:13}{name}: {}, not {}\n", "", value(&second, name), value(&first, name)))
        .collect();
    // Equal parts: the fingerprint covers something that no part names, or the pages have other sizes.
    let what = if lines.is_empty() { " the layout of pages" } else { ":" };
    format!("  engine     differs from that of space {} in{what}\n{lines}", one.space)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_daemon::http::operate::InTier;

    fn block(index: usize, tiers: &[&str]) -> LocatedBlock {
        let tier = |name: &&str| InTier { tier: (*name).into(), bytes: 1 };
        LocatedBlock { index, tiers: tiers.iter().map(tier).collect(), ..LocatedBlock::default() }
    }

    fn missing(index: usize, cause: Cause, tier: Option<&str>, since_s: u64) -> LocatedBlock {
        let missing =
            Missing { cause: cause.name().into(), tier: tier.map(str::to_owned), with_ancestor: false, since_s };
        LocatedBlock { missing: Some(missing), ..block(index, &[]) }
    }

    fn located(space: u32, blocks: Vec<LocatedBlock>) -> LocatedIn {
        LocatedIn { space, name: "llama".into(), tenant: "default".into(), known_s: 90, blocks, ..LocatedIn::default() }
    }

    #[test]
    fn answers_to_parts_of_a_prompt_become_one() {
        let mut spaces = BTreeMap::new();
        let host = ["host", "nvme"];
        let first = vec![block(0, &host), block(1, &host), block(2, &["nvme"])];
        let of = |spaces| Located { spaces, unclaimed_bytes: 0 };
        let other = LocatedIn { name: "other".into(), ..located(3, Vec::new()) };
        let identity = |text: &str| Some(text.to_owned());
        let one = LocatedIn { identity: identity(r#"{"dtype":"bf16","model":"m"}"#), ..located(2, first) };
        let two =
            LocatedIn { identity: identity(r#"{"dtype":"fp8","model":"m"}"#), ..located(1, vec![block(1, &host)]) };
        add(&mut spaces, 0, of(vec![two, one, other.clone()]));
        let pinned = LocatedBlock { pinned: true, ..block(0, &[]) };
        let evicted = [(1, 65), (2, 60)].map(|(at, since)| missing(at, Cause::NvmeFull, Some("nvme"), since));
        let [older, newer] = evicted;
        add(&mut spaces, 3, of(vec![located(2, vec![pinned, older, newer, block(3, &host)]), other]));
        let prompt = Prompt::new(8, spaces, 1 << 30);
        assert_eq!(prompt.spaces.iter().map(|space| space.prefix_blocks).collect::<Vec<_>>(), [4, 0, 0]);
        let text = "\
space 2 llama  (tenant default)
  prefix     4 of 8 blocks are cached
  1-2        host, nvme
  3          nvme
  4          cached, pinned
  5-6        not cached: evicted from NVMe 1 min 0 s to 1 min 5 s ago: NVMe space was needed for other blocks
             To keep more: raise the capacity of tiers.nvme.disks, or the nvme quota of the domain, or add a disk
  7          host, nvme
  8          not cached: no engine has stored it in the last 1 min 30 s
space 1 llama  (tenant default)
  prefix     0 of 8 blocks are cached
  1          not cached: no engine has stored it in the last 1 min 30 s
  2          host, nvme
  3-8        not cached: no engine has stored it in the last 1 min 30 s
  engine     differs from that of space 2 in:
             dtype: fp8, not bf16
space 3 other  (tenant default): no engine has stored these blocks in the last 1 min 30 s
The disks hold 1.00 GiB of spaces that do not run. Their blocks cannot be searched until an engine of theirs attaches.
";
        assert_eq!(prompt.text(), text);
    }

    #[test]
    fn only_spaces_of_one_name_are_compared() {
        let of = |space, name: &str, dtype: &str| LocatedIn {
            name: name.into(),
            identity: Some(format!(r#"{{"dtype":"{dtype}"}}"#)),
            ..located(space, vec![block(0, &["host"])])
        };
        let mut spaces = BTreeMap::new();
        let found = vec![of(1, "a", "bf16"), of(2, "b", "fp8"), of(3, "b", "int8")];
        add(&mut spaces, 0, Located { spaces: found, unclaimed_bytes: 0 });
        let text = Prompt::new(1, spaces, 0).text();
        assert_eq!(text.matches("differs from").count(), 1, "{text}");
        assert!(text.contains("differs from that of space 2"), "{text}");
    }

    #[test]
    fn every_cause_has_words_of_its_own() {
        let said = |cause: &Cause| explained(missing(0, *cause, None, 0).missing.as_ref().unwrap(), "1 s").0;
        let all: BTreeSet<String> = Cause::ALL.iter().map(said).collect();
        assert_eq!(all.len(), Cause::ALL.len());
        let new = Missing { cause: "stolen".into(), ..Missing::default() };
        assert!(explained(&new, "1 s").0.contains("stolen, 1 s ago"), "of a newer daemon");
    }

    #[test]
    fn what_is_no_list_of_hashes_is_named() {
        let hash = "0123456789abcdef0123456789ABCDEF";
        assert_eq!(parse(&format!(" {hash}\n{hash}\t")), Ok(vec![hash; 2]));
        let many = format!("{hash}\n").repeat(BLOCKS_MAX + 1);
        let (long, shown) = (format!("{hash}\n{}", "x".repeat(1000)), format!("hash 2 is \"{}\";", "x".repeat(40)));
        for (text, part) in [
            ("", "it has no hashes"),
            (" \n", "it has no hashes"),
            ("1 2 3", "hash 1 is \"1\"; a hash has 32 hexadecimal digits (python -m kvtide.prompt_hashes"),
            (long.as_str(), shown.as_str()),
            (many.as_str(), "it has 65537 hashes, at most 65536 are possible"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.starts_with(part), "{why}");
        }
        assert!(parse(&many[33..]).is_ok());
        assert!((many.len() as u64) < FILE_BYTES_MAX);
    }
}
