"""From vLLM's block hashes to kvtide's 16 bytes, and whether vLLM's stand for the same content in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

#: Bytes of a hash in kvtide.
HASH_BYTES = 16
#: Bytes of an epoch: what tells generations of weights apart.
EPOCH_BYTES = 16
#: The epoch of the weights as their files hold them.
EPOCH_0 = bytes(EPOCH_BYTES)
#: Algorithms of vLLM (`prefix_caching_hash_algo`) whose first hash is seeded with a constant, where this vLLM has one.
_CONSTANT_SEED = ("sha256", "sha256_cbor")


class RandomSeed(ValueError):
    """vLLM's block hashes are seeded at random, so that no other process can find what this one stores."""


def new_epoch() -> bytes:
    """An epoch that nobody has had."""
    return os.urandom(EPOCH_BYTES)


def named_epoch(name: str | None) -> bytes:
    """The epoch of that name; epoch 0 without one."""
    if name is None:
        return EPOCH_0
    return hashlib.blake2b(name.encode(), digest_size=EPOCH_BYTES, person=b"kvtide-epoch").digest()


class Keys:
    """Makes hashes: of an epoch, and of an adapter if its digest is given.

    vLLM's own hash already holds the tokens of the whole prefix, the salt, multimodal content and the adapter's name.
    """

    def __init__(self, epoch: bytes, adapter: bytes = b"") -> None:
        if len(epoch) != EPOCH_BYTES:
            raise ValueError(f"an epoch has {EPOCH_BYTES} bytes, not {len(epoch)}")
        self._base = hashlib.blake2b(key=epoch, digest_size=HASH_BYTES, person=b"kvtide-vllm-key")
        self._base.update(len(adapter).to_bytes(1, "little") + adapter)

    def key(self, block_hash: bytes) -> bytes:
        """The 16 bytes of one block."""
        state = self._base.copy()
        state.update(block_hash)
        return state.digest()

    def extend(self, keys: bytearray, block_hashes: Sequence[bytes], every: int) -> None:
        """Appends those of the blocks that `keys` lacks; each spans `every` of vLLM's hashes, the last of which it has."""
        for index in range(len(keys) // HASH_BYTES, len(block_hashes) // every):
            keys += self.key(block_hashes[(index + 1) * every - 1])


def seed_of(algorithm: str, *, constant_default: str | None) -> str:
    """What vLLM's first block hash is made from, as far as every process has the same.

    `constant_default` is the constant that this vLLM uses where PYTHONHASHSEED is not set and the algorithm is
    cryptographic; None if it has none. RandomSeed: there is no such seed.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None and seed != "random":
        return f"PYTHONHASHSEED={seed}"
    if seed is None and algorithm in _CONSTANT_SEED and constant_default is not None:
        return constant_default
    raise RandomSeed(
        f"kvtide: vLLM seeds its block hashes ({algorithm}) at random in every process, so that nothing that is stored could"
        " be found after a restart or by another engine: set PYTHONHASHSEED to the same number for all of them"
        f" (it is {'not set' if seed is None else seed!r}), or choose --prefix-caching-hash-algo sha256."
        ' "private": true in kv_connector_extra_config uses kvtide for this process alone'
    )
