"""An engine of the Python package: store blocks, or find them. engine.py SOCKET store|find"""

import ctypes
import os
import sys

import kvtide
from kvtide.blocks import Level, block_hashes, pieces

BLOCKS, BYTES = 64, 65536
bytes_of = [bytes([block + 1]) * BYTES for block in range(BLOCKS)]


class Memory:
    """The engine's own blocks."""

    def __init__(self) -> None:
        self.bytes = (ctypes.c_uint8 * (BLOCKS * BYTES))()
        place = (ctypes.addressof(self.bytes), False)
        self.__array_interface__ = {"version": 3, "shape": (BLOCKS, BYTES), "typestr": "|u1", "data": place, "strides": None}


kv = Memory()
space = kvtide.Space("containers", bytes(32), page_tokens=16, planes=[kvtide.Plane(BYTES)])
hashes = block_hashes(range(16 * BLOCKS + 1), page_tokens=16, salt=b"")
with kvtide.attach(sys.argv[1], space) as session, session.channel() as channel:
    session.set_blocks(BLOCKS, pieces(kv, plane=0, block_dim=0), keep=kv)
    if sys.argv[2] == "store":
        kv.bytes[:] = b"".join(bytes_of)
        channel.store(0, None, hashes, range(BLOCKS), level=Level.DURABLE)
        print(f"stored {BLOCKS} in {os.readlink('/proc/self/ns/ipc')}")
    else:
        found = channel.lookup(hashes).blocks
        assert found, "no block is found"
        with channel.lease(hashes[found - 1], found, seconds=30.0) as lease:
            channel.load(lease, 0, range(found))
        equal = sum(bytes(kv.bytes[block * BYTES :][:BYTES]) == bytes_of[block] for block in range(found))
        print(f"found {found} of {BLOCKS}, {equal} equal")
