"""Fingerprint of a pool's pages, and the part of them that this rank has."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import kvtide
from kvtide import identity, weights
from kvtide.keyed_store import BlockMemory

from . import keys, pools
from .config import StorageConfig

#: Version of a page's format. Raise it when the same parts below mean other bytes.
FORMAT = 1
#: Server arguments that change the model's results or the format of its KV.
_ARGUMENTS = (
    "revision",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "json_model_override_args",
    "load_format",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "random_seed_weights",
    "attention_backend",
)


def server_arguments() -> Any:
    """Return the server's arguments, or None outside a server."""
    try:
        from sglang.srt.runtime_context import get_server_args  # noqa: PLC0415

        return get_server_args()
    except Exception:  # outside a running server it raises; the exception class differs between versions
        return None


class Identity:
    """A rank's position, and the parts of the fingerprint that all its pools share."""

    def __init__(self, storage: Any, config: StorageConfig) -> None:
        """Collect the parts. `storage` is SGLang's HiCacheStorageConfig.

        Raise ValueError if it asks for something unsupported, SGLang's keys lack the adapter or the salt, or the weights cannot be
        hashed.
        """
        if getattr(storage, "dcp_size", 1) > 1:
            raise ValueError("kvtide: decode context parallelism is not supported by SGLang for this kind of storage backend")
        if storage.should_split_heads or storage.tp_lcm_size:
            raise ValueError(
                "kvtide: tp_lcm_size (pages shared between different tensor-parallel sizes) is not supported; remove it"
            )
        self._storage, self._config = storage, config
        arguments = server_arguments()
        self._nodes = config.nodes or int(getattr(arguments, "nnodes", 1) or 1)
        model = str(getattr(arguments, "model_path", None) or storage.model_name or "")
        self._name = config.space or f"sglang-{PurePath(str(storage.model_name or model)).name or 'model'}"
        self._parts = {
            "format": str(FORMAT),
            "keys": keys.contents(),
            "model": str(storage.model_name),
            "weights": self._weights(model, arguments),
            "stage": f"{storage.pp_rank} of {storage.pp_size}",
            "ranks": f"tp {storage.tp_size} cp {storage.attn_cp_size}",
        }
        for name in _ARGUMENTS:
            if (value := getattr(arguments, name, None)) is not None:
                self._parts[name] = str(value)
        if scales := getattr(arguments, "quantization_param_path", None):
            self._parts["quantization scales"] = weights.remembered_digest(Path(scales)).hex()

    def _weights(self, model: str, arguments: Any) -> str:
        if self._config.weights_id is not None:
            return f"named {self._config.weights_id}"
        if arguments is None:
            raise ValueError(
                "kvtide: cannot hash the weights: SGLang does not report the arguments that KV depends on (revision, dtypes,"
                ' overrides). Set "weights_id" in the extra configuration to a name for all of them, and use another name for'
                " other servers"
            )
        try:
            return weights.model_digest(
                model, getattr(arguments, "revision", None), getattr(arguments, "download_dir", None)
            ).hex()
        except OSError as error:
            raise ValueError(
                f"kvtide: cannot hash the weights, which are part of the fingerprint: {error}."
                ' Set "weights_id" in the extra configuration to a name, and use another name for other weights'
            ) from error

    def space(self, pool: Any, pool_name: str, memory: BlockMemory) -> tuple[kvtide.Space, dict[str, str]]:
        """Return the space of a pool's pages on this rank, and the readable parts of its fingerprint."""
        storage = self._storage
        shards, shard = storage.attn_cp_size, storage.attn_cp_rank
        if not self._replicated(pool, pool_name):
            shards, shard = shards * storage.tp_size, shard * storage.tp_size + storage.tp_rank
        parts = self._parts | {
            "pool": f"{pool_name} {type(pool).__name__}",
            "pool format": str(getattr(pool, "storage_format_tag", None)),
            "numbers": str(getattr(pool, "dtype", None)),
            "order": pools.order(pool),
            "order of pieces": pools.pieces_order(pool),
            "page": f"{pools.slots_a_page(pool)} tokens, {memory.block_bytes} bytes",
        }
        if self._nodes > 1:
            parts["rank alone"] = f"{shard} of {shards}"
            shards, shard = 1, 0
        name = self._name if pool_name == "kv" else f"{self._name}-{pool_name}"
        described = identity.text(parts)
        space = kvtide.Space(name, _digest(parts), pools.slots_a_page(pool), memory.planes(), shards, shard, described)
        return space, parts

    def _replicated(self, pool: Any, pool_name: str) -> bool:
        """Return whether every tensor-parallel rank has the same bytes.

        Pools that are split by heads beside a latent KV do not. SGLang stores some of them from one rank only; such blocks are
        never complete, and so never found.
        """
        split = any(kind.__name__.startswith(("MHA", "AsymmetricMHA", "Mamba")) for kind in type(pool).__mro__)
        return bool(self._storage.is_mla_model) and not split and pool_name != "mamba"


def _digest(parts: Mapping[str, str]) -> bytes:
    text = json.dumps(dict(parts), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kvtide-sglang").digest()


def cleared(times: int) -> bytes:
    """Return the key prefix after the backend was cleared `times` times: empty for 0, else unique to this server.

    All ranks that one server has started on a machine compute the same prefix.
    """
    if not times:
        return b""
    parent = os.getppid()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Field 22: start time of the parent. The fields before it may contain spaces, up to a parenthesis.
    began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    namespace = os.stat("/proc/self/ns/pid").st_ino
    arguments = server_arguments()
    server = " ".join(str(getattr(arguments, name, None)) for name in ("port", "nccl_port", "random_seed"))
    text = f"{boot} {namespace} {parent} {began} {server} {times}"
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"kvtide-cleared").digest()
