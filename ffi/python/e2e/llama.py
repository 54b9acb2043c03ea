"""`python -m e2e.llama`: test examples/llama.cpp with a small model. Conversations continue from their saved state, without
prefill."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .daemons import Daemon
from .trace import BEGIN, BYTES

#: Equals Snapshots.STEP_TOKENS.
STEP = 64
#: Tokens of a user's turn, and of an answer.
USER_TOKENS = 100
ANSWER_TOKENS = 20
RUN_S = 120.0


class Talk:
    """A conversation: its tokens, and one process of the example per turn."""

    def __init__(self, program: Path, model: Path, seed: str) -> None:
        self._program, self._model, self._numbers = program, model, random.Random(seed)
        self.tokens = [BEGIN]

    def turn(self, socket: Path | None) -> dict[str, Any]:
        """Run a turn: random user tokens, and an answer from a process of its own. Return the process's report."""
        said = self.tokens + self._numbers.choices(range(BYTES), k=USER_TOKENS)
        alone, answered = answer(self._program, self._model, None, said), answer(self._program, self._model, socket, said)
        check(answered["answer"] == alone["answer"], f"the answer is {answered['answer']}; without kvtide it is {alone['answer']}")
        check(alone["restored"] == 0 and alone["prefilled"] == len(said), f"without kvtide: {alone}")
        check(answered["restored"] + answered["prefilled"] == len(said), f"restored plus prefilled is not {len(said)} tokens: {answered}")
        self.tokens = said + answered["answer"]
        return answered

    def left(self) -> int:
        """Return the tokens covered by the state that the last turn saved."""
        return len(self.tokens) // STEP * STEP


def answer(program: Path, model: Path, socket: Path | None, tokens: Sequence[int]) -> dict[str, Any]:
    """Run one process of the example and return its report."""
    command = [str(program), str(model), "-" if socket is None else str(socket), str(ANSWER_TOKENS)]
    done = subprocess.run(command, input=" ".join(map(str, tokens)), capture_output=True, text=True, timeout=RUN_S)
    check(done.returncode == 0, f"{command} exited with {done.returncode}: {done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def check(true: bool, what: str) -> None:
    """Raise AssertionError with `what` unless `true`."""
    if not true:
        raise AssertionError(what)


def main() -> int:
    """Run the test. Return 0; a failure raises."""
    parser = argparse.ArgumentParser(prog="python -m e2e.llama", description=__doc__)
    for name in ("--kvtided", "--program", "--model"):
        parser.add_argument(name, type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtide-llama-") as directory:
        daemon = Daemon(args.kvtided, Path(directory) / "daemon", host_mib=64, nvme_mib=256)
        with daemon:
            one, other = (Talk(args.program, args.model, seed) for seed in ("one", "other"))
            for talk in (one, other):
                first = talk.turn(daemon.socket)
                check(first["restored"] == 0 and first["kept"] == talk.left(), f"a first turn: {first}")
            # Second turns: the state saved by the first turn is restored, and only newer tokens are decoded.
            for talk in (one, other):
                left = talk.left()
                second = talk.turn(daemon.socket)
                check(second["restored"] == left and second["prefilled"] < USER_TOKENS + STEP + ANSWER_TOKENS, f"a turn after {left} tokens: {second}")
                print(f"switched in at {left} tokens: {second['restored']} restored in {second['restore_ms']:.1f} ms, {second['prefilled']} decoded")
            pages = daemon.metrics()["kvtide_cached_blocks"]
            daemon.until("all states stored", lambda m: m.get("kvtide_blocks_stored_total", 0) >= pages)
            daemon.stop()
            daemon.start()
            left = one.left()
            third = one.turn(daemon.socket)
            check(third["restored"] == left, f"a turn after the daemon's restart, with {left} tokens stored: {third}")
            check(daemon.labelled("kvtide_disk_bytes_total", 'operation="read"') > 0, "nothing was read from NVMe")
            print(f"after a restart of the daemon: {third['restored']} restored in {third['restore_ms']:.1f} ms, {third['prefilled']} decoded")
    print("llama.cpp: 5 turns passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
