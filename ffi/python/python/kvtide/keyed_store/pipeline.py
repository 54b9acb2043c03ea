"""Run many short request sequences at once over one channel.

A flow is a generator. It yields a function that starts a request and returns the ticket. It receives the completion
(`kvtide.Completion`), may yield the next request, and returns whether it succeeded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

import kvtide
from kvtide import errors

#: Starts a request and returns its ticket.
Start = Callable[[], int]
Flow = Generator[Start, kvtide.Completion, bool]

#: Seconds past a request's own deadline after which its channel counts as stuck.
GRACE_S = 5.0
#: Pause in seconds before a retry when the ring is full and none of the flows' own requests is in flight.
PAUSE_S = 0.0005


@dataclass
class Ran:
    """Result of running flows: success per flow, and the first error."""

    got: list[bool]
    error: errors.Error | None = None
    #: A request ended before the daemon confirmed it, so copies may still run for a moment (`Channel.settle`).
    unsettled: bool = False

    def note(self, error: errors.Error) -> None:
        """Record the error if it is the first."""
        self.error = self.error or error
        self.unsettled |= isinstance(error, (errors.TimedOut, errors.Canceled, errors.DaemonGone))


def run(channel: kvtide.Channel, flows: Iterable[Flow], *, window: int, deadline: float) -> Ran:
    """Run the flows, at most `window` at a time, and return when all have ended.

    `deadline` is in monotonic seconds. Each request has its own timeout, which ends at the deadline at the latest. Flows that have
    not started by the deadline fail.

    Raise `DaemonGone`, or `TimedOut` if nothing completed for `GRACE_S` past the deadline. After an error requests are still in
    flight, and the channel must not be used again.
    """
    waiting = deque(enumerate(flows))
    ran = Ran([False] * len(waiting))
    under_way: dict[int, tuple[int, Flow]] = {}
    #: Flows with a next request that found the ring full. Releases of leases also take ring entries, and send no completion.
    refused: deque[tuple[int, Flow, Start]] = deque()

    def begin(index: int, flow: Flow, start: Start) -> None:
        try:
            under_way[start()] = (index, flow)
        except errors.Again:
            refused.append((index, flow, start))
        except errors.Error as error:
            ran.note(error)
            flow.close()

    def advance(index: int, flow: Flow, answer: kvtide.Completion | None) -> None:
        """Run the flow to its next request or its end."""
        try:
            start = next(flow) if answer is None else flow.send(answer)
        except StopIteration as ended:
            ran.got[index] = bool(ended.value)
        else:
            begin(index, flow, start)

    while waiting or under_way or refused:
        if isinstance(ran.error, errors.DaemonGone) or time.monotonic() >= deadline:
            for _, flow in [*waiting, *((index, flow) for index, flow, _ in refused)]:
                flow.close()
            if count := len(waiting) + len(refused):
                ran.note(ran.error or errors.TimedOut(f"{count} blocks were not started before the deadline"))
            waiting.clear()
            refused.clear()
        for _ in range(len(refused)):
            begin(*refused.popleft())
        while waiting and not refused and len(under_way) < window:
            advance(*waiting.popleft(), None)
        answers = channel.poll()
        if not answers and not under_way and refused:
            time.sleep(PAUSE_S)
        if not answers and under_way:
            left = max(0.0, deadline - time.monotonic()) + GRACE_S
            answers = [channel.wait(next(iter(under_way)), timeout=left)]
        for answer in answers:
            if answer.error is not None:
                ran.note(answer.error)
            if answer.ticket in under_way:
                advance(*under_way.pop(answer.ticket), answer)
    return ran
