"""A tier's transfers: a thread for loads and one for stores take jobs in turn, and the scheduler collects what has ended."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

#: Moves a job's blocks: of each whether it went well.
Move = Callable[[Sequence[bytes], Sequence[int]], list[bool]]


@dataclass(frozen=True)
class Job:
    """A transfer that vLLM has asked for: these keys' blocks, to or from these rows of its region."""

    number: int
    keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    #: What stands before the keys.
    epoch: bytes


@dataclass(frozen=True)
class Ended:
    """A job that nothing of is under way any more."""

    job: Job
    load: bool
    went: list[bool]
    seconds: float
    #: A store that was not begun.
    dropped: bool = False


class Jobs:
    """Bounded: a store that would make it more than `rows_max` waiting rows ends at once, having moved nothing, unless it is the only one. Loads are bounded by vLLM's own region."""

    def __init__(self, load: Move, store: Move, rows_max: int) -> None:
        self._rows_max = rows_max
        self._changed = threading.Condition()
        self._under_way = 0
        self._storing_rows = 0
        self._ended: list[Ended] = []
        self._queues: tuple[queue.SimpleQueue[Job | None], queue.SimpleQueue[Job | None]]
        self._queues = (queue.SimpleQueue(), queue.SimpleQueue())
        self._threads = [
            threading.Thread(target=self._work, args=(jobs, move, is_load), name=f"kvtide-tier-{name}", daemon=True)
            for jobs, move, is_load, name in zip(self._queues, (load, store), (True, False), ("load", "store"), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def load(self, job: Job) -> None:
        """Takes a load; it ends later."""
        with self._changed:
            self._under_way += 1
        self._queues[0].put(job)

    def store(self, job: Job) -> None:
        """Takes a store; it ends later, or now, dropped, if too much is waiting."""
        with self._changed:
            full = self._storing_rows > 0 and self._storing_rows + len(job.rows) > self._rows_max
            if not full:
                self._under_way += 1
                self._storing_rows += len(job.rows)
        if full:
            self.drop(job)
        else:
            self._queues[1].put(job)

    def drop(self, job: Job) -> None:
        """Ends a store that is not begun."""
        with self._changed:
            self._ended.append(Ended(job, False, [False] * len(job.keys), 0.0, dropped=True))

    def ended(self) -> list[Ended]:
        """What has ended since the last call."""
        with self._changed:
            ended, self._ended = self._ended, []
        return ended

    def drain(self) -> None:
        """Waits until nothing is under way. Each job has a deadline, and no more can come meanwhile from the scheduler's thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way == 0)

    def close(self) -> None:
        """Ends the threads, after what they have."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, jobs: queue.SimpleQueue[Job | None], move: Move, is_load: bool) -> None:
        while (job := jobs.get()) is not None:
            began = time.monotonic()
            try:
                went = move([job.epoch + key for key in job.keys], job.rows)
            except Exception:  # a bug of ours must not leave vLLM's rows pinned for ever
                logger.exception("kvtide: a transfer of %d chunks failed", len(job.keys))
                went = [False] * len(job.keys)
            with self._changed:
                self._ended.append(Ended(job, is_load, went, time.monotonic() - began))
                self._under_way -= 1
                self._storing_rows -= 0 if is_load else len(job.rows)
                self._changed.notify_all()
