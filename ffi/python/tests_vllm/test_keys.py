"""Contents of vLLM's block hashes, by version. Read the source of a new version before you add it here. kvtide's key of a block is a hash
of vLLM's hash and of the adapter's weights (test_halves.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

ALL = {"tokens", "adapter", "salt", "image", "embeddings"}
CONTAIN = {"0.32": ALL, "0.33": ALL}
BLOCK = 4
TOKENS = 2 * BLOCK


def image(name: str) -> Any:
    return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=0, length=BLOCK))


def adapter(name: str, path: str = "/a") -> Any:
    return SimpleNamespace(lora_name=name, lora_path=path)


def hashed(algorithm: str, **given: Any) -> tuple[bytes, ...]:
    """Return the hashes of a prompt of two blocks, by vLLM's own code."""
    request = SimpleNamespace(
        block_hashes=[],
        num_tokens=TOKENS,
        all_token_ids=list(range(TOKENS)),
        mm_features=[],
        lora_request=None,
        cache_salt=None,
        prompt_embeds=None,
        _prompt_embeds_per_block_hashes={},
    )
    for key, value in given.items():
        assert hasattr(request, key)
        setattr(request, key, value)
    function = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(function)
    return tuple(kv_cache_utils.get_request_block_hasher(BLOCK, function)(request))


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_block_hashes_contain_what_is_known_of_this_version(algorithm: str) -> None:
    others = {
        "tokens": [{"all_token_ids": [9, *range(1, TOKENS)]}],
        "adapter": [{"lora_request": adapter("a")}, {"lora_request": adapter("b")}, {"lora_request": adapter("a", "/b")}],
        "salt": [{"cache_salt": "a"}, {"cache_salt": "b"}],
        "image": [{"mm_features": [image("a")]}, {"mm_features": [image("b")]}],
        "embeddings": [{"prompt_embeds": torch.zeros(TOKENS, 2)}, {"prompt_embeds": torch.ones(TOKENS, 2)}],
    }
    plain = hashed(algorithm)
    assert plain == hashed(algorithm) and len(plain) == TOKENS // BLOCK
    every = [plain, *(hashed(algorithm, **given) for prompts in others.values() for given in prompts)]
    # Both blocks of each prompt, so also those behind a common beginning.
    assert len({block for prompt in every for block in prompt}) == len(plain) * len(every)
    assert set(others) == CONTAIN[".".join(vllm.__version__.split(".")[:2])]
