"""Hashes of a prompt that are made outside of an engine are those of the engine's requests."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from kvtide.vllm.hashes import EPOCH_0, Keys, RandomSeed, named_epoch
from kvtide.vllm.prompt import prompt_hashes

BLOCK, TOKENS = 4, [128_000, *range(40)]


def of_engine(algorithm: str, **given: Any) -> list[bytes]:
    """Return vLLM's hashes of a request's blocks."""
    function = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(function)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, function)
    parameters = SamplingParams()
    made = Request(request_id="r", prompt_token_ids=TOKENS, sampling_params=parameters, pooling_params=None, block_hasher=hasher, **given)
    return list(made.block_hashes)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("salt", [None, "user 1"])
def test_they_are_those_of_a_request(algorithm: str, salt: str | None) -> None:
    keys = [Keys(EPOCH_0).key(block) for block in of_engine(algorithm, cache_salt=salt)]
    assert len(keys) == 10
    assert prompt_hashes(TOKENS, BLOCK, algorithm=algorithm, salt=salt) == keys
    assert prompt_hashes(TOKENS, BLOCK, page_tokens=2 * BLOCK, algorithm=algorithm, salt=salt) == keys[1::2]
    named = [Keys(named_epoch("v2")).key(block) for block in of_engine(algorithm, cache_salt=salt)]
    assert prompt_hashes(TOKENS, BLOCK, algorithm=algorithm, salt=salt, epoch="v2") == named


def test_what_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(RandomSeed, match="Set PYTHONHASHSEED to the same number"):
        prompt_hashes(TOKENS, BLOCK, algorithm="xxhash")
    for page_tokens in (6, 2):
        with pytest.raises(ValueError, match=f"--page-tokens is {page_tokens}; it must be a multiple of --block-tokens, which is 4"):
            prompt_hashes(TOKENS, BLOCK, page_tokens=page_tokens)
    with pytest.raises(ValueError, match="md5"):
        prompt_hashes(TOKENS, BLOCK, algorithm="md5")
