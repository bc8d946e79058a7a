"""Decides how many workers a pool needs. Pure: it takes figures, and returns a number with the reason for it.

The measure is how long runs that *may start* have to wait, not the length of a queue::

    wanted slots = slots at work + ready runs * typical duration / target_wait_seconds

One run never needs more than one slot, the runs of a job never more than its ``max_running`` allows, and all runs never
more than ``orchestration_max_running`` does. An unknown duration counts as :data:`UNKNOWN_SECONDS`: that is scaling by
queue depth. With ``scale_up_at`` only the depth counts.

Scaling up happens at once, to the number that the figures ask for. Scaling down happens one worker at a time, and only
after the last worker was not needed for ``quiet_seconds``. So a steady load does not start and stop workers in turn,
even if it comes in bursts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from celery_orchestration.job.pool import Pool

#: The assumed duration of a run while that of its job is unknown.
UNKNOWN_SECONDS = 1.0
#: Seconds between two steps down, and between two steps up that only follow from the wait of the oldest run.
STEP_DOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ready:
    """Runs of one job that may start as soon as a slot is free."""

    job: str
    runs: int
    #: Typical duration of a run. None: unknown yet.
    seconds: float | None = None
    #: How many more of them may run at once (``max_running``). None: any number.
    room: int | None = None

    def slots(self, target_seconds: float) -> float:
        """The slots that start all of them within the target."""
        asked = self.runs * (UNKNOWN_SECONDS if self.seconds is None else self.seconds) / target_seconds
        most = self.runs if self.room is None else min(self.runs, self.room)
        return max(0.0, min(asked, most))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one pool at one moment. All times are seconds on the same clock."""

    pool: Pool
    now: float
    #: The number of workers by the last decision. None: there was none yet.
    wanted: int | None = None
    ready: Sequence[Ready] = ()
    #: How many of these may start by the cap over all jobs (``orchestration_max_running``). None: all.
    room: int | None = None
    #: How long the oldest ready run has waited, as far as is known.
    oldest_wait_seconds: float = 0.0
    #: Busy slots, and workers. Draining workers do not count: they take nothing new.
    busy_slots: int = 0
    #: How many of the busy slots are free within the target, in sum, because their runs are known to be short. Only the
    #: autoscaler of one worker knows what is executed in them.
    soon_free_slots: float = 0.0
    workers: int = 0
    #: When all wanted workers were last needed, and when a decision last changed their number.
    needed_at: float | None = None
    changed_at: float | None = None
    paused: bool = False
    #: The ledger may have lost data: it starts nothing for one lease.
    in_new_epoch: bool = False
    #: Why the queues are unknown; '' if they are known.
    unknown: str = ""

    @property
    def ready_runs(self) -> int:
        return sum(job.runs for job in self.ready)


@dataclass(frozen=True, slots=True)
class Decision:
    wanted: int
    #: A sentence with the figures.
    reason: str
    #: When all wanted workers were last needed.
    needed_at: float
    #: The number of workers that the current figures ask for.
    needed: int = field(default=0)


def decide(figures: Figures) -> Decision:
    pool, now = figures.pool, figures.now
    last_need = now if figures.needed_at is None else min(figures.needed_at, now)
    if figures.wanted is None:
        current, why = _between(pool, figures.workers), "the pool begins"
    else:
        current, why = _between(pool, figures.wanted), f"it has to be within {pool.min} and {pool.max}"
    closed = "a new epoch has not opened" if figures.in_new_epoch else ""
    held_back = ("everything is paused" if figures.paused else closed) or figures.unknown
    if held_back:
        return Decision(current, held_back if current == figures.wanted else why, now, current)
    needed, reason = _needed(figures, current)
    if needed > current:
        return Decision(needed, reason, now, needed)
    if current != figures.wanted:
        return Decision(current, f"{why}; {reason}", now, needed)
    if needed == current or _keeps(figures, current):
        return Decision(current, reason, now, needed)
    quiet = now - last_need
    stepped = figures.changed_at is None or now - figures.changed_at >= STEP_DOWN_SECONDS
    if quiet < pool.quiet_seconds or not stepped:
        return Decision(current, f"{reason}, for {quiet:.0f} s now", last_need, needed)
    return Decision(current - 1, f"{reason}, for {quiet:.0f} s now: one worker less", last_need, needed)


