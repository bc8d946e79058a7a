"""(c) How long the ledger's scripts keep Redis busy, with few and with many waiting runs, and how much memory a run
takes.

There are 1,000 jobs, each of which blocks its two neighbours in a ring and may run once at a time. Of every three
neighbours, two have waiting runs. These two block each other, so one run of each pair executes. A turn reports the end
of that run and asks for a new run of the same job: it settles, hands over (one run starts), and admits a run that has
to wait. So every turn has the same decisions, the same conflicts and, afterwards, the same number of waiting runs,
whether there is one pair with ten waiting runs or 333 pairs with 100,000.

Script time is Redis's own account (INFO commandstats), without the client; the client's time is reported beside it.
Measurements of the sizes alternate; each size has a database of its own.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import redis
from celery import Celery

from bench.crowd import JOBS, ring
from bench.stage import Others, Stage, verb_calls
from celery_orchestration import OrchestratedTask
from celery_orchestration.job.options import Priority
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Ledger, Outcome, Presence, Turn
from celery_orchestration.ledger.keys import encode_job, prefix
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from support.servers import RedisServer

PAIRS = JOBS // 3
FREE = "bench.free"
WORKER = "bench"
QUEUE = "celery"
#: Turns before the measurement, and during it. Sizes alternate often, so that other load on the machine affects all of
#: them.
WARM, SLICE = 20, 100
#: Arrivals in one call while the waiting runs are added.
AT_ONCE = 50
MESSAGE = json.dumps({"message": "x" * 485}).encode()


def _jobs() -> Any:
    app = Celery("bench", broker="memory://", set_as_current=False)
    for number in range(JOBS):
        app.task(name=ring(number), base=OrchestratedTask, max_running=1, blocks=[ring(number + 1)])(_nothing)
    app.task(name=FREE, base=OrchestratedTask)(_nothing)
    return jobs_of(app)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Run:
    id: str
    job: str
    fence: str


@dataclass
class Book:
    """A ledger with one worker, which executes nothing."""

    ledger: Ledger
    jobs: Any
    number: int = 0
    #: The running run of each pair.
    running: dict[int, Run] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    free_run: Run | None = None
    picks: int = 0

    @classmethod
    def open(cls, server: RedisServer, db: int, jobs: Any) -> Book:
        pool = redis.ConnectionPool.from_url(server.url(db))
        book = cls(Ledger(pool, prefix("bench")), jobs)
        book._register()
        return book

    @property
    def presence(self) -> Presence:
        release = releases.release(self.jobs, None)
        return Presence(
            worker=WORKER,
            name="bench@localhost",
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=JOBS,
            kind="prefork",
            queues=(QUEUE,),
            release=release.name,
            mode="enforce",
            lease_ms=3_600_000,
            owner="bench",
            done_ms=7_200_000,
            policies=release.document,
            jobs=tuple(encode_job(name) for name in self.jobs),
        )

    def _register(self) -> None:
        live = self.ledger.register(self.presence).live
        merged = releases.merged(self.ledger.read_releases(live))
        if not self.ledger.install_policies(live, merged.cap, merged.jobs):
            raise RuntimeError("the policies could not be installed")

    def close(self) -> None:
        self.ledger.close()

    # -- turns

    def turn(self, free: int, outcomes: list[Outcome], arrivals: list[Arrival]) -> Turn:
        self.number += 1
        return self.ledger.turn(WORKER, self.number, "enforce", free, outcomes, arrivals)

    def fill(self, waiting: int, pairs: int) -> None:
        """Adds runs until this many wait, the same number for each job of the pairs."""
        places = [(pair, side) for side in (0, 1) for pair in range(pairs)]
        at = len(self.waiting) + len(self.running)
        while (missing := waiting - len(self.waiting) + pairs - len(self.running)) > 0:
            chosen = [places[(at + i) % len(places)] for i in range(min(missing, AT_ONCE))]
            at += len(chosen)
            arrivals = [_arrival(ring(3 * pair + side)) for pair, side in chosen]
            turn = self.turn(0, [], arrivals)
            for (pair, _), arrival, answer in zip(chosen, arrivals, turn.answers, strict=True):
                if answer.what == "start":
                    self.running[pair] = Run(arrival.id, arrival.job, answer.fence)
                elif answer.what == "wait":
                    self.waiting[arrival.id] = arrival.job
                else:
                    raise RuntimeError(f"an arrival was answered with {answer}")

    def exchange(self, pair: int) -> None:
        """The running run of a pair ends, and another run of its job arrives. The run of the pair that has waited
        longest starts."""
        ended = self.running[pair]
        arrival = _arrival(ended.job)
        turn = self.turn(1, [Outcome(ended.id, ended.fence, "succeeded")], [arrival])
        self.picks += len(turn.starts) + len(turn.grants)
        if turn.settled != ["ok"] or turn.answers[0].what != "wait" or len(turn.starts) != 1:
            raise RuntimeError(f"not the turn that is to be measured: {turn}")
        start = turn.starts[0]
        self.waiting[arrival.id] = arrival.job
        self.running[pair] = Run(start.id, self.waiting.pop(start.id), start.fence)

    def exchange_free(self) -> None:
        """The same with an uncapped job: the new run starts at once."""
        ended = self.free_run
        outcomes = [Outcome(ended.id, ended.fence, "succeeded")] if ended else []
        arrival = _arrival(FREE)
        turn = self.turn(0, outcomes, [arrival])
        if turn.answers[0].what != "start":
            raise RuntimeError(f"an uncapped run was answered with {turn.answers[0]}")
        self.free_run = Run(arrival.id, FREE, turn.answers[0].fence)


def _arrival(job: str) -> Arrival:
    return Arrival(
        id=str(uuid.uuid4()),
        attempt=0,
        job=encode_job(job),
        key="",
        priority=int(Priority.NORMAL),
        grant="",
        expires_ms=None,
        queue=QUEUE,
        granted_queue="",
        message=MESSAGE,
    )


@dataclass
class Case:
    db: int
    waiting: int
    pairs: int
    book: Book
    client: redis.Redis
    script_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)
    free_script_us: list[float] = field(default_factory=list)
    free_wall_us: list[float] = field(default_factory=list)
    picks: int = 0
    turns: int = 0


def measure(stage: Stage) -> dict[str, Any]:
    jobs = _jobs()
    with stage.redis() as server:
        sizes = []
        for db, waiting in enumerate(stage.size.waiting):
            stage.say(f"ledger: adding {waiting} waiting runs")
            one = Case(db, waiting, max(1, min(PAIRS, waiting // 10)), Book.open(server, db, jobs), server.client(db))
            one.book.fill(waiting, one.pairs)
            sizes.append(one)
        choice, others = random.Random(1), Others()
        for number in range(stage.size.rounds):
            slices = stage.size.turns // SLICE
            for again in range(slices):
                for one in sizes if again % 2 == 0 else reversed(sizes):
                    _slice(one, choice)
            stage.say(
                f"ledger {number + 1}/{stage.size.rounds}: script us a turn: "
                + ", ".join(f"{one.waiting} waiting {median(one.script_us[-slices:]):.0f}" for one in sizes)
            )
        result: dict[str, Any] = {"sizes": [_summary(one, sizes[0]) for one in sizes], "others": others.share()}
        for one in sizes:
            one.book.close()
    with stage.redis() as server:
        stage.say("ledger: memory of a run")
        result["memory"] = _memory(server, jobs, stage.size.memory_runs)
    return result


def _slice(one: Case, choice: random.Random) -> None:
    client, book = one.client, one.book
    for pair in (choice.randrange(one.pairs) for _ in range(WARM)):
        book.exchange(pair)
    pairs = [choice.randrange(one.pairs) for _ in range(SLICE)]
    picks = book.picks
    script_us, wall_us = _timed(client, SLICE, (lambda pair=pair: book.exchange(pair) for pair in pairs))
    if book.picks - picks != SLICE or client.zcard(key_of(book.ledger.prefix, "waiting")) != one.waiting:
        raise RuntimeError("not every turn had its pick, or the number of waiting runs changed")
    one.picks += book.picks - picks
    one.turns += SLICE
    one.script_us.append(script_us)
    one.wall_us.append(wall_us)
    for _ in range(WARM):
        book.exchange_free()
    script_us, wall_us = _timed(client, SLICE, (book.exchange_free for _ in range(SLICE)))
    one.free_script_us.append(script_us)
    one.free_wall_us.append(wall_us)


def _timed(client: redis.Redis, turns: int, calls: Iterable[Callable[[], None]]) -> tuple[float, float]:
    """Microseconds for each call: of the script by Redis's account, and by our clock."""
    client.config_resetstat()
    begun = time.perf_counter()
    for call in calls:
        call()
    wall = time.perf_counter() - begun
    stats = verb_calls(client)
    if stats["calls"] != turns:
        raise RuntimeError(f"{stats['calls']} scripts were called instead of {turns}")
    return stats["usec"] / turns, wall / turns * 1e6


