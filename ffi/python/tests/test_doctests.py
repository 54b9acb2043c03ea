"""The examples in docstrings run, with a daemon."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import kvtide
from kvtide.daemon import PrivateDaemon

#: Packages that this environment may lack: the engines, and what they bring.
ENGINES = ("vllm", "sglang", "prometheus_client", "huggingface_hub")
#: Modules that must have examples.
SHOWN = ("kvtide", "kvtide.blocks", "kvtide.daemon", "kvtide.keyed_store", "kvtide.adapter_config")
MODULES = ["kvtide", *(found.name for found in pkgutil.walk_packages(kvtide.__path__, "kvtide."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, daemon: PrivateDaemon) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the adapters' modules may need an engine. They have no examples.
        assert name.startswith(("kvtide.vllm.", "kvtide.sglang.")) and (error.name or "").partition(".")[0] in ENGINES, error
        return
    result = doctest.testmod(module, extraglobs={"socket": daemon.socket}, raise_on_error=False)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} failed; see the output"
    assert result.attempted > 0 or name not in SHOWN


def test_every_module_with_examples_is_looked_at() -> None:
    assert set(SHOWN) <= set(MODULES)
