"""Start the daemon of the installed wheel, and store and load blocks with it. Nothing but the wheel is installed."""

import ctypes
import subprocess
import sys
from pathlib import Path

import kvtide
from kvtide.blocks import Level, block_hashes, pieces
from kvtide.daemon import PrivateDaemon, find_kvtided

beside = Path(sys.executable).parent
for command in ([beside / "kvtided"], [beside / "kvtide"], [beside / "kvtide-relay"], [sys.executable, "-m", "kvtide.daemon"]):
    subprocess.run([*command, "--version"], check=True)
assert find_kvtided() == beside / "kvtided", find_kvtided()
library = ctypes.CDLL(str(Path(kvtide.__file__).with_name("lib") / "libkvtide.so"))
library.kvt_version.restype = ctypes.c_char_p
assert library.kvt_version().decode() == kvtide.__version__, library.kvt_version()


class Memory:
    """Eight blocks of 4,096 bytes."""

    def __init__(self) -> None:
        self.bytes = (ctypes.c_uint8 * (8 * 4096))()
        place = (ctypes.addressof(self.bytes), False)
        self.__array_interface__ = {"version": 3, "shape": (8, 4096), "typestr": "|u1", "data": place, "strides": None}


kv = Memory()
space = kvtide.Space("packages", bytes(32), page_tokens=16, planes=[kvtide.Plane(4096)])
with PrivateDaemon(64 << 20) as daemon, kvtide.attach(daemon.socket, space) as session, session.channel() as channel:
    session.set_blocks(8, pieces(kv, plane=0, block_dim=0), keep=kv)
    kv.bytes[: 3 * 4096] = bytes(range(256)) * 48
    hashes = block_hashes(range(50), page_tokens=16, salt=b"")
    channel.store(0, None, hashes, [0, 1, 2], level=Level.PUBLISHED)
    found = channel.lookup(hashes).blocks
    with channel.lease(hashes[found - 1], found, seconds=30.0) as lease:
        channel.load(lease, 0, [5, 6, 7])
    assert kv.bytes[5 * 4096 :] == kv.bytes[: 3 * 4096]
print(f"{found} blocks stored and loaded")