def _summary(one: Case, smallest: Case) -> dict[str, Any]:
    def ratio(figure: str) -> float:
        return median(a / b for a, b in zip(getattr(one, figure), getattr(smallest, figure), strict=True))

    return {
        "waiting": one.waiting,
        "jobs_with_waiting": 2 * one.pairs,
        "picks_per_turn": one.picks / one.turns,
        "script_us": median(one.script_us),
        "wall_us": median(one.wall_us),
        "ratio": ratio("script_us"),
        "wall_ratio": ratio("wall_us"),
        "free_script_us": median(one.free_script_us),
        "free_wall_us": median(one.free_wall_us),
        "free_ratio": ratio("free_script_us"),
        "rounds": {"script_us": one.script_us, "wall_us": one.wall_us, "free_script_us": one.free_script_us},
    }


def _memory(server: RedisServer, jobs: Any, count: int) -> dict[str, Any]:
    client = server.client()
    used = lambda: client.info("memory")["used_memory"]  # noqa: E731

    book = Book.open(server, 0, jobs)
    book.fill(PAIRS, PAIRS)
    before = used()
    book.fill(PAIRS + count, PAIRS)
    waiting = (used() - before) / count
    book.close()
    client.flushdb()

    book = Book.open(server, 0, jobs)
    before = used()
    runs = []
    for _ in range(count // AT_ONCE):
        arrivals = [_arrival(FREE) for _ in range(AT_ONCE)]
        answers = book.turn(0, [], arrivals).answers
        runs += [Outcome(a.id, answer.fence, "succeeded") for a, answer in zip(arrivals, answers, strict=True)]
    running = (used() - before) / len(runs)
    for at in range(0, len(runs), AT_ONCE):
        book.turn(0, runs[at : at + AT_ONCE], [])
    ended = (used() - before) / len(runs)
    book.close()
    return {
        "message_bytes": len(MESSAGE),
        "runs": count,
        "waiting_bytes": waiting,
        "running_bytes": running,
        "ended_bytes": ended,
    }
