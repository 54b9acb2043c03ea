"""`KvtidePaged`: its checks of vLLM's configuration, and attention over pages whatever becomes of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine import DIM, HEADS, TOKENS, full, hashes, request, vllm_config
from torch import Tensor
from vllm.config import KVTransferConfig, VllmConfig, set_current_vllm_config
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

from kvtide.daemon import PrivateDaemon
from kvtide.errors import NoSpace
from kvtide.torch import tier
from kvtide.vllm import plugin
from kvtide.vllm.hashes import EPOCH_0, Keys
from kvtide.vllm.paged import choice
from kvtide.vllm.paged.backend import Backend, Builder, DeviceBackend, Impl
from kvtide.vllm.paged.config import PagedConfig, check, prepare
from kvtide.vllm.paged.metadata import Begun, Filled, Omitted, OmittedReport, PagedStep
from kvtide.vllm.paged.scheduler import Scheduler
from kvtide.vllm.paged.worker import Worker

BLOCKS, LAYERS = 64, ["a", "b"]
CACHE = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(LAYERS, full())])


def configured(folder: Path) -> Any:
    """Return a configuration that `KvtidePaged` accepts."""
    made = vllm_config(folder)
    made.model_config.dtype, made.model_config.use_mla, made.model_config.is_encoder_decoder = torch.float16, False, False
    model = made.model_config
    model.get_num_layers, model.get_num_kv_heads, model.get_head_size = lambda _: 2, lambda _: HEADS, lambda: DIM
    made.scheduler_config = SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=64)
    return made


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("parallel_config", "world_size", 2, "pipeline or context parallelism; use tensor parallelism"),
        ("parallel_config", "decode_context_parallel_size", 2, "pipeline or context parallelism; use tensor parallelism"),
        ("model_config", "dtype", torch.float32, "dtype torch.float32; set --dtype"),
        ("cache_config", "cache_dtype", "fp8", "KV cache dtype fp8; remove --kv-cache-dtype"),
        ("model_config", "use_mla", True, "latent attention"),
        ("model_config", "is_encoder_decoder", True, "an encoder-decoder model"),
        ("kv_transfer_config", "kv_role", "kv_consumer", "kv_role kv_consumer; set kv_both"),
    ],
)
def test_what_is_not_supported_is_named_with_what_to_set(tmp_path: Path, part: str, name: str, value: Any, said: str) -> None:
    made = configured(tmp_path)
    setattr(getattr(made, part), name, value)
    with pytest.raises(ValueError, match="KvtidePaged does not support") as raised:
        prepare(made, PagedConfig())
    assert said in str(raised.value)


@pytest.mark.parametrize(("given", "blocks"), [(0, 4 * 64 + 1), (1024, 64 + 1), (1030, 65 + 1)])
def test_vllms_blocks_stand_for_the_capacity(daemon: PrivateDaemon, tmp_path: Path, given: int, blocks: int) -> None:
    made = configured(tmp_path)
    prepare(made, PagedConfig(socket=str(daemon.socket), capacity_tokens=given))
    assert made.cache_config.kv_cache_memory_bytes == blocks * 2 * 2


def test_blocks_are_counted_in_the_size_that_vllm_sets_later(daemon: PrivateDaemon, tmp_path: Path) -> None:
    made = configured(tmp_path)
    made.cache_config.user_specified_block_size = False  # vLLM 0.33: still the 16 of all devices
    prepare(made, PagedConfig(socket=str(daemon.socket), capacity_tokens=1030))
    assert made.cache_config.block_size == 128 == Backend.get_preferred_block_size(128)
    assert made.cache_config.kv_cache_memory_bytes == (9 + 1) * 2 * 2


def test_by_default_no_more_blocks_are_planned_than_the_daemon_has(daemon: PrivateDaemon, tmp_path: Path) -> None:
    made = configured(tmp_path)
    made.scheduler_config.max_num_seqs = 1 << 20
    prepare(made, PagedConfig(socket=str(daemon.socket)))
    blocks = made.cache_config.kv_cache_memory_bytes // 4
    assert 1000 < blocks < 1 << 17
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=CACHE.kv_cache_groups)
    worker = Worker(PagedConfig(socket=str(daemon.socket), tier0_bytes=1 << 20), configured(tmp_path), cache)
    worker.start("cpu")  # it attaches only if the daemon grants as many
    worker.shutdown()


@pytest.mark.parametrize("name", ["capacity_tokens", "guaranteed_tokens"])
def test_less_than_one_request_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 1000, less than one request of the maximum length: set it to 1024"):
        prepare(configured(tmp_path), PagedConfig.parse({name: 1000}))


def test_no_more_than_the_capacity_can_be_guaranteed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="guaranteed_tokens is 2048, more than capacity_tokens, which is 1024"):
        prepare(configured(tmp_path), PagedConfig(guaranteed_tokens=2048, capacity_tokens=1024))


@pytest.mark.parametrize(("given", "blocks"), [({}, 64), ({"capacity_tokens": 2048}, 128), ({"guaranteed_tokens": 3072}, 192)])
def test_the_worker_attaches_with_its_guarantee(daemon: PrivateDaemon, tmp_path: Path, given: dict[str, int], blocks: int) -> None:
    config = PagedConfig.parse({"socket": str(daemon.socket), "tier0_bytes": 1 << 20, **given})
    cache = KVCacheConfig(num_blocks=257, kv_cache_tensors=[], kv_cache_groups=CACHE.kv_cache_groups)
    worker = Worker(config, configured(tmp_path), cache)
    worker.start("cpu")
    assert worker._guaranteed == blocks
    held = Worker(config, configured(tmp_path), cache)
    held._guaranteed = 1 << 30
    with pytest.raises(NoSpace, match="the daemon can guarantee [0-9]+: .*set guaranteed_tokens or capacity_tokens lower"):
        held.start("cpu")
    worker.shutdown()


def test_a_tier_0_below_one_step_is_refused(tmp_path: Path) -> None:
    page = 2 * HEADS * TOKENS * DIM * 2
    least = (2 * (64 // TOKENS + 4) + 8) * page
    with pytest.raises(ValueError, match=f"needs {least}: set tier0_bytes to that or more"):
        Worker(PagedConfig(tier0_bytes=least - 1), configured(tmp_path), CACHE)
    Worker(PagedConfig(tier0_bytes=least), configured(tmp_path), CACHE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alibi_slopes": [1.0]}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
        ({"sinks": torch.zeros(2)}, "attention sinks"),
        ({"attn_type": "encoder"}, "encoder attention"),
        ({"kv_sharing_target_layer_name": "a"}, "layers that share KV"),
    ],
)
def test_a_model_that_needs_another_kernel_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="KvtidePaged does not support this model") as raised:
        Impl(4, DIM, 1.0, 2, **given)
    assert said in str(raised.value)


def test_only_a_configuration_that_selects_it_gets_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.register()
    prepared: list[Any] = []
    monkeypatch.setattr("kvtide.vllm.paged.config.prepare", lambda *given: prepared.append(given))
    for name, expected in (("KvtideConnector", CPUAttentionBackend), ("KvtidePaged", Backend)):
        made = VllmConfig(kv_transfer_config=KVTransferConfig(kv_connector=name, kv_role="kv_both"))
        with set_current_vllm_config(made):
            assert choice.Backend is expected, name
    assert choice.Backend is CPUAttentionBackend, "no configuration"
    assert len(prepared) == 1
    with pytest.raises(AttributeError):
        _ = choice.Other


def test_a_block_of_a_layer_has_two_bytes_in_vllm_and_keeps_its_geometry() -> None:
    spec = Backend.customize_spec(full())
    assert spec.page_size_bytes == 2
    assert (spec.num_kv_heads, spec.head_size, spec.block_size, spec.dtype) == (HEADS, DIM, TOKENS, torch.float16)


@dataclass
class Rows:
    """Rows of a step, as the backend's metadata has them."""

    lengths: list[int]
    new: list[int]
    blocks: Tensor


