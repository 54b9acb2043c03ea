"""docs/reference/python.md has the docstrings of all public names."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import kvtide


def generator() -> ModuleType:
    """Return ffi/python/reference.py as a module."""
    spec = importlib.util.spec_from_file_location("reference", Path(__file__).parents[1] / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_the_docstrings_say() -> None:
    reference = generator()
    if os.environ.get("KVTIDE_BLESS") == "1":
        reference.PAGE.write_text(reference.page())
    written = reference.PAGE.read_text()
    assert written == reference.page(), "docs/reference/python.md is out of date: run `python ffi/python/reference.py`"


def test_the_page_has_every_public_name() -> None:
    page = generator().PAGE.read_text()
    absent = [name for name in kvtide.__all__ if name != "__version__" and f"`{name}`" not in page]
    assert absent == []
