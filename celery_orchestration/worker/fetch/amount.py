"""How many messages a worker fetches: what will start soon, so that nothing waits here while others are idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Most that are fetched at once if Celery sets no limit.
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
    `room`: what Celery's prefetch count leaves; None: it sets no limit.
    `running`: how many seconds each of the runs in the slots is expected to go on.
    `waiting`: how many seconds each message that was fetched and has not begun is expected to take.
    `typical`: how many seconds the next messages are expected to take.
    `read_ahead`: how many seconds ahead may be fetched. What is unknown counts as at least that long.
    `by_halves`: whether each fetch is a question of its own: then a few messages are not worth one.

    All durations are finite.
    """
    room = MOST if room is None else min(room, MOST)
    free = slots - len(running) - len(waiting)
    seconds = _left(running, read_ahead) + max(0, slots - len(running)) * read_ahead - sum(waiting)
    ahead = min(room, int(seconds / max(typical, 0.0001))) if typical < read_ahead else 0
    if by_halves and free <= 0 and ahead < len(waiting):
        ahead = 0  # rather when half of it is used up
    return max(0, min(room, max(free, ahead)))


def _left(running: Iterable[float], read_ahead: float) -> float:
    return sum(max(0.0, read_ahead - seconds) for seconds in running)
