"""Contents of SGLang's page keys, by version. Read the source of a new version before you add it here."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sglang
from conftest import config, host_pool
from kvtide.keyed_store import key_hash
from kvtide.sglang import keys
from place import Place
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.radix_cache import RadixKey

TOKENS, ALL = {"tokens"}, {"tokens", "adapter", "salt"}
CONTAIN = {"0.5.18": TOKENS, "0.5.19": TOKENS, "0.5.20": ALL, "0.5.21": ALL, "0.5.22": ALL, "0.5.23": ALL}
PAGE = 4

Opened = Callable[..., Any]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
    """Return a function from a prompt to its keys, by SGLang's own code. Its extension in C++, which hashes a page after the page before
    it, is compiled at first use; this is the same in Python."""

    def chained(tokens: Sequence[int], before: bytes | None, page: int) -> list[str]:
        found, tokens = [], list(tokens)
        for start in range(0, len(tokens) - page + 1, page):
            before = hashlib.sha256((before or b"") + repr(tokens[start : start + page]).encode()).digest()
            found.append(before.hex())
        return found

    monkeypatch.setattr(utils, "get_native_hash", chained)

    def of(tokens: Sequence[int] = range(8), adapter: str | None = None, salt: str | None = None) -> tuple[str, ...]:
        key = RadixKey(array("q", tokens), extra_key=adapter, cache_salt=salt)
        return tuple(utils.get_storage_hash_str(key, page_size=PAGE))

    return of


def test_keys_contain_what_is_known_of_this_version(hashed: Callable[..., tuple[str, ...]]) -> None:
    plain = hashed()
    others = {
        "tokens": [hashed([1, *range(1, 8)])],
        "adapter": [hashed(adapter="a"), hashed(adapter="b"), hashed(adapter="a", salt="s")],
        "salt": [hashed(salt="a"), hashed(salt="b"), hashed(adapter="s", salt="a")],
    }
    assert len(plain) == 2
    every = [plain, *(prompt for prompts in others.values() for prompt in prompts)]
    # Both pages of each prompt, so also those behind a common beginning.
    assert len({key for prompt in every for key in prompt}) == 2 * len(every)
    assert set(others) == CONTAIN[sglang.__version__]


def test_hashes_of_a_prompt_outside_of_a_server_are_those_of_its_keys(hashed: Callable[..., tuple[str, ...]]) -> None:
    tokens = list(range(9))  # the last one is not in a full page
    for salt in (None, "user 1"):
        assert keys.prompt_hashes(tokens, PAGE, salt=salt) == [key_hash(key.encode()) for key in hashed(salt=salt)]


@pytest.mark.parametrize("version", [name for name, contain in CONTAIN.items() if contain != ALL])
def test_versions_whose_keys_lack_adapter_and_salt_are_refused(
    place: Place, opened: Opened, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(sglang, "__version__", version)
    with pytest.raises(ValueError, match=f"SGLang {version} leave out the LoRA adapter or the cache salt.*Use SGLang 0.5.20 or later"):
        opened(config(place), host_pool("mha", "layer_first"))


@pytest.mark.parametrize("seed", [None, lambda adapter, salt: salt, lambda adapter, salt: f"{adapter}{salt}"])
def test_keys_are_refused_by_what_they_contain_too(monkeypatch: pytest.MonkeyPatch, seed: Callable[..., Any] | None) -> None:
    # A build from source may have any version.
    monkeypatch.setattr(sglang, "__version__", "0.0.0.dev0")
    assert keys.contents().startswith("tokens, adapter, salt: ")
    if seed is None:
        monkeypatch.delattr(utils, "storage_namespace_seed")
    else:
        monkeypatch.setattr(utils, "storage_namespace_seed", seed)
    with pytest.raises(ValueError, match="leave out the LoRA adapter or the cache salt"):
        keys.contents()


def test_what_keys_contain_is_part_of_the_fingerprint(place: Place, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    of_now = opened(config(place), host_pool("mha", "layer_first"))._pools["kv"].target.space.fingerprint
    assert opened(config(place), host_pool("mha", "layer_first"))._pools["kv"].target.space.fingerprint == of_now
    usual = utils.storage_namespace_seed
    monkeypatch.setattr(utils, "storage_namespace_seed", lambda adapter, salt: f"{usual(adapter, salt)} again")
    assert opened(config(place), host_pool("mha", "layer_first"))._pools["kv"].target.space.fingerprint != of_now
