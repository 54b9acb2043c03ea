"""Contents of SGLang's page keys.

A key is the hash of a page's tokens and of all tokens before them. From SGLang 0.5.20 on the first hash starts from a seed: a hash of the
LoRA adapter and of the cache salt. Earlier versions leave both out, so that a request would load KV of other adapters and tenants.
"""

from __future__ import annotations

import hashlib
import json
import re

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


def _refused(version: str) -> ValueError:
    first = ".".join(map(str, FIRST))
    return ValueError(
        f"kvtide: the keys of HiCache in SGLang {version} leave out the LoRA adapter or the cache salt, so requests would load KV of"
        f" other adapters and tenants. Use SGLang {first} or later"
    )
