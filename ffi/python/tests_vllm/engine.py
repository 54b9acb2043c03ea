"""Both halves of the connector on a daemon, with vLLM's block pool and without its processes."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from waiting import PATIENCE_S

from kvtide.vllm.config import ConnectorConfig
from kvtide.vllm.metadata import StepMetadata
from kvtide.vllm.scheduler import SchedulerHalf
from kvtide.vllm.worker import WorkerHalf

#: Tokens per block, heads and head dimension of the layers below.
TOKENS, HEADS, DIM = 16, 2, 8
BLOCKS = 64


def full(block: int = TOKENS) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16)


def window(block: int = TOKENS, tokens: int = 32) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16, sliding_window=tokens)


def vllm_config(folder: Path, seed: int = 0, role: str = "kv_both", engine_id: str | None = None) -> Any:
    """Return the parts of vLLM's configuration that the connector reads."""
    hf_config = SimpleNamespace(to_dict=lambda: {"layers": 2, "_name_or_path": str(folder)})
    model = SimpleNamespace(model="m", model_weights="", hf_config=hf_config, dtype="float16", quantization=None, revision=None)
    model.seed, model.max_model_len = seed, 1024
    cache = SimpleNamespace(block_size=TOKENS, enable_prefix_caching=True, prefix_match_unit=None, cache_dtype="auto")
    cache.prefix_caching_hash_algo, cache.user_specified_block_size = "sha256", True
    return SimpleNamespace(
        model_config=model,
        cache_config=cache,
        load_config=SimpleNamespace(load_format="dummy", download_dir=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1, world_size=1, rank=0),
        kv_transfer_config=SimpleNamespace(kv_role=role, engine_id=engine_id),
        speculative_config=None,
    )


def request(name: str, hashes: list[bytes], *, more: int = 1, **given: Any) -> Any:
    """Return a request with a prompt of the blocks with these hashes and `more` tokens."""
    made = SimpleNamespace(request_id=name, block_hashes=hashes, num_tokens=len(hashes) * TOKENS + more, num_computed_tokens=0)
    made.lora_request, made.skip_reading_prefix_cache, made.trace_headers = None, False, None
    made.num_prompt_tokens, made.kv_transfer_params = made.num_tokens, None
    made.all_token_ids = list(range(made.num_tokens))
    for key, value in given.items():
        setattr(made, key, value)
    return made


def hashes(text: str, count: int) -> list[bytes]:
    """Return block hashes of vLLM's size: 32 bytes."""
    return [f"{text} {index}".encode().ljust(32, b".") for index in range(count)]


