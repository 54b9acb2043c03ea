"""Many short conversations with the daemon at once, over one channel: each asks, gets its answer, asks again.

A flow is a generator. It yields what starts a request (a function that returns the ticket), is sent the answer, and returns whether it
got what it wanted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

import kvtide
from kvtide import errors

#: What starts a request.
Start = Callable[[], int]
Flow = Generator[Start, kvtide.Done, bool]

#: What a request's own deadline may be overdrawn by before its channel is taken to be stuck. Seconds.
GRACE_S = 5.0
#: The pause before a request is tried again that a ring full of others' ends had no room for. Seconds.
PAUSE_S = 0.0005


@dataclass
class Ran:
    """What came of flows: of each whether it got what it wanted, and the first error among those that did not."""

    got: list[bool]
    error: errors.Error | None = None
    #: One ended without the daemon's word, so that copies may go on for a moment (`Channel.settle_blocks`).
    unsettled: bool = False

    def note(self, error: errors.Error) -> None:
        """Remembers the error if it is the first."""
        self.error = self.error or error
        self.unsettled |= isinstance(error, (errors.TimedOut, errors.Canceled, errors.DaemonGone))


def run(channel: kvtide.Channel, flows: Iterable[Flow], *, window: int, deadline: float) -> Ran:
    """Runs the flows, `window` at a time, and returns when none is under way.

    A flow's requests have deadlines of their own, by `deadline` (monotonic seconds) at the latest; what has not begun by then fails.

    An error of kvtide's means that requests are still under way, and that the channel is not fit for use any more: `DaemonGone`, or
    `TimedOut` if it answered nothing for `GRACE_S` beyond the deadline.
    """
    waiting = deque(enumerate(flows))
    ran = Ran([False] * len(waiting))
    under_way: dict[int, tuple[int, Flow]] = {}
    #: Flows whose next request the ring had no room for: ends of leases take room too, and tell nobody when they have left.
    refused: deque[tuple[int, Flow, Start]] = deque()

    def begin(index: int, flow: Flow, start: Start) -> None:
        try:
            under_way[start()] = (index, flow)
        except errors.Again:
            refused.append((index, flow, start))
        except errors.Error as error:
            ran.note(error)
            flow.close()

    def advance(index: int, flow: Flow, answer: kvtide.Done | None) -> None:
        """To the flow's next request, or its end."""
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
                ran.note(ran.error or errors.TimedOut(f"{count} blocks had not got their turn when their time was up"))
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