class Driven:
    """A worker that a test drives as vLLM does. Each request has vLLM's block ids from its number × 16 on."""

    def __init__(self, folder: Path, socket: Path, device: str = "cpu", dim: int = DIM, **options: Any) -> None:
        spec = replace(full(), head_size=dim, head_size_v=dim)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(LAYERS, spec)])
        config = PagedConfig.parse({"socket": str(socket), "tier0_bytes": 1 << 20, **options})
        self.dim, self.worker = dim, Worker(config, configured(folder), cache)
        self.worker.start(device)

    def change(self, **what: Any) -> None:
        self.worker.change(PagedStep(**what))

    def outlive(self, daemon: PrivateDaemon) -> None:
        """Kill the daemon, and wait until the worker's session knows."""
        daemon.kill()
        deadline = time.monotonic() + 30
        while self.worker._session is not None and self.worker._session.alive:
            assert time.monotonic() < deadline, "the session has not ended"

    def begin(self, number: int, prefix: bytes = b"", exact: int = 0) -> None:
        self.change(begun=[Begun(str(number), 16 * number, prefix, exact)])

    def step(self, *rows: tuple[int, int, int], before_layer: Any = None) -> list[Tensor]:
        """Compute a step over (number, computed, new), and return how far each row's outputs are from those of all its keys."""
        made = Rows([c + n for _, c, n in rows], [n for _, _, n in rows], torch.stack([16 * r[0] + torch.arange(16) for r in rows]))
        far = [torch.zeros(1) for _ in rows]
        for layer in LAYERS:
            if before_layer is not None:
                before_layer(layer)
            new = [[self.numbers((number, layer, kind), computed, count) for kind in "qkv"] for number, computed, count in rows]
            q, k, v = (torch.cat([row[i] for row in new]) for i in range(3))
            out = torch.empty_like(q)
            self.worker.attend(layer, made, q, k, v, 0.3, out)
            start = 0
            for i, (number, computed, count) in enumerate(rows):
                k, v = (self.numbers((number, layer, kind), 0, computed + count) for kind in "kv")
                right = _attention(new[i][0], k, v, 0.3)
                far[i] = torch.maximum(far[i], (out[start : start + count].float() - right).abs().max())
                start += count
        return far

    def numbers(self, seed: object, first: int, count: int) -> Tensor:
        """Return rows [count, heads, dim] of a sequence's numbers, the same for each position whatever the step."""
        made = torch.Generator().manual_seed(hash(seed) % (1 << 31))
        return torch.randn(512, HEADS, self.dim, generator=made).half()[first : first + count]


