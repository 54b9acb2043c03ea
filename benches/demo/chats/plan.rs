//! Who asks what: documents, chats and questions, and the sizes that follow from them.

use sha2::{Digest, Sha256};

use crate::demo::attention::{PAGE_TOKENS, Page, pages_of};
use crate::demo::model::{BOS, Config};

/// Number of chats.
pub const CHATS: usize = 8;
/// Questions in each chat; the daemon is killed before the last one.
pub const TURNS: usize = 3;
/// Number of chats whose KV fits into the engine's memory.
pub const MEMORY_CHATS: usize = 3;
/// Number of documents.
pub const DOCUMENTS: usize = TEXTS.len();
/// Tokens of the longest question: its words, and its number.
const QUESTION_TOKENS_MAX: usize = 80;
/// Share of the daemon's host memory in the blocks stored at the end, so that some of them are on NVMe only.
const HOST_PERCENT: usize = 50;
/// Tokens of a document, at most: the shortest text has as many.
pub const DOCUMENT_TOKENS_MAX: usize = 4096;

/// The documents: those of kvtide.
const TEXTS: [&[u8]; 3] = [
    include_bytes!("../../../docs/concepts.md"),
    include_bytes!("../../../docs/operations.md"),
    include_bytes!("../../../docs/glossary.md"),
];

const QUESTIONS: [&str; 6] = [
    "What happens when memory is short?",
    "Which part runs in the engine's process?",
    "Who may read these bytes?",
    "Where is a block after a restart?",
    "Which setting limits the bytes that are written?",
    "How is a wrong byte found?",
];

/// Sizes of the chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of a document; a token is a byte.
    pub document_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Planes of the model.
    pub planes: usize,
    /// Logits of a token.
    pub vocabulary: usize,
}

impl Plan {
    /// Create a plan for a model.
    pub fn new(document_tokens: usize, answer_tokens: usize, config: &Config) -> Plan {
        Plan { document_tokens, answer_tokens, planes: config.num_hidden_layers, vocabulary: config.vocab_size }
    }

    /// Return begin of text and the document of a chat.
    pub fn document(&self, chat: usize) -> Vec<u16> {
        let text = &TEXTS[chat % DOCUMENTS][..self.document_tokens - 1];
        std::iter::once(BOS).chain(text.iter().map(|byte| u16::from(*byte))).collect()
    }

    /// Return a question of a chat.
    pub fn question(&self, chat: usize, turn: usize) -> Vec<u16> {
        let words = QUESTIONS[(chat + 5 * turn) % QUESTIONS.len()];
        let text = format!("\n\nQuestion {}.{}: {words}\nAnswer: ", chat + 1, turn + 1);
        assert!(text.len() <= QUESTION_TOKENS_MAX, "{text:?} is longer than the sizes allow for");
        text.bytes().map(u16::from).collect()
    }

    /// Return the questions of all chats.
    pub fn questions(&self) -> usize {
        CHATS * TURNS
    }

    /// Return the maximum of a chat's tokens.
    pub fn tokens_max(&self) -> usize {
        self.document_tokens + TURNS * (QUESTION_TOKENS_MAX + self.answer_tokens)
    }

    /// Return the blocks of the engine's memory.
    pub fn engine_blocks(&self) -> usize {
        MEMORY_CHATS * pages_of(self.tokens_max())
    }

    /// Return the bytes of a block: the pages of all planes.
    pub fn block_bytes(&self) -> u64 {
        (self.planes * Page::BYTES) as u64
    }

    /// Return the maximum of blocks that are stored: the documents once, and the rest of each chat.
    pub fn stored_blocks_max(&self) -> usize {
        let document = self.document_tokens / PAGE_TOKENS;
        DOCUMENTS * document + CHATS * (self.tokens_max() / PAGE_TOKENS - document)
    }

    /// Return the blocks that the daemon's host memory holds: a share of the stored ones, at least those of one chat and some to move
    /// bytes through.
    pub fn host_blocks(&self) -> usize {
        let least = pages_of(self.tokens_max()) + 8;
        (self.stored_blocks_max() * HOST_PERCENT / 100).max(least)
    }
}

/// Return the hash of each full block of `tokens`: of its tokens and of all tokens before it.
pub fn hashes(tokens: &[u16]) -> Vec<u128> {
    let mut parent = 0u128;
    let blocks = tokens.chunks_exact(PAGE_TOKENS);
    let hash = |block: &[u16]| {
        let mut hash = Sha256::new_with_prefix(parent.to_le_bytes());
        block.iter().for_each(|token| hash.update(token.to_le_bytes()));
        let digest = hash.finalize();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        // 0 means "no parent" to the daemon.
        parent = u128::from_le_bytes(first).max(1);
        parent
    };
    blocks.map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { document_tokens: 1024, answer_tokens: 16, planes: 6, vocabulary: 257 };

    #[test]
    fn the_texts_are_long_enough_and_the_questions_are_short_enough() {
        for text in TEXTS {
            assert!(text.len() >= DOCUMENT_TOKENS_MAX);
        }
        for chat in 0..CHATS {
            assert_eq!(PLAN.document(chat).len(), 1024);
            for turn in 0..TURNS {
                assert!(PLAN.question(chat, turn).len() <= QUESTION_TOKENS_MAX);
            }
        }
        assert_eq!(PLAN.document(0), PLAN.document(DOCUMENTS));
    }

    #[test]
    fn memory_is_too_small_for_all_chats_and_large_enough_for_one() {
        assert!(PLAN.engine_blocks() < CHATS * pages_of(PLAN.tokens_max()));
        assert!(PLAN.host_blocks() < PLAN.stored_blocks_max());
        assert!(PLAN.host_blocks() > pages_of(PLAN.tokens_max()));
    }

    #[test]
    fn a_hash_covers_its_block_and_all_before_it() {
        let tokens: Vec<u16> = (0..200).collect();
        let whole = hashes(&tokens);
        assert_eq!(whole.len(), 3);
        assert_eq!(hashes(&tokens[..130]), whole[..2]);
        let mut other = tokens.clone();
        other[0] ^= 1;
        assert!(hashes(&other).iter().zip(&whole).all(|(a, b)| a != b));
        other = tokens;
        other[64] ^= 1;
        assert_eq!(hashes(&other)[0], whole[0]);
        assert_ne!(hashes(&other)[1..], whole[1..]);
    }
}
