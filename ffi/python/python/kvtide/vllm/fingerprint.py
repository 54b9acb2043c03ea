"""Fingerprint: everything that decides whether KV of one engine is valid for another (weights, dtypes, layout, parallelism,
hashes)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import pickle
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .. import weights
from .hashes import RandomSeed, new_epoch, seed_of

logger = logging.getLogger(f"vllm.{__name__}")

#: Keys of a model's configuration that describe its location and not its content.
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "_commit_hash", "torch_dtype", "dtype")

#: Name of the part that describes the block hashes, and how its seed begins if it is of one engine alone.
_HASHES, _PRIVATE = "block hashes", "private "

class Options(Protocol):
    """Options of a connector that the fingerprint depends on."""

    @property
    def weights_id(self) -> str | None:
        """Name that replaces the hash of the weight files."""

    @property
    def private(self) -> bool:
        """True if block hashes with a random seed are allowed."""


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: object) -> str:
    return hashlib.blake2b(_text(value).encode(), digest_size=16).hexdigest()


def _weights(model: Any, load: Any, config: Options) -> str:
    if config.weights_id is not None:
        return f"named {config.weights_id}"
    if str(load.load_format) == "dummy":
        return f"dummy, seed {model.seed}"
    source = getattr(model, "model_weights", "") or model.model
    try:
        return weights.model_digest(source, model.revision, load.download_dir).hex()
    except OSError as error:
        raise ValueError(
            f"kvtide: cannot hash the weights, which are part of the fingerprint: {error}."
            ' Set "weights_id" in kv_connector_extra_config to a name, and use another name for other weights'
        ) from error


def _model(model: Any, load: Any, config: Options) -> dict[str, str]:
    described = {k: v for k, v in model.hf_config.to_dict().items() if k not in _NOT_THE_MODEL}
    return {
        "weights": _weights(model, load, config),
        "model configuration": _short(described),
        "load format": str(load.load_format),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        # Rotary embeddings that scale for long contexts choose their factors by this length.
        "longest request": str(model.max_model_len),
    }


def _if_given(name: str, value: object) -> dict[str, str]:
    """Return a part for an option, or nothing if the option has its default."""
    if value is None or value == {}:
        return {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    # Drop memory addresses: they differ in every process.
    text = re.sub(r" at 0x[0-9a-f]+", "", _text(sorted(value, key=str) if isinstance(value, (set, frozenset)) else value))
    return {name: text if len(text) < 100 else _short(text)}


def _processor() -> str:
    """Return the processor features that affect vLLM's kernels. On a CPU they pack keys according to its vector unit."""
    machine = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return machine
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return machine + " " + " ".join(sorted(f for f in flags if f.startswith(("amx", "avx512", "avx2", "sve", "i8mm", "bf16"))))


def _device() -> str:
    from vllm.platforms import current_platform  # noqa: PLC0415

    if current_platform.is_cpu():
        return f"cpu {_processor()}"
    capability = current_platform.get_device_capability()
    return f"{current_platform.device_name} {capability}"


def _hashing(vllm_config: Any, config: Options) -> str:
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    try:
        seed = seed_of(algorithm, constant_default=getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None))
    except RandomSeed:
        if not config.private:
            raise
        # All ranks of one engine must have the same value, and no two engines may.
        engine = getattr(vllm_config.kv_transfer_config, "engine_id", None)
        seed = f"{_PRIVATE}{engine or new_epoch().hex()}"
    return f"{algorithm}, pickle {pickle.HIGHEST_PROTOCOL}, {seed}"


def parts(vllm_config: Any, config: Options, layout: str) -> dict[str, str]:
    """Return all parts of the fingerprint by name, in readable form. `layout` describes a rank's pages.

    Raise ValueError if the weights cannot be hashed, or block hashes are seeded at random.
    """
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    import vllm  # noqa: PLC0415

    found = {"vllm": str(getattr(vllm, "__version__", "unknown")), "device": _device()}
    found |= _model(vllm_config.model_config, vllm_config.load_config, config)
    if (speculative := vllm_config.speculative_config) is not None:
        found["speculative method"] = str(speculative.method)
        draft = speculative.draft_model_config
        if draft is not None and draft.model != vllm_config.model_config.model:
            found |= {f"draft {name}": text for name, text in _model(draft, vllm_config.load_config, config).items()}
    found["kv cache dtype"] = str(cache.cache_dtype)
    found["layout"] = layout
    sizes = ("tensor", "pipeline", "prefill_context", "decode_context")
    split = {name: getattr(parallel, f"{name}_parallel_size", 1) for name in sizes}
    # The interleaving of context over ranks decides which token a rank's page holds. Expert parallelism changes the computation.
    split["interleave"] = getattr(parallel, "cp_kv_cache_interleave_size", 1)
    described = [f"{name} {size}" for name, size in split.items() if size != 1]
    described += ["experts"] * bool(getattr(parallel, "enable_expert_parallel", False))
    found["parallelism"] = ", ".join(described) or "none"
    attention = getattr(vllm_config, "attention_config", None)
    found["attention backend"] = str(getattr(attention, "backend", None))
    found |= _if_given("attention backends by kind", getattr(attention, "backend_per_kind", None))
    found |= _if_given("quantization options", getattr(vllm_config.model_config, "quantization_config", None))
    lora = getattr(vllm_config, "lora_config", None)
    found |= _if_given("adapters' dtype", getattr(lora, "lora_dtype", None))
    found |= _if_given("adapters' modules", getattr(lora, "target_modules", None))
    found[_HASHES] = _hashing(vllm_config, config)
    return found


def is_private(found: Mapping[str, str]) -> bool:
    """Return whether these parts are of one engine alone: its block hashes mean nothing to another."""
    return f", {_PRIVATE}" in found.get(_HASHES, "")


def digest(found: Mapping[str, str]) -> bytes:
    """Return the fingerprint: 32 bytes."""
    return hashlib.blake2b(_text(found).encode(), digest_size=32, person=b"kvtide-vllm").digest()
