"""Pages that stay up to date: the ledger is read once a second, however many browsers watch.

An open page holds a stream of server-sent events. Browsers on the same address with the same role share a
:class:`Topic`: its page is rendered once for all of them, and they get the blocks that have changed. The ledger is not
read while no browser watches; a slow read is followed by a longer pause.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from celery.utils.log import get_logger

from celery_orchestration.errors import OrchestrationError
from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.forecast.report import Forecast
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph
from celery_orchestration.operate.models import Ended, JobStatus, Status
from celery_orchestration.operate.status.findings import Findings, find_root_causes
from celery_orchestration.web.client_pool import ClientPool

logger = get_logger(__name__)

#: The shortest pause between two reads, in seconds; and the pause as a multiple of a read's CPU time.
SECONDS, PAUSE_TIMES = 0.7, 12
#: A page may show data that is this many seconds old.
FRESH_SECONDS = 0.5
#: Seconds after which the graph, an unchanged history and the forecast are read again.
RELATIONS_SECONDS, HISTORY_SECONDS, FORECAST_SECONDS = 10.0, 10.0, 60.0
#: How many samples of queues and pools are kept (about a quarter of an hour), and the seconds between two of them.
SAMPLES, SAMPLE_SECONDS = 180, 5.0
#: A stream sends something at least this often, so that proxies keep it open and dead browsers are noticed.
SILENCE_SECONDS = 15.0
#: A browser that is this many events behind is disconnected; it reconnects by itself.
_MOST_BEHIND = 20


@dataclass(frozen=True)
class Sample:
    """One point of the lines over time."""

    at: float
    #: Messages in each queue, and workers of each pool.
    depths: Mapping[str, int]
    live: Mapping[str, int]


@dataclass(frozen=True)
class Snapshot:
    """The ledger at one moment, for all pages."""

    status: Status
    relations: DependencyGraph | None
    causes: Findings
    samples: tuple[Sample, ...]
    taken: float


class Reader:
    """Reads the ledger, and remembers what seldom changes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._relations_read: tuple[float, frozenset[str], DependencyGraph] | None = None
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def read(self, client: Orchestration) -> Snapshot:
        status = client.status()
        now = time.monotonic()
        relations = self._relations(client, status, now)
        if not self._samples or now - self._samples[-1].at >= SAMPLE_SECONDS:
            depths = {queue.name: queue.depth or 0 for queue in status.queues}
            self._samples.append(Sample(now, depths, {pool.name: pool.live for pool in status.pools}))
        return Snapshot(status, relations, find_root_causes(status, relations), tuple(self._samples), now)

    def _relations(self, client: Orchestration, status: Status, now: float) -> DependencyGraph | None:
        names = frozenset(job.name for job in status.jobs)
        known = self._relations_read
        if known is None or known[1] != names or now - known[0] > RELATIONS_SECONDS:
            try:
                known = self._relations_read = now, names, client.graph()
            except OrchestrationError as exc:  # an error in the code, which the status reports as well
                logger.debug("The relations between jobs cannot be read: %s", exc)
                return None
        return known[2]


