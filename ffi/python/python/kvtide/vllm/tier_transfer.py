"""Transfers of a tier: one thread for loads and one for stores. The scheduler collects the jobs that ended."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

#: Moves a job's blocks; returns success per block.
Move = Callable[[Sequence[bytes], Sequence[int]], list[bool]]


@dataclass(frozen=True)
class Job:
    """A transfer requested by vLLM: blocks under `keys`, to or from `rows` of its region."""

    number: int
    keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    #: Prefix of the keys.
    epoch: bytes


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    job: Job
    load: bool
    went: list[bool]
    seconds: float
    #: The job is a store that was not started.
    dropped: bool = False


class Jobs:
    """Queues of loads and stores. At most `rows_max` rows wait to be stored: a store beyond that is dropped, unless no other one
    waits. vLLM's own region bounds the loads.
    """

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
        """Queue a load."""
        with self._changed:
            self._under_way += 1
        self._queues[0].put(job)

    def store(self, job: Job) -> None:
        """Queue a store, or drop it if too many rows are waiting."""
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
        """End a store without starting it."""
        with self._changed:
            self._ended.append(Ended(job, False, [False] * len(job.keys), 0.0, dropped=True))

    def ended(self) -> list[Ended]:
        """Return the jobs that ended since the last call."""
        with self._changed:
            ended, self._ended = self._ended, []
        return ended

    def drain(self) -> None:
        """Wait until no job is queued or running. Each job has a deadline, and vLLM adds none meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way == 0)

    def close(self) -> None:
        """End the threads after the queued jobs."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, jobs: queue.SimpleQueue[Job | None], move: Move, is_load: bool) -> None:
        while (job := jobs.get()) is not None:
            began = time.monotonic()
            try:
                went = move([job.epoch + key for key in job.keys], job.rows)
            except Exception:  # a bug must not leave vLLM's rows pinned
                logger.exception("kvtide: transfer of %d chunks failed; they count as not moved", len(job.keys))
                went = [False] * len(job.keys)
            with self._changed:
                self._ended.append(Ended(job, is_load, went, time.monotonic() - began))
                self._under_way -= 1
                self._storing_rows -= 0 if is_load else len(job.rows)
                self._changed.notify_all()
