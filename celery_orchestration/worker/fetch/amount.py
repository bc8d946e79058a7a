"""Decides how many messages a worker fetches: as many as will start soon, so that none waits here while other workers
are idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: At most this many messages are fetched at once.
MOST = 256


def amount(
    *,
    room: int | None,
    slots: int,
    running: Sequence[float],
    waiting: Sequence[float],
    typical: float,
    read_ahead: float,
    by_halves: bool = True,
) -> int:
    """
    `room`: how many more messages Celery's prefetch count allows; None: it sets no limit.
    `running`: for each run in a slot, the seconds that it is expected to go on.
    `waiting`: for each message that was fetched and has not begun, the seconds that it is expected to take.
    `typical`: the seconds that each of the next messages is expected to take.
    `read_ahead`: messages may be fetched that start within this many seconds. Unknown durations are at least this long.
    `by_halves`: each fetch costs a request, so while no slot is free, fetch only when half of the messages are used up.

    All durations are finite.
    """
    room = MOST if room is None else min(room, MOST)
    free = slots - len(running) - len(waiting)
    seconds = _idle_seconds(running, read_ahead) + max(0, slots - len(running)) * read_ahead - sum(waiting)
    ahead = min(room, int(seconds / max(typical, 0.0001))) if typical < read_ahead else 0
    if by_halves and free <= 0 and ahead < len(waiting):
        ahead = 0
    return max(0, min(room, max(free, ahead)))


def _idle_seconds(running: Iterable[float], read_ahead: float) -> float:
    """The seconds for which the slots of these runs are free within the read-ahead time."""
    return sum(max(0.0, read_ahead - seconds) for seconds in running)