class Histories:
    """The last ended runs of jobs, read again when a job's last end has changed; and the forecast."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Hashable, float, int, list[Ended]]] = {}
        self._forecast: tuple[float, Forecast] | None = None

    def of(self, client: Orchestration, job: JobStatus, count: int) -> list[Ended]:
        sign, now = (job.last_end, job.failures, job.last_start), time.monotonic()
        found = self._read.get(job.name)
        if found and found[0] == sign and now - found[1] < HISTORY_SECONDS and found[2] >= count:
            return found[3][:count]
        ended = client.history(job.name, count)
        if len(self._read) > 5000:
            self._read.clear()
        self._read[job.name] = sign, now, count, ended
        return ended

    def forecast(self, client: Orchestration, hours: float) -> Forecast:
        """The forecast. It is slow to compute, so it may be a minute old."""
        now = time.monotonic()
        if self._forecast is None or now - self._forecast[0] > FORECAST_SECONDS:
            self._forecast = now, client.forecast(hours)
        return self._forecast[1]


@dataclass(eq=False)
class Topic:
    """A page that browsers watch, and the blocks that they were sent."""

    render: Callable[[Snapshot], Awaitable[Mapping[str, str]]]
    blocks: dict[str, str] = field(default_factory=dict)
    watchers: list[asyncio.Queue[str | None]] = field(default_factory=list)


class Live:
    def __init__(self, clients: ClientPool) -> None:
        self._clients = clients
        self._reader, self._reading = Reader(), asyncio.Lock()
        self.histories = Histories()
        self._topics: dict[Hashable, Topic] = {}
        self._latest: Snapshot | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        #: Whether something was changed from here since the last read began.
        self._changed = False
        self._closing = False
        #: How often the ledger was read.
        self.reads = 0

    async def snapshot(self, age: float = FRESH_SECONDS) -> Snapshot:
        """Raises the errors of the ledger."""
        async with self._reading:
            latest = self._latest
            while latest is None or time.monotonic() - latest.taken > age:
                self._changed, age = False, math.inf
                self.reads += 1
                latest = await self._clients.ask(self._reader.read)
                if self._changed:  # the change came during the read, which may have missed it
                    latest = None
            self._latest = latest
            return latest

    def read_soon(self) -> None:
        """Something was changed from here: read the ledger at once."""
        self._latest, self._changed = None, True
        self._wake.set()

    @property
    def watchers(self) -> int:
        return sum(len(topic.watchers) for topic in self._topics.values())

    async def events(
        self, key: Hashable, render: Callable[[Snapshot], Awaitable[Mapping[str, str]]]
    ) -> AsyncIterator[str]:
        """The stream of one browser. `key`: equal for browsers that see the same page."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_MOST_BEHIND)
        topic = self._topics.setdefault(key, Topic(render))
        topic.watchers.append(queue)
        if topic.blocks:
            queue.put_nowait(_event("blocks", topic.blocks))
        self._run()
        self._wake.set()
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), SILENCE_SECONDS)
                except asyncio.TimeoutError:
                    event = ": still here\n\n"
                if event is None:
                    return
                yield event
        finally:
            topic.watchers.remove(queue)
            if not topic.watchers and self._topics.get(key) is topic:
                del self._topics[key]

    def end_streams(self) -> None:
        """End all streams. Browsers reconnect by themselves when a server runs again."""
        self._closing = True
        for topic in self._topics.values():
            for queue in topic.watchers:
                _put(queue, None)

    async def close(self) -> None:
        self.end_streams()
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop

    def _run(self) -> None:
        if not self._closing and (self._loop is None or self._loop.done()):
            self._loop = asyncio.create_task(self._keep_reading())

    async def _keep_reading(self) -> None:
        down = False
        while self._topics:
            self._wake.clear()
            begun = time.process_time()
            try:
                snapshot = await self.snapshot(0.0)
            except OrchestrationError as exc:
                down = True
                self._send_all(_event("down", {"why": str(exc)}))
            except Exception as exc:
                logger.exception("The ledger cannot be read for the dashboard")
                down = True
                self._send_all(_event("down", {"why": f"{type(exc).__name__}: {exc}"}))
            else:
                if down:
                    self._send_all(_event("up", {}))
                down = False
                await self._update(snapshot)
            took = time.process_time() - begun
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(SECONDS, took * PAUSE_TIMES) if not down else SECONDS)

    async def _update(self, snapshot: Snapshot) -> None:
        for topic in list(self._topics.values()):
            try:
                blocks = await topic.render(snapshot)
            except OrchestrationError as exc:
                self._send(topic, _event("problem", {"why": str(exc)}))
                continue
            except Exception:
                logger.exception("A page of the dashboard cannot be rendered")
                continue
            changed = {name: text for name, text in blocks.items() if topic.blocks.get(name) != text}
            topic.blocks = dict(blocks)
            self._send(topic, _event("blocks", changed))

    def _send_all(self, event: str) -> None:
        for topic in self._topics.values():
            self._send(topic, event)

    def _send(self, topic: Topic, event: str) -> None:
        for queue in topic.watchers:
            _put(queue, event)


def _put(queue: asyncio.Queue[str | None], event: str | None) -> None:
    """Disconnect a browser that does not read any more."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _event(kind: str, data: Mapping[str, str]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