def _between(pool: Pool, workers: int) -> int:
    return max(pool.min, min(pool.max, workers))


def _needed(figures: Figures, current: int) -> tuple[int, str]:
    """The number of workers that the current figures ask for, and why."""
    pool, ready = figures.pool, figures.ready_runs
    by_depth = pool.scale_up_at is not None
    workers, reason = (_by_depth if by_depth else _by_duration)(figures)
    if ready == 0:
        # No run waits: another worker would have nothing to start, even if all slots are busy.
        workers = min(workers, current)
    elif not by_depth and _waits_too_long(figures, current) and workers <= current:
        workers = current + 1
        reason = (
            f"the oldest of {_runs(ready)} waits for {figures.oldest_wait_seconds:.0f} s, more than "
            f"{pool.target_wait_seconds:g} s, and no slot is free"
        )
    if figures.room is not None and (most := ceil((figures.busy_slots + figures.room) / pool.slots)) < workers:
        workers, reason = most, f"{reason}, and orchestration_max_running lets {figures.room} of them start"
    bounded = _between(pool, max(workers, 1 if ready else 0))
    if bounded < workers:
        reason += f": {_workers(workers)}, and max is {pool.max}"
    else:
        reason += f": {_workers(bounded)}" + (f", as min is {pool.min}" if bounded > workers else "")
    return bounded, reason


def _by_depth(figures: Figures) -> tuple[int, str]:
    assert figures.pool.scale_up_at is not None
    ready, busy = figures.ready_runs, ceil(figures.busy_slots / figures.pool.slots)
    by_depth = ceil(ready / figures.pool.scale_up_at)
    if ready and by_depth >= busy:
        return by_depth, f"{_runs(ready)} at {figures.pool.scale_up_at} for each worker"
    return busy, f"{_slots(figures.busy_slots)} at work, {_runs(ready)}"


def _by_duration(figures: Figures) -> tuple[int, str]:
    pool, ready = figures.pool, figures.ready_runs
    more = sum(job.slots(pool.target_wait_seconds) for job in figures.ready)
    slots = max(0.0, figures.busy_slots - figures.soon_free_slots) + more
    workers = ceil(slots / pool.slots - 1e-9)
    if not ready:
        return workers, f"{_slots(figures.busy_slots)} at work, no run waits"
    known = [job for job in figures.ready if job.seconds is not None]
    runs = sum(job.runs for job in known)
    parts = []
    if runs:
        typical = sum(job.runs * (job.seconds or 0.0) for job in known) / runs
        parts.append(f"{_runs(runs)} of {_duration(typical)}")
    if ready > runs:
        parts.append(f"{_runs(ready - runs)} of unknown duration")
    reason = (
        f"{_slots(figures.busy_slots)} at work and {' and '.join(parts)} within {pool.target_wait_seconds:g} s "
        f"need {_slots(ceil(slots - 1e-9))}"
    )
    return workers, reason


def _waits_too_long(figures: Figures, current: int) -> bool:
    """Whether runs wait longer than their durations predict. The durations may have changed, so each missed target adds
    one worker."""
    pool = figures.pool
    since = None if figures.changed_at is None else figures.now - figures.changed_at
    return (
        figures.oldest_wait_seconds > pool.target_wait_seconds
        and figures.busy_slots >= max(1, current) * pool.slots
        and any(job.room is None or job.room > 0 for job in figures.ready)
        and (since is None or since >= pool.target_wait_seconds)
    )


def _keeps(figures: Figures, current: int) -> bool:
    """Whether a worker stays although it is not needed: with scaling by depth, until few runs are left for each of the
    others."""
    pool = figures.pool
    if pool.scale_up_at is None:
        return False
    least = pool.scale_up_at / 2 if pool.scale_down_at is None else pool.scale_down_at
    return figures.ready_runs > least * max(0, current - 1)


def _runs(count: int) -> str:
    return f"{count} ready {'run' if count == 1 else 'runs'}"


def _workers(count: int) -> str:
    return f"{count} {'worker' if count == 1 else 'workers'}"


def _slots(count: int) -> str:
    return f"{count} {'slot' if count == 1 else 'slots'}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
