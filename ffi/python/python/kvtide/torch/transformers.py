"""A `transformers` cache with its KV in a kvtide space, and the attention function that reads it.

    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="kvtide")   # after importing this module
    with KvtideCache.attach(model, socket, tier0_frames=...) as cache:
        model.generate(inputs, past_key_values=cache, prefill_chunk_size=256)

The cache has no tensors of its own: `update` passes new keys and values on, and the attention function appends them to their pages
and attends over the pages, whole or in passes. Left padding uses no pages. Beams, cropping and repetition are forks and truncations
of sequences.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

import kvtide
from kvtide.errors import WrongState

from .memory import DTYPES, KvShape
from .paging import Paging, Totals

#: Required `attn_implementation` of the model.
IMPLEMENTATION = "kvtide"


def shape_of(model: PreTrainedModel, page_tokens: int = 16) -> tuple[KvShape, list[int]]:
    """Return the shape of a model's pages, and the window of each layer (0: none).

    Raise `ValueError` for unsupported models: types other than float16 and bfloat16, and layers without plain attention.
    """
    config = model.config.get_text_config(decoder=True)
    if model.dtype not in DTYPES:
        raise ValueError(f"the model is {model.dtype}; load it with dtype=torch.bfloat16 or torch.float16")
    if getattr(config, "num_kv_shared_layers", None):
        raise ValueError(f"{config.num_kv_shared_layers} layers share the KV of others; every layer must have its own")
    windows = []
    for layer, kind in enumerate(_layer_types(config)):
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(f"layer {layer} is {kind!r}; supported are full_attention and sliding_attention")
        windows.append(int(config.sliding_window) if kind == "sliding_attention" else 0)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return KvShape(kv_heads, page_tokens, head_dim, model.dtype), windows


def _layer_types(config: PreTrainedConfig) -> list[str]:
    """Return each layer's kind of attention. Configurations without layer_types have one kind for all layers."""
    named: list[str] | None = getattr(config, "layer_types", None)
    if named is not None:
        return named
    if getattr(config, "attention_chunk_size", None) is not None:
        kind = "chunked_attention"
    else:
        kind = "full_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"
    return [kind] * int(config.num_hidden_layers)


