"""Hashes of a prompt's blocks outside of an engine, as `KvtideConnector` and `KvtidePaged` make them: by vLLM's own functions."""

from __future__ import annotations

from types import SimpleNamespace

from .hashes import HASH_BYTES, Keys, named_epoch, seed_of


def prompt_hashes(
    tokens: list[int],
    block_tokens: int,
    *,
    page_tokens: int | None = None,
    algorithm: str = "sha256",
    salt: str | None = None,
    epoch: str | None = None,
) -> list[bytes]:
    """Return the hashes of a prompt's full blocks. `block_tokens` are those of vLLM's hashes, `page_tokens` those of kvtide's blocks, a
    multiple; None: the same.

    Raise RandomSeed if the seed of the algorithm is random, ValueError if vLLM does not know the algorithm or the sizes do not fit.
    """
    from vllm.utils.hashing import get_hash_fn_by_name  # noqa: PLC0415
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    every, rest = divmod(block_tokens if page_tokens is None else page_tokens, block_tokens)
    if rest or not every:
        raise ValueError(f"--page-tokens is {page_tokens}; it must be a multiple of --block-tokens, which is {block_tokens}")
    function = get_hash_fn_by_name(algorithm)
    seed_of(algorithm, constant_default=getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None))
    kv_cache_utils.init_none_hash(function)
    # What vLLM reads of a request. A version that reads more fails here, and makes no wrong hash.
    request = SimpleNamespace(
        block_hashes=[],
        num_tokens=len(tokens),
        all_token_ids=tokens,
        mm_features=[],
        lora_request=None,
        cache_salt=salt,
        prompt_embeds=None,
    )
    keys = bytearray()
    Keys(named_epoch(epoch)).extend(keys, kv_cache_utils.get_request_block_hasher(block_tokens, function)(request), every)
    return [bytes(keys[at : at + HASH_BYTES]) for at in range(0, len(keys), HASH_BYTES)]
