"""Contents of SGLang's page keys.

A key is the hash of a page's tokens and of all tokens before them. From SGLang 0.5.20 on the first hash starts from a seed: a hash of the
LoRA adapter and of the cache salt. Earlier versions leave both out, so that a request would load KV of other adapters and tenants.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Sequence

from kvtide.keyed_store import key_hash

#: The first version whose keys contain adapter and salt.
FIRST = (0, 5, 20)
#: Adapters and salts whose seeds must differ.
_NAMES = (None, "", "a", "b", "ab")


def contents() -> str:
    """Return a text that changes with what SGLang's keys contain beside tokens. Raise ValueError if they lack the adapter or the salt."""
    import sglang  # noqa: PLC0415

    version = str(getattr(sglang, "__version__", "of unknown version"))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    # A build from source without its history calls itself 0.0.0.
    if numbers and (0, 0, 0) < numbers < FIRST:
        raise _refused(version)
    try:
        from sglang.srt.mem_cache.utils import storage_namespace_seed  # noqa: PLC0415
    except ImportError as error:
        raise _refused(version) from error
    seeds = [storage_namespace_seed(adapter, salt) for adapter in _NAMES for salt in _NAMES]
    if len(set(seeds)) < len(seeds):
        raise _refused(version)
    digest = hashlib.blake2b(json.dumps(seeds).encode(), digest_size=8).hexdigest()
    return f"tokens, adapter, salt: {digest}"


def prompt_hashes(tokens: Sequence[int], page_tokens: int, *, salt: str | None = None) -> list[bytes]:
    """Return the hashes of a prompt's full pages outside of a server, as `KvtideStorage` makes them: by SGLang's own function.

    Raise ValueError as `contents` does.
    """
    contents()
    from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: PLC0415
    from sglang.srt.mem_cache.utils import get_storage_hash_str  # noqa: PLC0415

    whole = len(tokens) // page_tokens * page_tokens
    key = RadixKey(array("q", tokens[:whole]), cache_salt=salt)
    return [key_hash(page.encode()) for page in get_storage_hash_str(key, page_size=page_tokens)]


def _refused(version: str) -> ValueError:
    first = ".".join(map(str, FIRST))
    return ValueError(
        f"kvtide: the keys of HiCache in SGLang {version} leave out the LoRA adapter or the cache salt, so requests would load KV of"
        f" other adapters and tenants. Use SGLang {first} or later"
    )
