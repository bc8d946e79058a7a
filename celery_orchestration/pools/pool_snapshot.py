"""A snapshot of the pools: their work and their workers, from the ledger and the broker together."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.pool import Pool
from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.pools.backlog import Queued
from celery_orchestration.pools.decide import Figures, Ready
from celery_orchestration.pools.places import as_document
from celery_orchestration.pools.table import strictest

#: At most this many tasks' durations are read at a time.
MOST_TASKS = 50
#: An older report of a supervisor does not count.
FRESH_MS = 10_000
#: Seconds for which the counts of sent messages are kept.
REMEMBERED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker that serves a pool's queues."""

    name: str
    host: str
    pid: int
    slots: int
    running: int
    done: int
    failed: int
    draining: bool
    #: In ms, by Redis's clock.
    since: int
    #: Its lease has expired, or it has been silent for as long as a lease.
    dead: bool
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A place as the ledger records it."""

    number: int
    by: str
    fence: str
    leaving: bool
    #: Facts about its worker, written by its supervisor.
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Supervisor:
    name: str
    host: str
    pid: int
    tables: Mapping[str, Mapping[str, Any]]
    #: Its report for people.
    report: Mapping[str, Any]
    since: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool at one moment."""

    name: str
    figures: Figures
    workers: Sequence[Worker]
    places: Sequence[HeldPlace]
    supervisors: Sequence[Supervisor]
    #: The reason for the last decision.
    reason: str
    #: How many workers are wanted; None: no decision yet.
    wanted: int | None
    #: Changes of the number of workers, latest first.
    changes: Sequence[Mapping[str, Any]] = ()
    queue_names: Sequence[str] = ()
    #: Messages in each of its queues in the broker.
    queued: Mapping[str, int] = field(default_factory=dict)
    #: Typical durations of the requested jobs, by encoded name.
    durations: Mapping[str, float] = field(default_factory=dict)
    #: The wait of the oldest ready run by a supervisor's last report, if that is recent.
    reported_wait_seconds: float = 0.0

    @property
    def drain_seconds(self) -> float | None:
        """How long the existing slots need for the ready runs; None: unknown."""
        work = [job.runs * job.seconds for job in self.figures.ready if job.seconds is not None]
        slots = sum(worker.slots for worker in self.workers if not worker.draining and not worker.dead)
        if self.figures.ready_runs == 0:
            return 0.0
        if len(work) < len([job for job in self.figures.ready if job.runs]) or not slots:
            return None
        return sum(work) / slots