def _attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return causal attention in f32; the queries are the last tokens."""
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    at = torch.arange(key.shape[0])
    scores = scores.masked_fill(at[None, None, :] > (at[-query.shape[0] :])[None, :, None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.float())


NEAR = 2e-3


@pytest.fixture
def driven(daemon: PrivateDaemon, tmp_path: Path) -> Iterator[Driven]:
    made = Driven(tmp_path, daemon.socket)
    yield made
    made.worker.shutdown()


def test_rows_attend_to_all_their_tokens_over_steps(driven: Driven) -> None:
    driven.begin(1)
    driven.begin(2)
    assert max(driven.step((1, 0, 40), (2, 0, 7))) < NEAR
    assert max(driven.step((2, 7, 1), (1, 40, 24))) < NEAR, "in another order of rows"
    driven.change(gone=["1"])
    driven.begin(1)
    assert max(driven.step((1, 0, 3), (2, 8, 1))) < NEAR, "vLLM gave the block id to another request"
    assert driven.worker.take_lost() == set()


def test_a_row_that_vllm_sets_back_is_computed_again(driven: Driven) -> None:
    driven.begin(1)
    driven.step((1, 0, 40))
    assert max(driven.step((1, 16, 30))) < NEAR
    assert max(driven.step((1, 0, 50))) < NEAR
    assert driven.worker.take_lost() == set()


def test_published_blocks_are_attached_and_a_missing_prefix_is_reported(driven: Driven) -> None:
    keys = b"".join(Keys(EPOCH_0).key(one) for one in hashes("p", 3))
    driven.begin(1)
    driven.step((1, 0, 40))
    # Three blocks are reported as filled, and two are complete.
    driven.change(filled=[Filled("1", 0, None, keys)], gone=["1"])
    driven.begin(1, keys[: 2 * 16])
    assert max(driven.step((1, 32, 8))) < NEAR
    driven.change(gone=["1"])
    driven.begin(1, keys)
    driven.step((1, 48, 1))
    assert driven.worker.take_lost() == {16, 17, 18}, "only two of three blocks were found"
    assert max(driven.step((1, 0, 49))) < NEAR, "vLLM computes it again"
    assert driven.worker.take_lost() == set()


def test_a_daemon_that_dies_in_a_step_costs_no_wrong_output(tmp_path: Path) -> None:
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
        driven = Driven(tmp_path, daemon.socket, wait_s=0.05, attach_timeout_s=0.2)
        driven.begin(1)
        driven.step((1, 0, 20))
        driven.begin(2)
        found = driven.step((1, 20, 4), (2, 0, 12), before_layer=lambda layer: layer == "b" and driven.outlive(daemon))
        assert found[1] < NEAR, "all keys of its first step are at hand"
        assert driven.worker.take_lost() == {16, 17}, "the other row's output must be discarded"
        driven.change()  # no daemon within `wait_s`
        driven.step((1, 0, 24), (2, 12, 1))
        assert driven.worker.take_lost() == {32}, "its pages are gone too, and its output is now wrong"
        driven.worker.shutdown()


def test_a_daemon_that_comes_back_with_less_room_does_not_end_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_small() -> None:
        raise ValueError("kvtide: the daemon has room for 16 tokens of this model")

    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
        driven = Driven(tmp_path, daemon.socket, wait_s=0.05)
        driven.begin(1)
        driven.step((1, 0, 20))
        driven.outlive(daemon)
        monkeypatch.setattr(driven.worker, "_attach", too_small)
        driven.change()
        driven.step((1, 20, 1))
        assert driven.worker.take_lost() == {16, 17}
        driven.worker.shutdown()


def test_the_scheduler_finds_what_the_worker_published(driven: Driven, daemon: PrivateDaemon, tmp_path: Path) -> None:
    scheduler = Scheduler(PagedConfig(socket=str(daemon.socket), lookup_timeout_s=30.0), configured(tmp_path), CACHE)
    asked = request("1", hashes("s", 3), more=4)
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())

    def build(**given: Any) -> PagedStep:
        output = SimpleNamespace(preempted_req_ids=None, scheduled_cached_reqs=cached, scheduled_new_reqs=[], has_sync_kv_loads=False)
        output.__dict__.update(given)
        step = scheduler.build(output)
        assert output.has_sync_kv_loads
        return step

    def new(computed: int) -> list[Any]:
        return [SimpleNamespace(req_id="1", block_ids=([16],), num_computed_tokens=computed)]

    assert scheduler.matched(asked) == (0, False)
    scheduler.allocated(asked, 0)
    driven.worker.change(build(scheduled_new_reqs=new(0)))
    driven.step((1, 0, 52))
    # Preempted: everything is published, and the request begins again with it.
    driven.worker.change(build(preempted_req_ids={"1"}))
    assert scheduler.matched(asked) == (48, False)
    scheduler.allocated(asked, 48)
    resumed = SimpleNamespace(req_ids=["1"], new_block_ids=[([16],)], num_computed_tokens=[48], resumed_req_ids={"1"})
    driven.worker.change(build(scheduled_cached_reqs=resumed))
    assert max(driven.step((1, 48, 4))) < NEAR
    # The weights may have changed: nothing of this request is published any more, and nothing is found.
    assert scheduler.reset()
    asked.num_computed_tokens = 52
    asked.block_hashes = hashes("s", 4)
    later = SimpleNamespace(req_ids=["1"], new_block_ids=[None], num_computed_tokens=[64], resumed_req_ids=set())
    assert build(scheduled_cached_reqs=later).filled == []
    other = request("2", hashes("s", 3), more=4)
    assert scheduler.matched(other) == (0, False)
    scheduler.finished(other)
    scheduler.finished(asked)
    assert scheduler.pending()
    assert build().gone == ["1"]
    scheduler.shutdown()


def test_decoding_under_approx_reads_less_and_reports_it(daemon: PrivateDaemon, tmp_path: Path) -> None:
    driven = Driven(tmp_path, daemon.socket, contract="approx:0.25")
    driven.worker.shutdown()
    driven.worker._frames = 12 * len(LAYERS)  # two blocks less than the requests have, so that some pages leave tier 0
    driven.worker.start("cpu")
    driven.begin(1, exact=8 * TOKENS)
    driven.begin(2, exact=8 * TOKENS)
    for number in (1, 2):
        for first in range(0, 8 * TOKENS, 2 * TOKENS):
            (far,) = driven.step((number, first, 2 * TOKENS))
            assert float(far) < 1e-2, "prompts are computed from all pages"
    assert driven.worker.take_omitted() is None
    for token in range(3):
        driven.step((1, 8 * TOKENS + token, 1), (2, 8 * TOKENS + token, 1))
    report = driven.worker.take_omitted()
    assert report is not None and set(report.requests) == {"1", "2"}
    total = Omitted()
    for omitted in report.requests.values():
        total.add(omitted)
    assert total.steps == 6 and total.needed == 6 * 9 * len(LAYERS)
    assert 0 < total.omitted < total.needed and 0 < total.share < total.steps
    assert driven.worker.take_omitted() is None
    # vLLM goes back to the prompt: it is computed from all pages again.
    (far,) = driven.step((1, 4 * TOKENS, 2 * TOKENS))
    assert float(far) < 1e-2
    driven.worker.shutdown()


def test_reports_of_ranks_are_added() -> None:
    one = OmittedReport({"a": Omitted(1, 10, 4, 0.5)})
    both = one.aggregate(OmittedReport({"a": Omitted(1, 10, 2, 0.25), "b": Omitted(2, 3, 1, 0.1)}))
    assert both.requests == {"a": Omitted(2, 20, 6, 0.75), "b": Omitted(2, 3, 1, 0.1)}


@pytest.mark.parametrize("contract", ["approx", "approx:0", "approx:1.5", "approx:x", "approx: 0.25", "approx:0.2_5", "bounded:0.1", ""])
def test_a_wrong_contract_is_refused(contract: str) -> None:
    with pytest.raises(ValueError, match="contract is"):
        PagedConfig.parse({"contract": contract})


def test_after_a_preemption_ranks_do_not_publish_the_last_step(daemon: PrivateDaemon, tmp_path: Path) -> None:
    """One rank may have lost the request in it, so that the keys of the others are wrong."""
    made = configured(tmp_path)
    made.parallel_config.world_size = made.parallel_config.tensor_parallel_size = 2
    scheduler = Scheduler(PagedConfig(socket=str(daemon.socket), lookup_timeout_s=30.0), made, CACHE)
    asked = request("1", hashes("ranks", 3), more=4)
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    later = SimpleNamespace(req_ids=["1"], new_block_ids=[None], num_computed_tokens=[32], resumed_req_ids=set())
    fresh = [SimpleNamespace(req_id="1", block_ids=([16],), num_computed_tokens=0)]
    assert scheduler.matched(asked) == (0, False)
    scheduler.allocated(asked, 0)
    published = []
    for preempted, new, old in ((None, fresh, cached), (None, [], later), ({"1"}, [], cached)):
        output = SimpleNamespace(preempted_req_ids=preempted, scheduled_cached_reqs=old, scheduled_new_reqs=new, has_sync_kv_loads=False)
        published.append([len(filled.hashes) // 16 for filled in scheduler.build(output).filled])
    # The second step computes from token 32 on: its own block is not published.
    assert published == [[], [2], []]
    scheduler.shutdown()


def test_a_model_of_windows_alone_is_refused(tmp_path: Path) -> None:
    window = SlidingWindowSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float16, sliding_window=64)
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(LAYERS, window)])
    with pytest.raises(ValueError, match="does not support SlidingWindowSpec"):
        Worker(PagedConfig(), configured(tmp_path), cache)


def test_room_for_vllms_null_block_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.vllm.paged.config._room", lambda *_: 100)
    made = configured(tmp_path)
    prepare(made, PagedConfig())
    assert made.cache_config.kv_cache_memory_bytes // 4 == 100, "vLLM has as many blocks as the daemon, its null block among them"


def test_under_approx_blocks_of_the_answer_are_not_published(daemon: PrivateDaemon, tmp_path: Path) -> None:
    published = {}
    for contract in ("exact", "approx:0.5"):
        config = PagedConfig(socket=str(daemon.socket), lookup_timeout_s=30.0, contract=contract)
        scheduler = Scheduler(config, configured(tmp_path), CACHE)
        asked = request("1", hashes(f"answer {contract}", 2))
        cached = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
        fresh = [SimpleNamespace(req_id="1", block_ids=([16],), num_computed_tokens=0)]
        assert scheduler.matched(asked) == (0, False)
        scheduler.allocated(asked, 0)
        output = SimpleNamespace(
            preempted_req_ids=None, scheduled_cached_reqs=cached, scheduled_new_reqs=fresh, has_sync_kv_loads=False
        )
        scheduler.build(output)
        # Two blocks of the answer are complete when it ends.
        asked.block_hashes = hashes(f"answer {contract}", 4)
        asked.num_tokens = asked.num_computed_tokens = 4 * TOKENS
        assert scheduler.finished(asked) is None
        output.scheduled_new_reqs = []
        published[contract] = sum(len(filled.hashes) // 16 for filled in scheduler.build(output).filled)
        scheduler.shutdown()
    assert published == {"exact": 4, "approx:0.5": 2}


# ---- on a GPU


class Gpu:
    """vLLM's platform, as far as the connector asks it."""

    def is_cpu(self) -> bool:
        return False

    def is_cuda(self) -> bool:
        return True


