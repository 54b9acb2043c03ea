"""Convert vLLM's block hashes to kvtide's 16 bytes, and verify that vLLM's hashes are equal in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from .._native import local_hash

#: Bytes of a hash in kvtide.
HASH_BYTES = 16
#: Bytes of an epoch. An epoch identifies a generation of the weights.
EPOCH_BYTES = 16
#: Epoch of the weights as stored in their files.
EPOCH_0 = bytes(EPOCH_BYTES)
#: vLLM's algorithms (`prefix_caching_hash_algo`) with a constant seed for the first hash, in vLLM versions that have one.
_CONSTANT_SEED = ("sha256", "sha256_cbor")


class RandomSeed(ValueError):
    """vLLM's block hashes are seeded at random, so no other process can find the blocks that this one stores."""


def new_epoch() -> bytes:
    """Return a new random epoch."""
    return os.urandom(EPOCH_BYTES)


def named_epoch(name: str | None) -> bytes:
    """Return the epoch with this name; epoch 0 for None."""
    if name is None:
        return EPOCH_0
    return hashlib.blake2b(name.encode(), digest_size=EPOCH_BYTES, person=b"kvtide-epoch").digest()


class Keys:
    """Derives kvtide hashes from vLLM's, for one epoch and, if its digest is given, one adapter. `local`: no other machine can use the
    blocks, so relays do not copy them.

    vLLM's own hash already holds the tokens of the whole prefix, the salt, multimodal content and the adapter's name.
    """

    def __init__(self, epoch: bytes, adapter: bytes = b"", *, local: bool = False) -> None:
        if len(epoch) != EPOCH_BYTES:
            raise ValueError(f"an epoch has {EPOCH_BYTES} bytes, not {len(epoch)}")
        self._base = hashlib.blake2b(key=epoch, digest_size=HASH_BYTES, person=b"kvtide-vllm-key")
        self._base.update(len(adapter).to_bytes(1, "little") + adapter)
        self._local = local

    def key(self, block_hash: bytes) -> bytes:
        """Return the 16-byte hash of one block."""
        state = self._base.copy()
        state.update(block_hash)
        return local_hash(state.digest()) if self._local else state.digest()

    def extend(self, keys: bytearray, block_hashes: Sequence[bytes], every: int) -> None:
        """Append the hashes of the blocks that `keys` lacks. A block spans `every` of vLLM's hashes and uses the last of them."""
        for index in range(len(keys) // HASH_BYTES, len(block_hashes) // every):
            keys += self.key(block_hashes[(index + 1) * every - 1])


def seed_of(algorithm: str, *, constant_default: str | None) -> str:
    """Return the seed of vLLM's first block hash, if it is the same in every process.

    `constant_default` is the constant that this vLLM uses if PYTHONHASHSEED is not set and the algorithm is cryptographic; None if
    it has none. Raise RandomSeed if the seed is random.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None and seed != "random":
        return f"PYTHONHASHSEED={seed}"
    if seed is None and algorithm in _CONSTANT_SEED and constant_default is not None:
        return constant_default
    raise RandomSeed(
        f"kvtide: vLLM seeds its block hashes ({algorithm}) at random in every process, so no stored block could be found"
        " after a restart or by another engine. Set PYTHONHASHSEED to the same number for all processes"
        f" (it is {'not set' if seed is None else seed!r}), or choose --prefix-caching-hash-algo sha256."
        ' "private": true in kv_connector_extra_config uses kvtide for this process alone'
    )