class Engine:
    """One engine with one rank: scheduler half, worker half, vLLM's blocks, and layer tensors."""

    def __init__(
        self,
        folder: Path,
        socket: Path | str,
        groups: list[Any] | None = None,
        seed: int = 0,
        role: str = "kv_both",
        engine_id: str | None = None,
        **options: Any,
    ) -> None:
        """Create the engine. `options` are the connector's, `role` is vLLM's kv_role, `engine_id` is vLLM's too."""
        specs = groups or [full()]
        names = [[f"{index}.a", f"{index}.b"] for index in range(len(specs))]
        cache = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(n, s) for n, s in zip(names, specs, strict=True)],
        )
        given = {"lookup_timeout_s": 10.0, "retry_max_s": 0.5} | options
        config, engine = ConnectorConfig.parse({"socket": str(socket)} | given), vllm_config(folder, seed, role, engine_id)
        self.specs = specs
        self.tensors = {
            name: torch.zeros(BLOCKS, HEADS, spec.block_size, 2 * DIM, dtype=torch.float16)
            for group, spec in zip(names, specs, strict=True)
            for name in group
        }
        self.pool = BlockPool(BLOCKS, True, TOKENS)
        self.blocks: dict[str, tuple[list[Any], ...]] = {}
        self.worker = WorkerHalf(config, engine, cache)
        self.worker.register(self.tensors)
        self.scheduler = SchedulerHalf(config, engine, cache)
        self.scheduler.bind(SimpleNamespace(block_pool=self.pool, get_blocks=self._get_blocks))
        assert self.worker.geometry is not None
        self.scheduler.meet([pickle.loads(pickle.dumps(self.worker.geometry))])

    def _get_blocks(self, name: str) -> KVCacheBlocks:
        return KVCacheBlocks(self.blocks[name])

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()

    # ---- vLLM's part

    def allocate(self, asked: Any) -> None:
        """Allocate blocks for all full blocks of a request, in every group."""
        tokens = len(asked.block_hashes) * TOKENS
        self.blocks[asked.request_id] = tuple(self.pool.get_new_blocks(tokens // spec.block_size) for spec in self.specs)

    def match(self, asked: Any, computed: int = 0) -> tuple[int | None, bool]:
        """Look up a request's prefix and allocate blocks. Return the tokens to load, and whether they load between steps."""
        tokens, between = self.scheduler.matched(asked, computed)
        if tokens is not None:
            self.allocate(asked)
            self.scheduler.allocated(asked, self._get_blocks(asked.request_id), tokens)
            asked.num_computed_tokens = computed + tokens
        return tokens, between

    def answer(self, asked: Any, computed: int = 0) -> tuple[int | None, bool]:
        """Look up a request as vLLM does: again after each None."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.match(asked, computed))[0] is None:
            assert time.monotonic() < deadline, "the request waits without an end"
        return found

    def compute(self, asked: Any, value: float) -> None:
        """Write values that are unique to the request into its blocks, after its computed tokens."""
        for group, (blocks, spec) in enumerate(zip(self.blocks[asked.request_id], self.specs, strict=True)):
            for at, block in enumerate(blocks):
                if (at + 1) * spec.block_size <= asked.num_computed_tokens:
                    continue
                for layer, name in enumerate((f"{group}.a", f"{group}.b")):
                    shape = self.tensors[name][block.block_id].shape
                    numbers = torch.arange(shape.numel(), dtype=torch.float32).reshape(shape) / 64
                    self.tensors[name][block.block_id] = (numbers + value + at + layer / 2 + group / 4).half()

    def shown(self, asked: Any, count: int) -> list[torch.Tensor]:
        """Return copies of the request's first `count` blocks of `TOKENS` tokens, by group and layer."""
        found = []
        for group, (blocks, spec) in enumerate(zip(self.blocks[asked.request_id], self.specs, strict=True)):
            ids = [block.block_id for block in blocks[: count * TOKENS // spec.block_size]]
            found += [self.tensors[f"{group}.{layer}"][ids].clone() for layer in "ab"]
        return found

    def step(self, scheduled: dict[str, int], computing: list[tuple[Any, float]] | None = None) -> StepMetadata:
        """Run one step: loads, computation, stores. Return its jobs; `end` returns the results."""
        step = self.scheduler.step(scheduled)
        step = pickle.loads(pickle.dumps(step))
        self.worker.start_loads(step)
        for asked, value in computing or []:
            self.compute(asked, value)
        self.worker.start_stores(step)
        return step

    def end(self) -> tuple[set[str], set[str], set[int]]:
        """Wait for all running jobs and report them to the scheduler. Return loaded requests, failed requests, failed blocks."""
        self.worker._drain()
        loaded, failed = self.worker.take_loaded()
        invalid = self.worker.take_invalid_blocks()
        if (reported := self.worker.take_metadata()) is not None:
            self.scheduler.ended(pickle.loads(pickle.dumps(reported)))
        return loaded, failed, invalid

    def prefill(self, asked: Any, value: float) -> StepMetadata:
        """Compute the uncached part of a request's prompt in one step, and store it."""
        self.match(asked)
        step = self.step({asked.request_id: asked.num_tokens - asked.num_computed_tokens}, [(asked, value)])
        asked.num_computed_tokens = asked.num_tokens
        self.end()
        return step

    def await_shared(self, blocks: int) -> None:
        """Run steps until the store has `blocks` blocks of requests with share."""
        deadline = time.monotonic() + PATIENCE_S
        while self.scheduler.stats.data.get("blocks_shared", 0) < blocks:
            self.step({})
            assert time.monotonic() < deadline, self.scheduler.stats.data

    def finish(self, asked: Any) -> None:
        """Finish the request and free its blocks."""
        self.scheduler.finished(asked)
        self.give_back(asked.request_id)

    def give_back(self, *names: str) -> None:
        """Free these requests' blocks, as when vLLM preempts them."""
        for name in names:
            for blocks in self.blocks.pop(name):
                self.pool.free_blocks(reversed([block for block in blocks if not block.is_null]))

    def free(self) -> int:
        """Return the number of free blocks."""
        return int(self.pool.get_num_free_blocks())