class _Batch:
    """State shared by all layers of a cache: sequences, padding, and the running forward."""

    def __init__(self, paging: Paging, query_tokens_max: int | None) -> None:
        self.paging = paging
        self.query_tokens_max = query_tokens_max
        #: Tokens as transformers counts them, including padding; padding of each row.
        self.length = 0
        self.padding: list[int] = []
        #: Layer with keys and values that wait for their attention call.
        self.pending: tuple[int, Tensor, Tensor] | None = None

    def expect(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Set the layer's new keys and values for the next attention call. Raise `WrongState` if an earlier layer was not read."""
        if self.pending is not None:
            unread = self.pending[0]
            self.reset_forward()
            if layer != 0:
                raise WrongState(
                    f"layer {unread} did not read its keys and values through kvtide: load the model with "
                    f'attn_implementation="{IMPLEMENTATION}"'
                )
        self.pending = (layer, key, value)

    def reset_forward(self) -> None:
        """Reset after an interrupted forward; its tokens are dropped."""
        self.pending = None
        self.paging.abandon()

    def attend(self, layer: int, query: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Append the pending keys and values, and attend: [batch, heads, tokens, dim] to [batch, tokens, heads, dim]."""
        if self.pending is None or self.pending[0] != layer:
            raise WrongState(f"attention of layer {layer}: the cache was not given its keys and values")
        _, key, value = self.pending
        self.pending = None
        try:
            if layer == 0:
                self._begin(query, mask)
            skip = self.padding if self.length == 0 else [0] * len(self.padding)
            query_rows, key_rows, value_rows = (_ragged(rows, skip) for rows in (query, key, value))
            out = self.paging.layer(layer, query_rows, key_rows, value_rows, scale)
            if layer + 1 == len(self.paging.windows):
                self.paging.end()
                self.length += query.shape[2]
            return _padded(out, skip, query.shape[2])
        except BaseException:
            self.paging.abandon()
            raise

    def _begin(self, query: Tensor, mask: Tensor | None) -> None:
        batch, tokens = query.shape[0], query.shape[2]
        self.paging.abandon()  # a forward that was interrupted between two layers
        if self.query_tokens_max is not None and tokens > self.query_tokens_max:
            raise ValueError(
                f"{tokens} tokens in one forward; this cache is for {self.query_tokens_max} at most, because layers with a window "
                "keep the pages of that many queries. Use prefill_chunk_size, or attach with a larger query_tokens_max"
            )
        if self.length == 0:
            self.paging.resize(batch)
            self.padding = _padding(mask, batch, tokens)
        elif batch != len(self.padding):
            raise ValueError(f"a batch of {batch} rows; the cache holds {len(self.padding)} sequences")
        elif mask is not None and mask.shape[-1] != self.length + tokens:
            raise ValueError(f"attention mask of {mask.shape[-1]} tokens; the cache and the input have {self.length + tokens}")
        skip = self.padding if self.length == 0 else [0] * batch
        self.paging.begin([tokens - pad for pad in skip])


def _padding(mask: Tensor | None, batch: int, tokens: int) -> list[int]:
    """Return the left padding of each row of the first forward. Raise ValueError if the mask is not left padding."""
    if mask is None:
        return [0] * batch
    if mask.shape != (batch, tokens):
        raise ValueError(f"attention mask {tuple(mask.shape)} for an input of {(batch, tokens)}")
    padding = (mask == 0).sum(1)
    left = torch.arange(tokens, device=mask.device)[None, :] >= padding[:, None]
    if not torch.equal(left, mask != 0):
        raise ValueError("the attention mask hides tokens that are no padding on the left; kvtide supports left padding only")
    if bool((padding == tokens).any()):
        raise ValueError(
            "a row of the first forward is padding alone. With prefill_chunk_size no row may be padded by a whole chunk"
        )
    return [int(pad) for pad in padding]


def _ragged(rows: Tensor, skip: Sequence[int]) -> Tensor:
    """Convert [batch, heads, tokens, dim] to [tokens without the skipped ones, heads, dim]."""
    rows = rows.transpose(1, 2)
    if not any(skip):
        return rows.flatten(0, 1).contiguous()
    return torch.cat([row[pad:] for row, pad in zip(rows, skip)])


def _padded(out: Tensor, skip: Sequence[int], tokens: int) -> Tensor:
    """Convert back to [batch, tokens, heads, dim]. Padding becomes zeros."""
    if not any(skip):
        return out.view(len(skip), tokens, *out.shape[1:])
    padded = out.new_zeros(len(skip), tokens, *out.shape[1:])
    begin = 0
    for row, pad in zip(padded, skip):
        row[pad:] = out[begin : begin + tokens - pad]
        begin += tokens - pad
    return padded


class KvtideLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of a `KvtideCache`: passes new keys and values to the attention function."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, batch: _Batch, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._batch = batch
        self._layer = layer
        self.is_initialized = True
        self.is_sliding = batch.paging.windows[layer] != 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: tier 0 is allocated at attach."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Pass on the new keys and values. Only the attention function can use the result."""
        self._batch.expect(self._layer, key_states, value_states)
        # The attention function finds the cache through this attribute of its tensor.
        key_states = key_states.view(key_states.shape)
        key_states._kvtide = self._batch  # type: ignore[attr-defined]
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return the number of tokens, including padding."""
        return self._batch.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return all tokens. The attention function applies windows."""
        return self._batch.length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: only the capacity of the daemon's tiers limits the length; exceeding it raises an error."""
        return -1

    @property
    def batch_size(self) -> int:
        """Return the number of sequences in the batch."""
        return self._batch.paging.sequences


class KvtideCache(Cache):
    """`past_key_values` in a kvtide space: one session, one lane, one sequence per row of the batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        session: kvtide.Session,
        *,
        channel: int = 0,
        lane: int = 0,
        query_tokens_max: int | None = None,
        backend: str | None = None,
    ) -> None:
        """Create a cache for `model` on a session in a space with one plane per layer (`space`). `backend`: the attention kernels on
        a GPU (`backends`).

        Raise ValueError if the model uses another attention implementation, or does not fit the space, or if the backend is unknown.
        """
        implementation = model.config._attn_implementation
        if implementation != IMPLEMENTATION:
            raise ValueError(f'the model attends with {implementation!r}; load it with attn_implementation="{IMPLEMENTATION}"')
        shape, windows = shape_of(model, session.layout.page_tokens)
        self._batch = _Batch(Paging(session, shape, windows, channel=channel, lane=lane, backend=backend), query_tokens_max)
        self._session: kvtide.Session | None = None
        super().__init__(layers=[KvtideLayer(self._batch, layer) for layer in range(len(windows))])

    @staticmethod
    def space(
        model: PreTrainedModel,
        *,
        name: str = "transformers",
        page_tokens: int = 16,
        fingerprint: bytes | None = None,
        query_tokens_max: int = 512,
    ) -> kvtide.Space:
        """Return the space of a model. Without a `fingerprint` it is private."""
        shape, windows = shape_of(model, page_tokens)
        # A page must stay while the first query of a forward sees it.
        planes = [shape.plane(window + query_tokens_max - 1 if window else 0) for window in windows]
        return kvtide.Space(name, fingerprint or secrets.token_bytes(32), page_tokens, planes, local=fingerprint is None)

    @classmethod
    def attach(
        cls,
        model: PreTrainedModel,
        socket: str | Any,
        tier0_frames: int,
        *,
        page_tokens: int = 16,
        fingerprint: bytes | None = None,
        query_tokens_max: int = 512,
        seqs_max: int = 256,
        timeout: float = 10.0,
        token_file: str | None = None,
        backend: str | None = None,
    ) -> KvtideCache:
        """Attach to the daemon at `socket` with `tier0_frames` pages of KV on the model's device. Further pages are in the daemon's
        tiers. The session ends with the cache. Arguments and errors are those of `kvtide.attach`; `query_tokens_max` is the maximum
        number of tokens in one forward for models with sliding windows. `backend`: the attention kernels on a GPU (`backends`).
        """
        space = cls.space(model, page_tokens=page_tokens, fingerprint=fingerprint, query_tokens_max=query_tokens_max)
        device = "cpu" if model.device.type == "cpu" else f"cuda:{model.device.index or 0}"
        session = kvtide.attach(
            socket, space, [tier0_frames], seqs_max=seqs_max, timeout=timeout, token_file=token_file, device=device
        )
        try:
            windowed = any(plane.window_tokens for plane in space.planes)
            cache = cls(model, session, query_tokens_max=query_tokens_max if windowed else None, backend=backend)
        except BaseException:
            session.detach()
            raise
        cache._session = session
        return cache

    @property
    def session(self) -> kvtide.Session:
        """Return the session."""
        return self._batch.paging.session

    @property
    def totals(self) -> Totals:
        """Return the counts of planes read whole and in passes."""
        return self._batch.paging.totals

    def reset(self) -> None:
        """Empty the cache."""
        self._batch.reset_forward()
        self._batch.paging.resize(0)
        self._batch.length, self._batch.padding = 0, []

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens, or keep the first `tokens_to_remove` if it is positive (older transformers).

        Raise ValueError if that would cut into the padding.
        """
        length = self._batch.length
        keep = length + tokens_to_remove if tokens_to_remove <= 0 else min(tokens_to_remove, length)
        if keep < max(self._batch.padding, default=0):
            raise ValueError(f"crop to {keep} tokens: some rows have {max(self._batch.padding)} tokens of padding")
        self._batch.reset_forward()
        self._batch.paging.truncate([keep - pad for pad in self._batch.padding])
        self._batch.length = keep

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Continue row i from the former row `beam_idx[i]`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self._batch.length:
            rows = torch.arange(len(self._batch.padding))[indices.cpu()].tolist()
            self._batch.reset_forward()
            self._batch.paging.select(rows)
            self._batch.padding = [self._batch.padding[row] for row in rows]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch `repeats` times."""
        self.batch_select_indices(torch.arange(len(self._batch.padding)).repeat_interleave(repeats))

    def close(self) -> None:
        """Drop the sequences, and end the session if `attach` started it."""
        try:
            self._batch.paging.close()
        finally:
            if self._session is not None:
                self._session.detach()
                self._session = None

    def __enter__(self) -> KvtideCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Run attention through the cache. transformers calls it as the attention function "kvtide".

    Raise ValueError for features that kvtide lacks, and if `past_key_values` is not a KvtideCache.
    """
    batch = getattr(key, "_kvtide", None)
    if not isinstance(batch, _Batch):
        raise ValueError('attn_implementation="kvtide" needs a KvtideCache: pass one as past_key_values, with use_cache=True')
    if dropout:
        raise ValueError("kvtide's attention does not support dropout: call model.eval()")
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} uses attention with {name}, which kvtide does not support")
    if batch.pending is None:
            raise WrongState("attention without keys and values: the cache must get them once for each forward and layer")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return batch.attend(batch.pending[0], query, attention_mask, scale), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor | None:
    """Return the padding mask for "kvtide", or None without padding. The attention function applies causality and windows itself.

    Raise ValueError for masks that are not causal.
    """
    if not allow_is_causal_skip:
        raise ValueError("a mask that is not causal (packed sequences, an overlay) is not supported: kvtide's attention is causal")
    # New tokens in decode are never padding.
    return None if attention_mask is None or q_length == 1 else attention_mask


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)