def on_gpu(folder: Path, backend: str | None = "CUSTOM", asynchronous: bool = False) -> Any:
    made = configured(folder)
    made.attention_config = SimpleNamespace(backend=None if backend is None else SimpleNamespace(name=backend))
    made.scheduler_config.async_scheduling = asynchronous
    return made


@pytest.mark.parametrize(
    ("backend", "asynchronous", "options", "said"),
    [
        (None, False, {}, "set --attention-backend CUSTOM"),
        ("FLASH_ATTN", False, {}, "set --attention-backend CUSTOM"),
        ("CUSTOM", True, {}, "set --no-async-scheduling"),
        ("CUSTOM", False, {"contract": "approx:0.5"}, "contract approx:0.5 on a GPU; set exact"),
        ("CUSTOM", False, {"tier0_bytes": 0}, "a GPU without tier0_bytes"),
    ],
)
def test_what_a_gpu_needs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str | None, asynchronous: bool, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("vllm.platforms.current_platform", Gpu())
    with pytest.raises(ValueError, match="KvtidePaged does not support") as raised:
        check(on_gpu(tmp_path, backend, asynchronous), PagedConfig.parse({"tier0_bytes": 1 << 20} | options))
    assert str(raised.value).count(";") == 1 and said in str(raised.value)
    check(on_gpu(tmp_path), PagedConfig(tier0_bytes=1 << 20))


