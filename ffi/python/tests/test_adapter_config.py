"""The options of the three adapters: one base, and keys that do not change. They need no engine."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvtide.adapter_config import SOCKET, AdapterConfig
from kvtide.blocks import Level
from kvtide.sglang.config import SGLANG_KEYS, StorageConfig
from kvtide.vllm.config import ConnectorConfig
from kvtide.vllm.paged.config import PagedConfig
from kvtide.vllm.tier_config import TierConfig

ALL = (ConnectorConfig, TierConfig, StorageConfig)
COMMON = {"socket", "token_file", "space", "level", "attach_timeout_s", "weights_id"}
DOCS = Path(__file__).parents[3] / "docs/reference"


def keys(config: type[AdapterConfig]) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def documented(page: str, after: str) -> set[str]:
    """Return the keys in the first table after a heading."""
    lines = (DOCS / page).read_text().partition(after)[2].partition("| key | default | meaning |")[2].splitlines()[2:]
    found: set[str] = set()
    for line in lines:
        if not line.startswith("|"):
            break
        found |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def test_keys_stay() -> None:
    assert keys(AdapterConfig) == COMMON
    assert keys(ConnectorConfig) == COMMON | {
        "min_hit_tokens", "remote_timeout_s", "max_load_s", "lookup_timeout_s", "lookup_max_s", "load_timeout_s", "store_timeout_s", "retry_max_s",
        "store_bytes", "staging", "staging_bytes", "epoch", "private", "offload_prompt_only", "store_threshold", "max_tracker_size",
        "blocks_per_chunk",
    }  # fmt: skip
    assert keys(TierConfig) == COMMON | {"timeout_s", "store_permille", "epoch", "private"}
    assert keys(StorageConfig) == COMMON | {"timeout_s", "remote_timeout_s", "nodes"}


def test_every_key_is_documented() -> None:
    assert documented("vllm.md", "## Options") == keys(ConnectorConfig)
    assert documented("vllm.md", "## KvtideTier") == keys(TierConfig)
    assert documented("sglang.md", "## Options") == keys(StorageConfig)


@pytest.mark.parametrize("config", (*ALL, PagedConfig))
def test_empty_strings_are_errors(config: type[AdapterConfig]) -> None:
    for field in dataclasses.fields(config):
        if field.default is None or isinstance(field.default, str):
            with pytest.raises(ValueError, match=f"{field.name} is empty"):
                config.parse({field.name: ""})


@pytest.mark.parametrize("config", ALL)
def test_common_options_are_parsed_alike(config: type[AdapterConfig]) -> None:
    assert config.parse(None) == config.parse({}) == config()
    assert (config().socket, config().level) == (SOCKET, Level.PUBLISHED)
    given = {"socket": "/tmp/s", "level": "stored", "attach_timeout_s": "250ms", "token_file": None, "weights_id": "w"}
    parsed = config.parse(given)
    assert (parsed.socket, parsed.level, parsed.attach_timeout_s) == ("/tmp/s", Level.STORED, 0.25)
    assert (parsed.token_file, parsed.weights_id) == (None, "w")
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed.socket = "/tmp/other"  # type: ignore[misc]


@pytest.mark.parametrize("config", ALL)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sokcet": "/tmp/s"}, "kvtide: unknown key 'sokcet' in {where}; known are socket, token_file, space, level,"),
        ({"socket": 1}, "kvtide: socket in {where} is 1; it must be of type str"),
        ({"level": "kept"}, "kvtide: level is 'kept'; it must be one of 'published', 'stored', 'durable'"),
        ({"level": 1}, "kvtide: level in {where} is 1; it must be of type str"),
        ({"level": None}, "kvtide: level in {where} is None; it must be of type str"),
        ({"attach_timeout_s": 0}, "kvtide: attach_timeout_s is 0.0; it must be more than 0"),
        ({"attach_timeout_s": "5"}, "kvtide: attach_timeout_s in {where} is '5'; it must be a number of seconds, or a string"),
    ],
)
def test_common_errors_name_the_key_and_the_place(config: type[AdapterConfig], given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said.format(where=config.WHERE))):
        config.parse(given)


def test_limits_of_single_options() -> None:
    assert ConnectorConfig.parse({"min_hit_tokens": 0, "staging": "always"}).staging == "always"
    with pytest.raises(ValueError, match="staging is 'never'; it must be one of 'auto', 'always'"):
        ConnectorConfig.parse({"staging": "never"})
    with pytest.raises(ValueError, match="store_permille is 1001; it must be from 1 to 1000"):
        TierConfig.parse({"store_permille": 1001})
    with pytest.raises(ValueError, match="store_permille is 0; it must be more than 0"):
        TierConfig.parse({"store_permille": 0})
    assert StorageConfig.parse({"nodes": 0}).nodes == 0
    with pytest.raises(ValueError, match="nodes is -1; it must be at least 0"):
        StorageConfig.parse({"nodes": -1})


def test_keys_of_the_engine_are_skipped() -> None:
    assert StorageConfig.parse(dict.fromkeys(SGLANG_KEYS, 1)) == StorageConfig()
    with pytest.raises(ValueError, match="and the engine's own backend_name, module_path"):
        StorageConfig.parse({"wrong": 1})
    with pytest.raises(ValueError, match="unknown key 'module_path'"):
        ConnectorConfig.parse({"module_path": "kvtide.vllm"})
