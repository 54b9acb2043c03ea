"""Store blocks under independent keys, without parents, for engines with a storage interface that names each block separately.

vLLM's secondary tiers and SGLang's storage backends request single pages by key. They do not reliably report the parent of a page.
Each block is therefore stored as a prefix of one block (first = 0, no parent), so it can be stored, found, loaded and evicted
independently. Without a daemon nothing is found and nothing is stored, and a thread attaches again in the background.

>>> import kvtide, numpy
>>> from kvtide.keyed_store import CHANNELS, BlockMemory, KeyedStore, Target
>>> pages = numpy.ones((4, 4096), numpy.uint8)     # the engine's memory: 4 blocks of 4,096 bytes
>>> memory = BlockMemory(4, ((pages.ctypes.data, 4096, 4096),), keep=pages)
>>> space = kvtide.Space("keyed-example", bytes([9] * 32), page_tokens=16, planes=memory.planes())
>>> store = KeyedStore(Target(socket, space, memory, channels=CHANNELS), "example")
>>> store.store([b"a", b"b"], [0, 1])
[True, True]
>>> store.load([b"b", b"c"], [2, 3])
[True, False]
>>> store.close()
"""

from __future__ import annotations

from .memory import BlockMemory
from .reconnect import Target
from .store import CHANNELS, LOCAL, KeyedStore, key_hash

__all__ = ["CHANNELS", "LOCAL", "BlockMemory", "KeyedStore", "Target", "key_hash"]