def test_a_gpus_backend_is_kvtides_if_it_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.register()
    monkeypatch.setattr("kvtide.vllm.paged.config.prepare", lambda *_: None)
    with set_current_vllm_config(VllmConfig(kv_transfer_config=KVTransferConfig(kv_connector="KvtidePaged", kv_role="kv_both"))):
        found = AttentionBackendEnum.CUSTOM.get_class()
    assert found is DeviceBackend and found.get_name() == "CUSTOM"
    assert found.get_builder_cls().get_cudagraph_support(None, None).name == "NEVER"
    with set_current_vllm_config(VllmConfig()), pytest.raises(ImportError, match="select it with --kv-transfer-config"):
        AttentionBackendEnum.CUSTOM.get_class()
    # Another plugin's backend stays.
    monkeypatch.setattr(AttentionBackendEnum.CUSTOM.__class__, "is_overridden", lambda _: True)
    register_backend(AttentionBackendEnum.CUSTOM, "other.Backend")
    plugin.register()
    assert AttentionBackendEnum.CUSTOM.get_path() == "other.Backend"
    AttentionBackendEnum.CUSTOM.clear_override()


def test_lengths_are_not_read_from_a_gpu() -> None:
    lengths = SimpleNamespace(device=torch.device("cuda"))
    common = SimpleNamespace(query_start_loc_cpu=torch.tensor([0, 1, 4]), num_reqs=2, seq_lens=lengths, block_table_tensor=torch.zeros(3, 4))
    common.seq_lens_cpu_upper_bound = torch.tensor([7, 9, 0])
    rows = Builder.build(SimpleNamespace(), 0, common)  # type: ignore[arg-type]
    assert (rows.lengths, rows.new, rows.blocks.shape) == ([7, 9], [1, 3], (2, 4))


