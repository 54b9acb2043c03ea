"""Options and keys, and the errors for wrong ones."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvtide.adapter_config import SOCKET
from kvtide.blocks import Level
from kvtide.vllm.config import OFFLOADING_KEYS, ConnectorConfig
from kvtide.vllm.hashes import EPOCH_0, HASH_BYTES, Keys, RandomSeed, named_epoch, new_epoch, seed_of


def test_without_options_everything_has_its_default() -> None:
    assert ConnectorConfig.parse(None) == ConnectorConfig.parse({}) == ConnectorConfig()
    assert ConnectorConfig.parse({}).socket == SOCKET


def test_options_are_taken_and_numbers_become_seconds() -> None:
    config = ConnectorConfig.parse({"socket": "/tmp/s", "max_load_s": 2, "min_hit_tokens": 0, "token_file": None, "private": True})
    assert (config.socket, config.max_load_s, config.token_file, config.private) == ("/tmp/s", 2.0, None, True)
    assert isinstance(config.max_load_s, float)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sokcet": "/tmp/s"}, "'sokcet'.*known are socket, token_file"),
        ({"socket": 1}, "socket in kv_connector_extra_config is 1; it must be of type str"),
        ({"min_hit_tokens": True}, "min_hit_tokens in kv_connector_extra_config is True"),
        ({"min_hit_tokens": "64"}, "min_hit_tokens in kv_connector_extra_config is '64'; it must be of type int"),
        ({"private": 1}, "private in kv_connector_extra_config is 1; it must be of type bool"),
        ({"level": "kept"}, "level is 'kept'; it must be one of 'published', 'stored', 'durable'"),
        ({"staging": "never"}, "'auto', 'always'"),
        ({"store_bytes": 0}, "store_bytes is 0; it must be more than 0"),
        ({"offload_prompt_only": 1}, "offload_prompt_only in kv_connector_extra_config is 1; it must be of type bool"),
        ({"store_threshold": -1}, "store_threshold is -1; it must be at least 0"),
        ({"blocks_per_chunk": 0}, "blocks_per_chunk is 0; it must be more than 0"),
        ({"min_hit_tokens": -1}, "min_hit_tokens is -1; it must be at least 0"),
    ],
)
def test_what_is_not_an_option_is_refused_and_the_text_says_what_is(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConnectorConfig.parse(given)


def test_vllms_own_offloading_keys_are_options_or_their_error_says_what_to_use() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1 import offloading, simple_cpu_offload_connector
    from vllm.v1 import kv_offload

    folders = [Path(next(iter(module.__path__))) for module in (offloading, kv_offload)]
    sources = [file for folder in folders for file in folder.rglob("*.py")] + [Path(simple_cpu_offload_connector.__file__)]
    read = re.compile(r"extra_config(?:\.get\(|\[)\s*\"(\w+)\"")
    keys = {key for file in sources for key in read.findall(file.read_text())}
    keys.remove("enable_telemetry")  # an option of one secondary tier
    options = {field.name for field in dataclasses.fields(ConnectorConfig)}
    assert keys - options == set(OFFLOADING_KEYS)
    for key, instead in OFFLOADING_KEYS.items():
        with pytest.raises(ValueError, match=re.escape(f"kv_connector_extra_config are not kvtide's: {key!r}: {instead}")):
            ConnectorConfig.parse({key: None})
    with pytest.raises(ValueError, match="'spec_name': .*; 'cpu_bytes_to_use': "):
        ConnectorConfig.parse({"spec_name": "s", "level": "stored", "cpu_bytes_to_use": 1})
    assert "tiers.host.capacity" in OFFLOADING_KEYS["cpu_bytes_to_use"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"store_bytes": "256MiB"}, 256 << 20),
        ({"store_bytes": " 1_024 KiB "}, 1 << 20),
        ({"store_bytes": "4096"}, 4096),
        ({"store_bytes": 4096}, 4096),
        ({"staging_bytes": "2GiB"}, 2 << 30),
        ({"max_load_s": "5s"}, 5.0),
        ({"max_load_s": "1.5 min"}, 90.0),
        ({"lookup_timeout_s": "20ms"}, 0.02),
        ({"lookup_timeout_s": 0.02}, 0.02),
        ({"level": "durable"}, Level.DURABLE),
    ],
)
def test_sizes_and_times_are_numbers_or_have_units(given: dict[str, object], found: object) -> None:
    ((key, _),) = given.items()
    assert getattr(ConnectorConfig.parse(given), key) == found


@pytest.mark.parametrize("wrong", ["256MB", "256 mib", "-1MiB", "1.5GiB", "MiB", "", 1.5, True, None, "\u0665MiB"])
def test_a_wrong_size_is_an_error_that_says_what_is_accepted(wrong: object) -> None:
    accepted = 'it must be a whole number of bytes, or a string with a unit (B, KiB, MiB, GiB, TiB, PiB) such as "256MiB"'
    with pytest.raises(ValueError, match=re.escape(f"store_bytes in kv_connector_extra_config is {wrong!r}; {accepted}")):
        ConnectorConfig.parse({"store_bytes": wrong})


@pytest.mark.parametrize("wrong", ["5", "5 sec", "-5s", "s", "1e3s", float("nan"), float("inf"), True, None])
def test_a_wrong_time_is_an_error_that_says_what_is_accepted(wrong: object) -> None:
    accepted = 'it must be a number of seconds, or a string with a unit (ms, s, min) such as "5s"'
    with pytest.raises(ValueError, match=re.escape(f"max_load_s in kv_connector_extra_config is {wrong!r}; {accepted}")):
        ConnectorConfig.parse({"max_load_s": wrong})


def test_a_key_depends_on_the_block_the_epoch_and_the_adapter() -> None:
    block, other = b"b" * 32, b"c" * 32
    made = [
        Keys(EPOCH_0).key(block),
        Keys(EPOCH_0).key(other),
        Keys(EPOCH_0, b"a" * 32).key(block),
        Keys(named_epoch("step 1")).key(block),
        Keys(new_epoch()).key(block),
        Keys(EPOCH_0, local=True).key(block),
    ]
    assert len(set(made)) == len(made)
    assert {len(key) for key in made} == {HASH_BYTES}
    assert Keys(named_epoch("step 1")).key(block) == made[3], "the same in every process"
    assert [key[-4:] == b"\xff" * 4 for key in made] == [False] * 5 + [True], "relays know local blocks by it"


def test_keys_are_those_of_the_last_hash_in_a_block() -> None:
    keys, hashes = Keys(EPOCH_0), [bytes([i]) * 32 for i in range(7)]
    found = bytearray()
    keys.extend(found, hashes[:3], 2)
    assert bytes(found) == keys.key(hashes[1])
    keys.extend(found, hashes, 2)
    assert bytes(found) == b"".join(keys.key(hashes[i]) for i in (1, 3, 5))


def test_hashes_that_are_seeded_at_random_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert seed_of("sha256", constant_default="constant") == "constant"
    with pytest.raises(RandomSeed, match="PYTHONHASHSEED"):
        seed_of("xxhash", constant_default="constant")
    with pytest.raises(RandomSeed, match="PYTHONHASHSEED"):
        seed_of("sha256", constant_default=None)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    with pytest.raises(RandomSeed, match="'random'"):
        seed_of("sha256", constant_default="constant")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert seed_of("xxhash", constant_default=None) == "PYTHONHASHSEED=0"
