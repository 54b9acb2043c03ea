"""Blocks under independent keys, without parents, for engines with a storage interface that names each block separately.

vLLM's secondary tiers and SGLang's storage backends request single pages by key. They do not reliably report the parent of a page.
Each block is therefore stored as a prefix of one block (first = 0, no parent), so it can be stored, found, loaded and evicted
independently. Without a daemon nothing is found and nothing is stored, and a thread attaches again in the background.
"""

from __future__ import annotations

from .memory import BlockMemory
from .reconnect import Connection, Target
from .store import KeyedStore, key_hash

__all__ = ["BlockMemory", "Connection", "KeyedStore", "Target", "key_hash"]