@pytest.mark.skipif("KVTIDE_LIBCUDA" not in os.environ, reason="KVTIDE_LIBCUDA names no stand-in driver")
@pytest.mark.parametrize("pages", [24, 200])
def test_steps_on_a_device(daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """The worker on the stand-in driver: chunks, decoding, preemption; with all pages in tier 0, and with pages that come in passes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "tests"))
    from standin import Device, StandIn, Tier  # noqa: PLC0415

    device = Device(StandIn())
    monkeypatch.setattr(tier, "of", lambda *given, **options: Tier(*given, device=device, **options))
    monkeypatch.setattr("kvtide.vllm.paged.worker.on_gpu", lambda: True)
    driven = Driven(tmp_path, daemon.socket, "cuda:0", 32, tier0_bytes=pages * 2 * HEADS * TOKENS * 32 * 2)
    keys = b"".join(Keys(EPOCH_0).key(one) for one in hashes("device", 3))
    driven.begin(1)
    driven.begin(2)
    assert max(driven.step((1, 0, 48), (2, 0, 7))) < NEAR
    assert max(driven.step((2, 7, 1), (1, 48, 60))) < NEAR, "in another order of rows"
    assert max(driven.step((1, 108, 60))) < NEAR
    assert max(driven.step((1, 168, 60))) < NEAR
    for token in range(3):
        assert max(driven.step((1, 228 + token, 1), (2, 8 + token, 1))) < NEAR
    driven.change(filled=[Filled("1", 0, None, keys)], gone=["1"])
    driven.begin(1, keys)
    assert max(driven.step((2, 11, 1), (1, 48, 10))) < NEAR, "resumed by its published prefix"
    assert max(driven.step((1, 16, 30))) < NEAR, "vLLM set it back"
    assert driven.worker.take_lost() == set()
    paging = driven.worker._paging
    assert paging is not None and (paging.totals.planes_in_passes > 0) == (pages == 24)
    driven.worker.shutdown()
