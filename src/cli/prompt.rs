//! `kvtide cache search --hashes`: which blocks of a prompt are cached, and in which tiers.

use super::which::Which;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::operate::{HASHES_MAX, Located, LocatedBlock, LocatedIn};
use kvtide_daemon::output;
use kvtide_types::hash_from_hex;
use serde::Serialize;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

/// Maximum blocks: a million tokens in blocks of 16.
const BLOCKS_MAX: usize = 1 << 16;
/// Maximum bytes of a file: a hash and a line end for each block, twice.
const FILE_BYTES_MAX: u64 = 2 * 33 * BLOCKS_MAX as u64;

/// Search the blocks whose hashes a file has.
pub(super) fn search(file: &Path, which: &Which, is_json: bool) -> Result<ExitCode, Error> {
    let text = read(file).map_err(|source| Error::File { action: "read the hashes", path: file.to_owned(), source })?;
    let hashes = parse(&text).map_err(|why| {
        let name = if is_stdin(file) { "stdin".to_owned() } else { file.display().to_string() };
        Error::Refused { address: String::new(), code: String::new(), why: format!("{name}: {why}") }
    })?;
    let mut spaces = BTreeMap::new();
    for (part, hashes) in hashes.chunks(HASHES_MAX).enumerate() {
        let body = json!({ "hashes": hashes }).to_string();
        let found: Located = which.read("/v1/cache/locate", Some(&body))?;
        add(&mut spaces, part * HASHES_MAX, found);
    }
    let prompt = Prompt::new(hashes.len(), spaces);
    let status = ExitCode::from(if prompt.spaces.is_empty() { output::FAILED } else { 0 });
    if is_json {
        return Ok(output::print_json(&prompt, status));
    }
    if prompt.spaces.is_empty() {
        output::say(format_args!(
            "kvtide: no space has any of these {} blocks. If engines have computed the prompt: were the hashes made with their block size, \
             hash function, seed, salt and epoch?",
            prompt.blocks
        ));
        return Ok(status);
    }
    Ok(output::print(&prompt.text(), status))
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

/// A prompt, and what spaces have of it.
#[derive(Debug, Serialize)]
struct Prompt {
    blocks: usize,
    spaces: Vec<InSpace>,
}

/// What a space has of a prompt.
#[derive(Debug, Serialize)]
struct InSpace {
    /// Blocks that are cached, from the first one on without a gap.
    prefix_blocks: usize,
    #[serde(flatten)]
    located: LocatedIn,
}

/// Add what was found of the blocks from `first` on.
fn add(spaces: &mut BTreeMap<u32, LocatedIn>, first: usize, found: Located) {
    for LocatedIn { space, name, tenant, blocks } in found.spaces {
        let known = spaces.entry(space).or_insert_with(|| LocatedIn { space, name, tenant, blocks: Vec::new() });
        known.blocks.extend(blocks.into_iter().map(|block| LocatedBlock { index: first + block.index, ..block }));
    }
}

impl Prompt {
    /// Put the spaces with the longest prefixes first.
    fn new(blocks: usize, spaces: BTreeMap<u32, LocatedIn>) -> Prompt {
        let prefix = |located: &LocatedIn| {
            let indexes = located.blocks.iter().map(|block| block.index);
            indexes.enumerate().take_while(|(at, index)| at == index).count()
        };
        let in_space = |located: LocatedIn| InSpace { prefix_blocks: prefix(&located), located };
        let mut spaces: Vec<InSpace> = spaces.into_values().map(in_space).collect();
        spaces.sort_by_key(|space| Reverse(space.prefix_blocks));
        Prompt { blocks, spaces }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for InSpace { prefix_blocks, located } in &self.spaces {
            let LocatedIn { space, name, tenant, blocks } = located;
            let _ = writeln!(text, "space {space} {name}  (tenant {tenant})");
            let _ = writeln!(text, "  prefix     {prefix_blocks} of {} blocks are cached", self.blocks);
            let mut each = vec!["not cached".to_owned(); self.blocks];
            for block in blocks {
                if let Some(of_block) = each.get_mut(block.index) {
                    *of_block = place(block);
                }
            }
            let mut first = 0;
            for same in each.chunk_by(|one, next| one == next) {
                let end = first + same.len();
                let range = if same.len() == 1 { end.to_string() } else { format!("{}-{end}", first + 1) };
                let _ = writeln!(text, "  {range:<10} {}", same[0]);
                first = end;
            }
        }
        text
    }
}

/// Say where a block is.
fn place(block: &LocatedBlock) -> String {
    let tiers: Vec<&str> = block.tiers.iter().filter(|tier| tier.bytes > 0).map(|tier| tier.tier.as_str()).collect();
    // Its pages are on their way between tiers.
    let tiers = if tiers.is_empty() { "cached".to_owned() } else { tiers.join(", ") };
    tiers + if block.pinned { ", pinned" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_daemon::http::operate::InTier;

    fn block(index: usize, tiers: &[&str]) -> LocatedBlock {
        let tier = |name: &&str| InTier { tier: (*name).into(), bytes: 1 };
        LocatedBlock { index, tiers: tiers.iter().map(tier).collect(), ..LocatedBlock::default() }
    }

    fn located(space: u32, blocks: Vec<LocatedBlock>) -> LocatedIn {
        LocatedIn { space, name: "llama".into(), tenant: "default".into(), blocks }
    }

    #[test]
    fn answers_to_parts_of_a_prompt_become_one() {
        let mut spaces = BTreeMap::new();
        let host = ["host", "nvme"];
        let first = vec![block(0, &host), block(1, &host), block(2, &["nvme"])];
        add(&mut spaces, 0, Located { spaces: vec![located(1, vec![block(1, &host)]), located(2, first)] });
        let pinned = LocatedBlock { pinned: true, ..block(0, &[]) };
        add(&mut spaces, 3, Located { spaces: vec![located(2, vec![pinned, block(3, &host)])] });
        let prompt = Prompt::new(7, spaces);
        assert_eq!(prompt.spaces.iter().map(|space| space.prefix_blocks).collect::<Vec<_>>(), [4, 0]);
        let text = "\
space 2 llama  (tenant default)
  prefix     4 of 7 blocks are cached
  1-2        host, nvme
  3          nvme
  4          cached, pinned
  5-6        not cached
  7          host, nvme
space 1 llama  (tenant default)
  prefix     0 of 7 blocks are cached
  1          not cached
  2          host, nvme
  3-7        not cached
";
        assert_eq!(prompt.text(), text);
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
