"""Options of `KvtidePaged`, and checks of vLLM's configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ... import Plane, Space, attach
from ...adapter_config import AdapterConfig

#: Maximum capacity in blocks if none is given.
BLOCKS_MAX = 1 << 17
#: The contract under which every step reads all pages.
EXACT = "exact"
#: Bytes of a block of one layer in vLLM's own tensors.
BLOCK_BYTES = 2
#: vLLM's default for --block-size on CPUs.
BLOCK_TOKENS = 128


@dataclass(frozen=True)
class PagedConfig(AdapterConfig):
    """The connector's options. Times are in seconds and sizes in bytes; both may be given as strings with a unit."""

    WHERE = "kv_connector_extra_config"
    ZERO_ALLOWED = ("tier0_bytes", "capacity_tokens", "guaranteed_tokens", "max_stall_s")

    #: Memory of this engine for pages that are being read. 0: what vLLM would use for its KV cache (VLLM_CPU_KVCACHE_SPACE).
    tier0_bytes: int = 0
    #: Tokens of KV that vLLM may keep at the same time, over all requests. 0: enough for `max_num_seqs` requests of the maximum
    #: length, as far as the daemon has room.
    capacity_tokens: int = 0
    #: Tokens of KV that the daemon guarantees at the start, or refuses: other engines cannot take their memory. 0: `capacity_tokens`
    #: if that is given, else one request of the maximum length.
    guaranteed_tokens: int = 0
    #: Reading contract of decoding: "exact" (all pages), or "approx:SHARE" (if a request does not fit into tier 0: that share of its pages, those
    #: with the most attention). Prompts are always computed with all pages.
    contract: str = EXACT
    #: Select pages under `approx` by digests of their keys too, which are kept and scored for each step, and not only by the attention
    #: that they got before. On CPUs scoring a page takes longer than reading it: worth it if most pages are on NVMe.
    digests: bool = False
    #: Time that a step waits in each layer for pages that `approx` selected and that are not in tier 0. Then it omits them.
    max_stall_s: float = 0.0
    #: Limit of a lookup. Then the prompt is computed.
    lookup_timeout_s: float = 0.5
    #: Time that a step waits for free pages, and for the daemon to come back. Then the affected requests are computed again.
    wait_s: float = 10.0
    #: Longest pause between attempts to attach.
    retry_max_s: float = 30.0
    #: Name of the version of the weights, for weights that are updated in place. Engines with the same name share blocks.
    epoch: str | None = None
    #: Start although vLLM's block hashes are seeded at random. No other process, and no restart, finds the blocks.
    private: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name, _, share = self.contract.partition(":")
        if self.contract != EXACT and not (name == "approx" and _is_share(share)):
            raise ValueError(
                f'kvtide: contract is {self.contract!r}; it must be "exact", or "approx:" and a share of the pages from 0.001 to 1'
            )


