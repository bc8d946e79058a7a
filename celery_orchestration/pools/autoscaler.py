"""An autoscaler for workers that people start themselves: ``celery worker --autoscale=8,1``.

Set ``app.conf.worker_autoscaler = "celery_orchestration:QueueAutoscaler"``. Celery's own autoscaler looks at the
messages that the worker has fetched, and grows to the maximum whenever there are some. This one uses the same function
as pools (``decide``), with processes instead of workers: runs that the gate holds back need no process, and short runs
need few, also while such runs are executed. Each worker that serves the queues counts its share of their messages.

A thread reads broker and ledger. The execution pool is resized in the event loop, where Celery does it. While broker or
ledger do not answer, only the messages that the worker has fetched count.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil
from time import monotonic
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.autoscale import Autoscaler

from celery_orchestration.errors import LedgerError
from celery_orchestration.job import queues
from celery_orchestration.job.pool import Pool
from celery_orchestration.pools.backlog import Broker
from celery_orchestration.pools.decide import Figures, Ready, decide
from celery_orchestration.pools.pool_snapshot import PoolReader, PoolSnapshot, encoded

logger = get_logger(__name__)

#: Seconds between two reads, and between two decisions while messages keep coming.
LOOK_SECONDS, DECIDE_SECONDS = 1.0, 0.1
#: An older reading does not count.
OLDEST_SECONDS = 10.0


class QueueAutoscaler(Autoscaler):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # `keepalive` is how often the event loop calls it. The decision says when to shrink.
        super().__init__(*args, **{**kwargs, "keepalive": LOOK_SECONDS})
        self._needed_at: float | None = None
        self._changed_at: float | None = None
        self._decided_at = 0.0
        self.reason = ""

    @cached_property
    def _runtime(self) -> Any:
        """The worker's runtime; None if the mode is off. Looked up late, because bootsteps are created in any order."""
        return getattr(self.worker, "orchestration", None)

    @cached_property
    def _watch(self) -> _Watch | None:
        return _Watch(self._runtime, self._pool_options) if self._runtime is not None else None

    @cached_property
    def _pool_options(self) -> Pool:
        """The options of the pool that this worker serves, if any, in processes instead of workers."""
        runtime = self._runtime
        table: Mapping[str, Pool] = runtime.settings.pools if runtime is not None else {}
        served = runtime.queues.served if runtime is not None else ()
        own = next((pool for pool in map(queues.pool_of, served) if pool in table), None)
        options = table[own] if own is not None else Pool()
        bounds = {"min": max(0, self.min_concurrency), "max": max(1, self.max_concurrency), "concurrency": 1}
        return options.model_copy(update={**bounds, "scale_up_at": None, "scale_down_at": None})

    def _maybe_scale(self, req: Any = None) -> bool | None:
        now = monotonic()
        if now - self._decided_at < DECIDE_SECONDS:
            return None
        self._decided_at = now
        processes = self.processes
        found = decide(self._figures(now, processes))
        self._needed_at, self.reason = found.needed_at, found.reason
        if found.wanted == processes:
            return None
        self._changed_at = now
        logger.info("%d processes instead of %d: %s", found.wanted, processes, found.reason)
        if found.wanted > processes:
            self.scale_up(found.wanted - processes)
        else:
            self._shrink(processes - found.wanted)
        return True

    def _figures(self, now: float, processes: int) -> Figures:
        # Remote control may change these.
        bounds = {"min": max(0, self.min_concurrency), "max": max(1, self.max_concurrency)}
        pool = self._pool_options.model_copy(update=bounds)
        seen = self._watch.latest(now) if self._watch is not None else None
        ready = _shared(seen) if seen is not None else []
        active = set(state.active_requests)
        return Figures(
            pool=pool,
            now=now,
            wanted=processes,
            ready=[*ready, *self._runs(set(state.reserved_requests) - active, seen)],
            room=_share(seen, seen.figures.room) if seen is not None else None,
            oldest_wait_seconds=seen.figures.oldest_wait_seconds if seen is not None else 0.0,
            busy_slots=min(len(active), processes),
            soon_free_slots=_soon_free(self._runs(active, seen), pool.target_wait_seconds),
            workers=processes,
            needed_at=self._needed_at,
            changed_at=self._changed_at,
            paused=seen is not None and seen.figures.paused,
            in_new_epoch=seen is not None and seen.figures.in_new_epoch,
        )

    def _runs(self, requests: Iterable[Any], seen: PoolSnapshot | None) -> list[Ready]:
        """These requests by task, with its typical duration here or elsewhere."""
        demand = self._runtime.demand if self._runtime is not None else None
        found = []
        for task, count in Counter(str(request.name) for request in requests).items():
            seconds = demand.typical(task) if demand is not None else None
            if seconds is None and seen is not None:
                seconds = seen.durations.get(encoded(task))
            found.append(Ready(task, count, seconds))
        return found

    def info(self) -> dict[str, Any]:
        return {**super().info(), "reason": self.reason}


def _soon_free(executed: Sequence[Ready], target_seconds: float) -> float:
    """How many of the slots that execute these runs are free within the target, in sum."""
    known = ((job.runs, job.seconds) for job in executed if job.seconds is not None)
    return sum(runs * max(0.0, 1 - seconds / target_seconds) for runs, seconds in known)


def _shared(seen: PoolSnapshot) -> list[Ready]:
    """The share of one worker in the ready runs."""
    return [
        Ready(job.job, ceil(job.runs / _sharers(seen)), job.seconds, _share(seen, job.room))
        for job in seen.figures.ready
    ]


def _share(seen: PoolSnapshot, room: int | None) -> int | None:
    """The share of one worker in the room. None: any number of runs may start."""
    return None if room is None else ceil(room / _sharers(seen))


def _sharers(seen: PoolSnapshot) -> int:
    """How many workers serve the queues."""
    return max(1, sum(not worker.draining and not worker.dead for worker in seen.workers))


class _Watch:
    """Reads the queues of a worker, on a thread that starts with the first call of :meth:`latest`."""

    def __init__(self, runtime: Any, options: Pool) -> None:
        self._runtime, self._pool_options = runtime, options
        self._thread: threading.Thread | None = None
        self._seen: tuple[float, PoolSnapshot] | None = None

    def latest(self, now: float) -> PoolSnapshot | None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="orchestration-autoscaler", daemon=True)
            self._thread.start()
        seen = self._seen
        return seen[1] if seen is not None and now - seen[0] < OLDEST_SECONDS else None

    def _run(self) -> None:
        runtime, over = self._runtime, threading.Event()
        ledger, broker = runtime.ledger.new_connection(), Broker(runtime.app)
        reader = PoolReader(ledger, {})
        while not runtime.stopping:
            served = list(runtime.queues.served)
            reader.queues = {"": served}
            try:
                snapshot = reader.read({"": self._pool_options}, broker.read(served), tasks=list(state.total_count))[""]
                self._seen = monotonic(), snapshot
            except LedgerError as exc:
                logger.debug("The autoscaler cannot read the ledger: %s", exc)
            except Exception as exc:
                logger.debug("The autoscaler cannot read the broker's queues: %r", exc)
            over.wait(LOOK_SECONDS)
        broker.close()
        ledger.close()
