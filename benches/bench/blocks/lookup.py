"""Look up longest prefixes of 1,024 blocks from Python, as an engine would. Print the median and the 99th percentile in microseconds."""

import sys
import time

import kvtide

CHAIN = 1024
SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
MASK = (1 << 128) - 1


def chain(number: int) -> list[int]:
    return [((number << 64 | i + 1) * SPREAD & MASK) | 1 for i in range(CHAIN)]


def main() -> None:
    socket = sys.argv[1]
    block_bytes, chains, rounds = (int(word) for word in sys.argv[2:5])
    space = kvtide.Space("bench-blocks", bytes([11] * 32), 16, [kvtide.Plane(block_bytes)])
    turn, asks, times = 1, [], []
    for _ in range(rounds):
        turn = turn * 1664525 + 1013904223 & 0xFFFFFFFF
        known, hashes = (turn >> 16) % (CHAIN + 1), chain(turn % chains)
        hashes[known:] = [(value + 2) & MASK for value in hashes[known:]]
        asks.append((known, b"".join(value.to_bytes(16, "little") for value in hashes)))
    with kvtide.attach(socket, space) as session:
        channel = session.channel(0)
        # Back to back, as from Rust: `kvtide bench ring` measures the wake-up of an idle daemon.
        for known, asked in asks:
            began = time.perf_counter_ns()
            found = channel.lookup(asked)
            times.append(time.perf_counter_ns() - began)
            if found.blocks != known:
                sys.exit(f"found {found.blocks} of {known} blocks")
    times.sort()
    print(times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3)


main()