class Waits:
    """Estimates how long the oldest message of a pool has waited. Messages carry no time, but they are taken in order.

    The number of sent messages is the number of queued messages plus the number of done ones. The message that is taken
    next was sent when that sum first exceeded the number that is done now.
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()
        self._done_by: dict[str, int] = {}
        self._done = 0

    def oldest(self, now: float, queued: int, done_by: Mapping[str, int]) -> float:
        for name, count in done_by.items():
            before = self._done_by.get(name, count)
            self._done += count - before if count >= before else count
        self._done_by = dict(done_by)
        sent = self._done + queued
        if not self._sent or sent > self._sent[-1][1]:
            self._sent.append((now, sent))
        while len(self._sent) > 1 and (self._sent[0][1] <= self._done or now - self._sent[0][0] > REMEMBERED_SECONDS):
            self._sent.popleft()
        if queued <= 0:
            self._sent.clear()
            self._sent.append((now, sent))
            return 0.0
        return max(0.0, now - self._sent[0][0])


class PoolReader:
    """Reads the pools repeatedly; it remembers only the counts of :class:`Waits`."""

    def __init__(self, ledger: Ledger, queues: Mapping[str, Sequence[str]]) -> None:
        """`queues`: the queues of each pool."""
        self._ledger = ledger
        self.queues: Mapping[str, Sequence[str]] = queues
        self._waits: dict[str, Waits] = {}

    def read(
        self,
        table: Mapping[str, Pool],
        queued: Mapping[str, Queued] | None,
        problem: str = "",
        changes: int = 0,
        tasks: Iterable[str] = (),
    ) -> dict[str, PoolSnapshot]:
        """`queued`: the broker's queues, or None if they are unknown; then `problem` says why. `changes`: how many past
        changes to read. `tasks`: more tasks whose durations are read. Raises
        :class:`~celery_orchestration.errors.LedgerError`."""
        names = Counter[str](tasks)
        for one in (queued or {}).values():
            names.update(one.tasks)
        asked = [encoded(name) for name, _ in names.most_common(MOST_TASKS)]
        found = self._ledger.read_pools(
            {name: self.queues[name] for name in table}, [one for one in asked if one], changes
        )
        supervisors = [_supervisor(one) for one in found.get("supervisors") or ()]
        workers = [_worker(one) for one in found.get("workers") or ()]
        return {
            name: self._pool(name, pool, found, queued, problem, workers, supervisors) for name, pool in table.items()
        }

    def _pool(
        self,
        name: str,
        pool: Pool,
        found: Mapping[str, Any],
        queued: Mapping[str, Queued] | None,
        problem: str,
        workers: Sequence[Worker],
        supervisors: Sequence[Supervisor],
    ) -> PoolSnapshot:
        now, record = found["now"], (found.get("pools") or {}).get(name) or {}
        queues = set(self.queues[name])
        serving = [worker for worker in workers if queues & set(worker.queues)]
        at_work = [worker for worker in serving if not worker.draining and not worker.dead]
        ready = self._ready(name, record, queued or {}, found.get("jobs") or {})
        oldest = self._oldest(name, now, record, queued or {}, serving)
        declared = [one.tables[name] for one in supervisors if name in one.tables]
        figures = Figures(
            pool=strictest(pool, declared),
            now=now / 1000,
            wanted=record.get("wanted"),
            ready=ready,
            room=None if (room := found.get("room")) is None else room + _handed(record),
            oldest_wait_seconds=oldest,
            busy_slots=sum(worker.running for worker in at_work),
            workers=len(at_work),
            needed_at=_seconds(record.get("needed")),
            changed_at=_seconds(record.get("changed")),
            paused=found["paused"],
            in_new_epoch=found["epoch"] > 0,
            unknown=problem if queued is None else "",
        )
        return PoolSnapshot(
            name=name,
            figures=figures,
            workers=serving,
            places=[_place(one) for one in record.get("places") or ()],
            supervisors=[one for one in supervisors if name in one.tables],
            reason=record.get("why") or "",
            wanted=record.get("wanted"),
            changes=[json.loads(one) for one in record.get("changes") or ()],
            reported_wait_seconds=_reported_wait(record, now),
            queue_names=self.queues[name],
            durations={job: one["took"] / 1000 for job, one in (found.get("jobs") or {}).items() if "took" in one},
            queued={queue: queued[queue].length for queue in self.queues[name] if queued and queue in queued},
        )

    def _ready(
        self,
        name: str,
        record: Mapping[str, Any],
        queued: Mapping[str, Queued],
        jobs: Mapping[str, Mapping[str, Any]],
    ) -> list[Ready]:
        """Runs by job that are queued, on their way to a worker, or wait only for a slot."""
        runs: Counter[str] = Counter()
        handed: dict[str, Counter[str]] = {}
        for one in record.get("handed") or ():
            handed.setdefault(one["queue"], Counter())[one["job"]] += one["runs"]
        for queue in self.queues[name]:
            in_broker = queued.get(queue, Queued(0))
            on_the_way = handed.get(queue, Counter[str]())
            runs.update(on_the_way)
            # Runs on their way are among the messages of the queue, or will be soon.
            rest = in_broker.length - on_the_way.total()
            runs.update(_in_proportion(max(0, rest), in_broker.tasks))
        for one in record.get("open") or ():
            runs[one["job"]] += one["runs"]
        return [
            Ready(job, count, _seconds(jobs.get(job, {}).get("took")), jobs.get(job, {}).get("room"))
            for job, count in sorted(runs.items())
            if count > 0
        ]

    def _oldest(
        self,
        name: str,
        now: int,
        record: Mapping[str, Any],
        queued: Mapping[str, Queued],
        workers: Iterable[Worker],
    ) -> float:
        in_broker = sum(queued[queue].length for queue in self.queues[name] if queue in queued)
        waits = self._waits.setdefault(name, Waits())
        by_broker = waits.oldest(now / 1000, in_broker, {worker.name: worker.done for worker in workers})
        since = [one["since"] for one in record.get("handed") or ()]
        by_ledger = (now - min(since)) / 1000 if since else 0.0
        return max(0.0, by_broker, by_ledger)


def _handed(record: Mapping[str, Any]) -> int:
    """Runs that hold room and are on their way to a worker."""
    return sum(one["runs"] for one in record.get("handed") or ())


def _reported_wait(record: Mapping[str, Any], now: int) -> float:
    is_fresh = now - (record.get("seen") or 0) < FRESH_MS
    return (record.get("oldest") or 0) / 1000 if is_fresh else 0.0


def _in_proportion(count: int, sample: Counter[str]) -> Counter[str]:
    """Splits messages by job in the proportions of the sample. The key '' stands for an unknown job."""
    total = sample.total()
    if not count or not total:
        return Counter({"": count}) if count else Counter()
    found = Counter({encoded(name): count * seen // total for name, seen in sample.items()})
    found[encoded(sample.most_common(1)[0][0])] += count - found.total()
    return found


def encoded(task: str) -> str:
    """The job's name in the ledger; '' if no job can have that name."""
    try:
        return keys.encode_job(task)
    except ConfigurationError:
        return ""


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _worker(one: Mapping[str, Any]) -> Worker:
    return Worker(
        name=one["name"],
        host=one.get("host") or "",
        pid=one.get("pid") or 0,
        slots=one.get("slots") or 0,
        running=one["running"],
        done=one["done"],
        failed=one["failed"],
        draining=one["draining"],
        since=one.get("since") or 0,
        dead=one["left"] <= 0 or one["silent"] > (one.get("lease") or 30_000),
        queues=tuple(json.loads(one.get("queues") or "[]")),
    )


def _place(one: Mapping[str, Any]) -> HeldPlace:
    return HeldPlace(one["number"], one["by"], one["fence"], one["leaving"], as_document(one["info"]))


def _supervisor(one: Mapping[str, Any]) -> Supervisor:
    return Supervisor(
        name=one["name"],
        host=one.get("host") or "",
        pid=one.get("pid") or 0,
        tables=as_document(one["tables"]),
        report=as_document(one["report"]),
        since=one.get("since") or 0,
    )
