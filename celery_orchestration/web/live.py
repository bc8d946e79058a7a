"""Pages that stay up to date: one look at the ledger a second, however many browsers there are.

Whoever has a page open holds a stream of server-sent events. Browsers on the same address with the same role share a
:class:`Topic`: its page is rendered once for all of them, and they are sent the blocks that have changed. Nobody looks
at the ledger while nobody watches; a look that takes long is followed by a longer pause.
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
from celery_orchestration.operate.graph.dependency_graph import Picture
from celery_orchestration.operate.models import Ended, JobStatus, Status
from celery_orchestration.operate.status.findings import Findings, find_root_causes
from celery_orchestration.web.desk import Desk

logger = get_logger(__name__)

#: Seconds between two looks at least; and how many times longer than what a look takes of a core.
SECONDS, PAUSE_TIMES = 0.7, 12
#: A browser that asks for a page gets what was seen this many seconds ago.
FRESH_SECONDS = 0.5
#: Seconds after which the relations between jobs are read again, and so is a history that seems unchanged.
PICTURE_SECONDS, HISTORY_SECONDS, FORECAST_SECONDS = 10.0, 10.0, 60.0
#: How many samples of queues and pools are kept: those of a quarter of an hour or so.
SAMPLES, SAMPLE_SECONDS = 180, 5.0
#: A stream says something at least this often, so that proxies keep it open and dead browsers are noticed.
SILENCE_SECONDS = 15.0
#: How many events a browser may be behind before it is cut off: it comes back by itself.
_MOST_BEHIND = 20


@dataclass(frozen=True)
class Sample:
    """What lines over time are drawn of."""

    at: float
    #: Messages in each queue, and workers of each pool.
    depths: Mapping[str, int]
    live: Mapping[str, int]


@dataclass(frozen=True)
class Snapshot:
    """The ledger at one moment, for all pages."""

    status: Status
    picture: Picture | None
    causes: Findings
    samples: tuple[Sample, ...]
    taken: float


class Looker:
    """Looks at the ledger; remembers what seldom changes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._picture: tuple[float, frozenset[str], Picture] | None = None
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def look(self, client: Orchestration) -> Snapshot:
        status = client.status()
        now = time.monotonic()
        picture = self._relations(client, status, now)
        if not self._samples or now - self._samples[-1].at >= SAMPLE_SECONDS:
            depths = {queue.name: queue.depth or 0 for queue in status.queues}
            self._samples.append(Sample(now, depths, {pool.name: pool.live for pool in status.pools}))
        return Snapshot(status, picture, find_root_causes(status, picture), tuple(self._samples), now)

    def _relations(self, client: Orchestration, status: Status, now: float) -> Picture | None:
        names = frozenset(job.name for job in status.jobs)
        if self._picture is None or self._picture[1] != names or now - self._picture[0] > PICTURE_SECONDS:
            try:
                self._picture = now, names, client.graph()
            except OrchestrationError as exc:  # a mistake in the code, which the status tells as well
                logger.debug("The relations between jobs cannot be read: %s", exc)
                return None
        return self._picture[2]


class Histories:
    """How the last runs of jobs ended; read again when a job's last end has changed. And what comes."""

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
        """What is to be expected: it takes long to find out, and a minute makes no difference."""
        now = time.monotonic()
        if self._forecast is None or now - self._forecast[0] > FORECAST_SECONDS:
            self._forecast = now, client.forecast(hours)
        return self._forecast[1]


@dataclass(eq=False)
class Topic:
    """A page that browsers watch, with what they have been sent."""

    render: Callable[[Snapshot], Awaitable[Mapping[str, str]]]
    blocks: dict[str, str] = field(default_factory=dict)
    watchers: list[asyncio.Queue[str | None]] = field(default_factory=list)


class Live:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._looker, self._looking = Looker(), asyncio.Lock()
        self.histories = Histories()
        self._topics: dict[Hashable, Topic] = {}
        self._latest: Snapshot | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        #: Since the last look began.
        self._changed = False
        self._closing = False
        #: How often the ledger was looked at.
        self.looks = 0

    async def snapshot(self, age: float = FRESH_SECONDS) -> Snapshot:
        """Raises what the ledger raises."""
        async with self._looking:
            latest = self._latest
            while latest is None or time.monotonic() - latest.taken > age:
                self._changed, age = False, math.inf
                self.looks += 1
                latest = await self._desk.ask(self._looker.look)
                if self._changed:  # while it looked: it may have seen what was before
                    latest = None
            self._latest = latest
            return latest

    def soon(self) -> None:
        """Something was changed from here: look at once."""
        self._latest, self._changed = None, True
        self._wake.set()

    @property
    def watchers(self) -> int:
        return sum(len(topic.watchers) for topic in self._topics.values())

    async def events(
        self, key: Hashable, render: Callable[[Snapshot], Awaitable[Mapping[str, str]]]
    ) -> AsyncIterator[str]:
        """The stream of one browser. `key`: what makes two pages the same."""
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
        """Browsers come back by themselves if somebody serves them again."""
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
            self._loop = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        down = False
        while self._topics:
            self._wake.clear()
            begun = time.process_time()
            try:
                snapshot = await self.snapshot(0.0)
            except OrchestrationError as exc:
                down = True
                self._tell_all(_event("down", {"why": str(exc)}))
            except Exception as exc:
                logger.exception("The ledger could not be looked at")
                down = True
                self._tell_all(_event("down", {"why": f"{type(exc).__name__}: {exc}"}))
            else:
                if down:
                    self._tell_all(_event("up", {}))
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
                self._tell(topic, _event("trouble", {"why": str(exc)}))
                continue
            except Exception:
                logger.exception("A page could not be rendered")
                continue
            changed = {name: text for name, text in blocks.items() if topic.blocks.get(name) != text}
            topic.blocks = dict(blocks)
            self._tell(topic, _event("blocks", changed))

    def _tell_all(self, event: str) -> None:
        for topic in self._topics.values():
            self._tell(topic, event)

    def _tell(self, topic: Topic, event: str) -> None:
        for queue in topic.watchers:
            _put(queue, event)


def _put(queue: asyncio.Queue[str | None], event: str | None) -> None:
    """One that does not read any more is cut off."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _event(kind: str, data: Mapping[str, str]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
