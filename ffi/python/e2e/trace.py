"""Prompts with the prefix structure of a real request trace (see README.md), at a sixteenth of its length."""

from __future__ import annotations

import json
import random
from pathlib import Path

from .chain import BLOCK_TOKENS
from .engines import Prompt

#: Tokens of a block of the trace. Prompts have BLOCK_TOKENS instead.
TRACE_BLOCK_TOKENS = 512
#: Tokens of each answer.
ANSWER_TOKENS = 4
#: Begin token of the tests' model, and the number of other tokens: bytes.
BEGIN = 256
BYTES = 256


def prompt(seed: object, tokens: int, *, max_tokens: int = 8) -> Prompt:
    """Return a random prompt: equal for equal seeds. Prompts of different seeds share only the first token."""
    numbers = random.Random(repr(seed))
    return Prompt((BEGIN, *(numbers.randrange(BYTES) for _ in range(tokens - 1))), max_tokens)


def prompts() -> list[Prompt]:
    """Return the trace's requests in order. Requests share as many blocks as they share hash ids; a partial last block is
    unique."""
    made = []
    for number, line in enumerate((Path(__file__).parent / "trace.jsonl").read_text().splitlines()):
        request = json.loads(line)
        full, rest = divmod(request["input_length"], TRACE_BLOCK_TOKENS)
        tokens: list[int] = []
        for name in request["hash_ids"][:full]:
            tokens += random.Random(f"block {name}").choices(range(BYTES), k=BLOCK_TOKENS)
        own = rest * BLOCK_TOKENS // TRACE_BLOCK_TOKENS
        # At least one unique token, so that a hit never ends before the last full block.
        tokens += random.Random(f"request {number}").choices(range(BYTES), k=max(1, own))
        made.append(Prompt(tuple(tokens), ANSWER_TOKENS))
    return made
