"""Prompts with the prefixes of a real trace of requests (README.md says which), a sixteenth of their length."""

from __future__ import annotations

import json
import random
from pathlib import Path

from .chain import BLOCK_TOKENS
from .engines import Prompt

#: Tokens of a block of the trace, and of prompts that stand for it.
TRACE_BLOCK_TOKENS = 512
#: Tokens of each answer.
ANSWER_TOKENS = 4
#: The token that begins every text of the tests' model, and how many others there are: bytes.
BEGIN = 256
BYTES = 256


def prompt(seed: object, tokens: int, *, max_tokens: int = 8) -> Prompt:
    """One of its own: equal for equal seeds, nothing shared with those of others but the first token."""
    numbers = random.Random(repr(seed))
    return Prompt((BEGIN, *(numbers.randrange(BYTES) for _ in range(tokens - 1))), max_tokens)


def prompts() -> list[Prompt]:
    """The trace's requests in order. Where two share hash ids they share as many blocks of tokens; what is left of the last block is their own."""
    made = []
    for number, line in enumerate((Path(__file__).parent / "trace.jsonl").read_text().splitlines()):
        request = json.loads(line)
        full, rest = divmod(request["input_length"], TRACE_BLOCK_TOKENS)
        tokens: list[int] = []
        for name in request["hash_ids"][:full]:
            tokens += random.Random(f"block {name}").choices(range(BYTES), k=BLOCK_TOKENS)
        own = rest * BLOCK_TOKENS // TRACE_BLOCK_TOKENS
        # At least one token of its own, so that a hit never ends before the last full block.
        tokens += random.Random(f"request {number}").choices(range(BYTES), k=max(1, own))
        made.append(Prompt(tuple(tokens), ANSWER_TOKENS))
    return made
