"""Attention backend: pages are in kvtide's tier 0, and vLLM's KV cache is two bytes per block and layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType, MultipleOf

from .config import BLOCK_BYTES
from .connector import KvtidePaged
from .worker import Worker


@dataclass
class StepRows:
    """Rows of a step: requests in the batch's order."""

    #: Tokens with the new ones, and new tokens.
    lengths: list[int]
    new: list[int]
    #: vLLM's block ids [rows, blocks]. The first one of a row names its request.
    blocks: Tensor

    @property
    def tokens(self) -> int:
        """Return the number of new tokens of all rows."""
        return sum(self.new)


class Backend(AttentionBackend):
    """vLLM's view of the backend."""

    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        """Return the name of the backend that this one replaces: vLLM's CPU platform knows only that one."""
        return "CPU_ATTN"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return the page sizes in tokens."""
        return [MultipleOf(16)]

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return True: windows are applied to the queries; all pages are kept."""
        return True

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Return the layer's specification with one state of two bytes per block. Heads, size and dtype stay: `geometry` reads
        them."""
        return replace(spec, num_head_slots=1, state_content_bytes=BLOCK_BYTES, tokens_per_state=spec.block_size)

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        """Return the class of a layer's attention."""
        return Impl

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """Return the class that builds a step's metadata."""
        return Builder


class DeviceBackend(Backend):
    """The same on a GPU."""

    @staticmethod
    def get_name() -> str:
        """Return the name that vLLM has for the backends of others."""
        return "CUSTOM"


class Builder(AttentionMetadataBuilder[StepRows]):
    """Builds `StepRows`. vLLM does not capture attention in CUDA graphs, because a builder's default is that it cannot."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> StepRows:
        """Return the rows of a step."""
        common = common_attn_metadata
        starts = common.query_start_loc_cpu[: common.num_reqs + 1].tolist()
        # The upper bound is exact without speculative decoding, and reading the lengths of a GPU would wait for it.
        lengths = common.seq_lens if common.seq_lens.device.type == "cpu" else common.seq_lens_cpu_upper_bound
        lengths = lengths[: common.num_reqs].tolist()
        return StepRows(lengths, [b - a for a, b in zip(starts, starts[1:])], common.block_table_tensor[: common.num_reqs])


def _worker() -> Worker:
    connector = get_kv_transfer_group()
    assert isinstance(connector, KvtidePaged), type(connector)
    assert connector.worker is not None
    return connector.worker


class Impl(AttentionImpl[StepRows]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        found = {
            "ALiBi": alibi_slopes is not None,
            "a soft cap of scores": bool(logits_soft_cap),
            f"{attn_type} attention": attn_type != AttentionType.DECODER,
            "layers that share KV": kv_sharing_target_layer_name is not None,
            "attention sinks": sinks is not None,
        }
        if wrong := [name for name, has in found.items() if has]:
            raise ValueError(f"kvtide: KvtidePaged does not support this model: {', '.join(wrong)}; use KvtideConnector")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: StepRows | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write the new tokens' keys and values into their pages, and attend. Query and output are [tokens, heads, head_size]."""
        if attn_metadata is None:  # vLLM measures memory, or compiles
            return output.zero_()
        count = attn_metadata.tokens
        new = (query[:count], key[:count], value[:count])
        _worker().attend(layer.layer_name, attn_metadata, *new, self.scale, output[:count])
        return output
