"""Blocks under keys of their own, without parents: for engines whose storage interface names every block apart.

vLLM's secondary tiers and SGLang's storage backends ask for single pages by key and do not say, or not reliably, what stands before
them. Each block is then a prefix of one block (first = 0, no parent), so that any of them can be stored, found, loaded and evicted
without the others. Calls go over a daemon's session if there is one: without a daemon nothing is found and nothing is stored, and a
thread attaches again in the background.
"""

from __future__ import annotations

from .attachment import Attachment, Target
from .blocks import KeyedBlocks, hash_of
from .layout import BlockMemory

__all__ = ["Attachment", "BlockMemory", "KeyedBlocks", "Target", "hash_of"]