def _is_share(text: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", text, re.ASCII) is not None and 0.001 <= float(text) <= 1


def is_selected(vllm_config: Any) -> bool:
    """Return whether vLLM's configuration selects `KvtidePaged`."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    return transfer is not None and transfer.kv_connector == "KvtidePaged"


def on_gpu() -> bool:
    """Return whether vLLM runs on a GPU."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    return not current_platform.is_cpu()


def _wrong_on_gpu(vllm_config: Any, config: PagedConfig) -> list[str]:
    from vllm.platforms import current_platform  # noqa: PLC0415

    wrong = []
    if not current_platform.is_cuda():
        wrong.append("the device is neither a CPU nor a CUDA GPU; use KvtideConnector")
    backend = vllm_config.attention_config.backend
    if backend is None or backend.name != "CUSTOM":
        wrong.append("vLLM's own attention backend on a GPU; set --attention-backend CUSTOM")
    if vllm_config.scheduler_config.async_scheduling:
        # A step may be lost while the next one is already planned.
        wrong.append("asynchronous scheduling; set --no-async-scheduling")
    if config.contract != EXACT:
        wrong.append(f"contract {config.contract} on a GPU; set exact")
    if not config.tier0_bytes:
        wrong.append("a GPU without tier0_bytes; set it to the memory that --gpu-memory-utilization leaves")
    return wrong


def check(vllm_config: Any, config: PagedConfig) -> None:
    """Raise ValueError if something in vLLM's configuration is not supported, with what to change."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    wrong = _wrong_on_gpu(vllm_config, config) if on_gpu() else []
    if (role := vllm_config.kv_transfer_config.kv_role) != "kv_both":
        wrong.append(f"kv_role {role}; set kv_both")
    if parallel.world_size > parallel.tensor_parallel_size or parallel.decode_context_parallel_size > 1:
        wrong.append("pipeline or context parallelism; use tensor parallelism")
    if str(model.dtype) not in ("torch.float16", "torch.bfloat16"):
        wrong.append(f"dtype {model.dtype}; set --dtype bfloat16 or float16")
    if str(cache.cache_dtype) not in ("auto", str(model.dtype).removeprefix("torch.")):
        wrong.append(f"KV cache dtype {cache.cache_dtype}; remove --kv-cache-dtype")
    if model.use_mla:
        wrong.append("latent attention (MLA); use KvtideConnector")
    if vllm_config.speculative_config is not None:
        wrong.append("speculative decoding; remove --speculative-config")
    if model.is_encoder_decoder:
        wrong.append("an encoder-decoder model; use KvtideConnector")
    if wrong:
        raise ValueError("kvtide: KvtidePaged does not support this configuration: " + "; ".join(wrong))


def prepare(vllm_config: Any, config: PagedConfig) -> None:
    """Check vLLM's configuration and set the size of its own cache. Call it in the worker, before vLLM reads that size. It may be
    called again.

    Raise ValueError if something is not supported, or kvtide's error if the daemon cannot be reached.
    """
    check(vllm_config, config)
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if not cache.user_specified_block_size:
        # vLLM 0.33 sets its default only after the layers exist, and would then multiply the tokens of the blocks counted here.
        cache.block_size = BLOCK_TOKENS
    longest = model.max_model_len
    for name, tokens in (("capacity_tokens", config.capacity_tokens), ("guaranteed_tokens", config.guaranteed_tokens)):
        if 0 < tokens < longest:
            raise ValueError(
                f"kvtide: {name} is {tokens}, less than one request of the maximum length: set it to {longest} or more, or"
                " --max-model-len lower"
            )
    if 0 < config.capacity_tokens < config.guaranteed_tokens:
        raise ValueError(
            f"kvtide: guaranteed_tokens is {config.guaranteed_tokens}, more than capacity_tokens, which is {config.capacity_tokens}"
        )
    blocks = -(-config.capacity_tokens // cache.block_size)
    if not blocks:
        needed = vllm_config.scheduler_config.max_num_seqs * -(-longest // cache.block_size)
        # The worker's session also holds vLLM's null block.
        blocks = min(needed, BLOCKS_MAX, _room(vllm_config, config) - 1)
    # One block more: vLLM keeps one as its null block.
    cache.kv_cache_memory_bytes = (blocks + 1) * model.get_num_layers(vllm_config.parallel_config) * BLOCK_BYTES


def _room(vllm_config: Any, config: PagedConfig) -> int:
    """Return the number of blocks of this model that the daemon has room for. It grants them to each session in its answer."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    numbers = model.get_num_kv_heads(parallel) * vllm_config.cache_config.block_size * model.get_head_size()
    planes = [Plane(2 * numbers * model.dtype.itemsize)] * model.get_num_layers(parallel)
    space = Space(
        config.space or f"vllm {model.model}", bytes(32), vllm_config.cache_config.block_size, planes, parallel.tensor_parallel_size
    )
    # A session without tier 0 has no page tables, and so no number of blocks.
    with attach(config.socket, space, [max(2, len(planes))], timeout=config.attach_timeout_s, token_file=config.token_file) as session:
        return session.layout.blocks_max
