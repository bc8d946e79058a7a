"""(j) A large installation, simulated: how long each verb keeps Redis busy, how long it takes to recover the runs of
many dead workers, and how many runs one Redis core carries.

The ledger is filled by its own verbs: workers that execute nothing, jobs, some of which wait on queues that nobody
serves, and many waiting runs. Then all workers but one die at once. Times of verbs are Redis's own account of one
script. The number of runs a second counts all processor time of Redis.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from bench.stage import Stage
from celery_orchestration.ledger import Arrival, Ledger, Outcome, Presence, Turn
from celery_orchestration.ledger.keys import prefix
from celery_orchestration.node import releases

#: Milliseconds. Workers that will die have the short lease.
LEASE, SHORT_LEASE, SWEEP = 3_600_000, 2_000, 5_000
MESSAGE = b"x" * 500
SURVIVOR = "survivor"
HUB = "hub"
#: The number of runs with which each ceiling is measured.
RUNS = 5000


@dataclasses.dataclass(frozen=True)
class Crowd:
    workers: int
    jobs: int
    waiting: int
    #: Jobs that wait on a queue of their own that nobody serves.
    unserved: int
    dependents: int
    runs_per_worker: int


FULL = Crowd(workers=1000, jobs=10_000, waiting=98_000, unserved=1000, dependents=1000, runs_per_worker=10)
QUICK = Crowd(workers=100, jobs=1000, waiting=5000, unserved=100, dependents=100, runs_per_worker=10)


class Simulation:
    def __init__(self, ledger: Ledger, client: redis.Redis, crowd: Crowd) -> None:
        self.ledger, self.client, self.crowd = ledger, client, crowd
        self.numbers: dict[str, int] = {}
        #: The longest script of each verb, in ms.
        self.longest: dict[str, float] = {}
        jobs = {f"job{n}": _document(1 if n % 2 else None) for n in range(crowd.jobs)}
        jobs[HUB] = _document(1)
        needs = {"job": HUB, "on": "finish", "max_age_seconds": None, "fresh": False}
        for n in range(crowd.dependents):
            jobs[f"dependent{n}"] = {**_document(1), "depends_on": [needs]}
        self.document = json.dumps({"max_running": None, "jobs": jobs})
        self.names = tuple(jobs)

    # -- calls, each by itself under Redis's clock

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        self.client.slowlog_reset()
        answer = call()
        slow = self.client.slowlog_get(1000)
        scripts = [one["duration"] for one in slow if one["command"].startswith((b"EVAL", b"FCALL"))]
        self.longest[name] = max([self.longest.get(name, 0.0), *(us / 1000 for us in scripts)])
        return answer

    def number(self, worker: str) -> int:
        self.numbers[worker] = self.numbers.get(worker, 0) + 1
        return self.numbers[worker]

    def presence(self, worker: str, lease: int) -> Presence:
        return Presence(
            worker=worker,
            name=f"{worker}@host",
            host="host",
            pid=1,
            slots=16,
            kind="prefork",
            queues=("celery", "default.granted"),
            release="r1",
            mode="enforce",
            lease_ms=lease,
            owner="bench",
            done_ms=7_200_000,
            policies=self.document,
            jobs=self.names,
        )

    def turn(self, worker: str, free: int, outcomes: list[Outcome], arrivals: list[Arrival]) -> Turn:
        return self.ledger.turn(worker, self.number(worker), "enforce", free, outcomes, arrivals)

    def sweep(self) -> Any:
        number = self.number("sweeps")
        return self.timed("sweep", lambda: self.ledger.sweep(SURVIVOR, number, SWEEP))

    # -- the installation

    def build(self) -> None:
        merged = releases.merged([self.document])
        found = self.timed("register", lambda: self.ledger.register(self.presence(SURVIVOR, LEASE)))
        self.timed("install_policies", lambda: self.ledger.install_policies(found.live, merged.cap, merged.jobs))
        for n in range(self.crowd.workers):
            self.ledger.register(self.presence(f"w{n}", LEASE))
        for n in range(self.crowd.workers):
            runs = [_arrival(f"run{n}-{m}", "job0") for m in range(self.crowd.runs_per_worker)]
            self.turn(f"w{n}", 0, [], runs)
        for part in _parts(self._waiting(), 50):
            self.turn(SURVIVOR, 0, [], part)

    def _waiting(self) -> Iterator[Arrival]:
        crowd = self.crowd
        capped = [f"job{n}" for n in range(1, crowd.jobs, 2)]
        for n in range(crowd.unserved):
            job = capped[n % len(capped)]
            for m in range(2):
                yield _arrival(f"unserved{n}-{m}", job, queue=f"nobody{n}")
        served = capped[crowd.unserved :]
        rest = crowd.waiting - 2 * crowd.unserved - crowd.dependents
        for n in range(rest + len(served)):
            yield _arrival(f"wait{n}", served[n % len(served)])
        for n in range(crowd.dependents):
            yield _arrival(f"dependent{n}", f"dependent{n}")

    def time_verbs(self) -> None:
        for again in range(3):
            new = f"new{again}"
            self.timed("register", lambda new=new: self.ledger.register(self.presence(new, LEASE)))
            self.timed("heartbeat", lambda new=new: self.ledger.heartbeat(new, LEASE, []))
            self.timed("read_health", lambda: self.ledger.read_health("bench", "w1@host"))
            self.timed("read_status", lambda: self.ledger.read_status(100, 100))
            self.sweep()
            run = _arrival(f"free{again}", "job0")
            fence = self.timed("turn", lambda run=run: self.turn(SURVIVOR, 1, [], [run])).answers[0].fence
            self.timed("turn", lambda run=run, fence=fence: self.turn(SURVIVOR, 1, [_ended(run.id, fence)], []))
            self.timed("leave", lambda new=new: self.ledger.leave(new))
        run = _arrival("hub", HUB)
        fence = self.timed("turn", lambda: self.turn(SURVIVOR, 0, [], [run])).answers[0].fence
        found = self.timed("turn of a hub", lambda: self.turn(SURVIVOR, 0, [_ended(run.id, fence)], []))
        while found.more:
            found = self.timed("turn of a hub", lambda: self.turn(SURVIVOR, 0, [], []))

    def mass_death(self) -> dict[str, Any]:
        """All workers but one stop at once."""
        for n in range(self.crowd.workers):
            self.ledger.heartbeat(f"w{n}", SHORT_LEASE, [])
        self.sweep()
        time.sleep(SHORT_LEASE / 1000 + 0.2)
        began, calls, recovered, dead = time.monotonic(), 0, 0, 0
        more = True
        while more:
            swept = self.sweep()
            calls += 1
            recovered += swept.recovered
            dead += len(swept.dead_workers)
            more = swept.more and dead < self.crowd.workers
        return {"dead": dead, "recovered": recovered, "calls": calls, "seconds": time.monotonic() - began}


def measure(stage: Stage) -> dict[str, Any]:
    crowd = FULL if stage.size.rounds > 1 else QUICK
    with stage.redis() as server:
        simulation = Simulation(
            Ledger(redis.ConnectionPool.from_url(server.url()), prefix("bench")), server.client(), crowd
        )
        server.client().config_set("slowlog-log-slower-than", 0)
        server.client().config_set("slowlog-max-len", 1000)
        stage.say(f"scale: {crowd.workers} workers, {crowd.jobs} jobs, {crowd.waiting} waiting runs")
        simulation.build()
        simulation.time_verbs()
        death = simulation.mass_death()
        stage.say(f"scale: {death}, longest script, ms: {_round(simulation.longest)}")
        simulation.ledger.close()
    with stage.redis() as server:
        ceilings = {name: _ceiling(server, name, jobs, key) for name, jobs, key in _loads()}
        ceilings["exclusive"] = _exclusive_ceiling(server)
        stage.say(f"scale: runs a second of one Redis core: {ceilings}")
    return {"crowd": dataclasses.asdict(crowd), "longest_ms": simulation.longest, "death": death, "ceilings": ceilings}


# -- what one Redis core carries, by single turns: one run ends and the next one is asked for


def _loads() -> Iterator[tuple[str, dict[str, Any], Callable[[int], tuple[str, str]]]]:
    yield "uncapped", {"a": _document(None)}, lambda n: ("a", "")
    yield "10,000 keys", {"a": {**_document(1), "keyed": True}}, lambda n: ("a", f"k{n % 10_000}")
    needs = [{"job": "d0", "on": "idle", "max_age_seconds": None, "fresh": False}]
    jobs = {f"d{n}": {**_document(1), "depends_on": needs if n else []} for n in range(1001)}
    yield "1,000 dependent jobs", jobs, lambda n: (f"d{n % 1000 + 1}", "")


def _small(server: Any, jobs: dict[str, Any]) -> Simulation:
    server.client().flushall()
    simulation = Simulation(
        Ledger(redis.ConnectionPool.from_url(server.url()), prefix("bench")), server.client(), QUICK
    )
    simulation.document, simulation.names = json.dumps({"max_running": None, "jobs": jobs}), tuple(jobs)
    merged = releases.merged([simulation.document])
    found = simulation.ledger.register(simulation.presence(SURVIVOR, LEASE))
    simulation.ledger.install_policies(found.live, merged.cap, merged.jobs)
    return simulation


def _cpu_seconds(simulation: Simulation) -> float:
    """Redis's processor time, for the scripts and everything around them."""
    used = simulation.client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _runs_a_second(simulation: Simulation, runs: int, begun: float) -> int:
    used = _cpu_seconds(simulation) - begun
    simulation.ledger.close()
    return round(runs / used)


def _ceiling(server: Any, name: str, jobs: dict[str, Any], choose: Callable[[int], tuple[str, str]]) -> int:
    simulation = _small(server, jobs)
    running: list[Outcome] = []
    begun = 0.0
    for n in range(RUNS + 1):
        if n == 1:
            begun = _cpu_seconds(simulation)
        job, key = choose(n)
        arrival = _arrival(f"{name}{n}", job, key=key)
        turn = simulation.turn(SURVIVOR, 0, running, [arrival])
        running = [_ended(arrival.id, turn.answers[0].fence)]
    return _runs_a_second(simulation, RUNS, begun)


def _exclusive_ceiling(server: Any) -> int:
    """One run always waits: it starts in the slot of the run that ended."""
    simulation = _small(server, {"a": _document(1)})
    first = simulation.turn(SURVIVOR, 0, [], [_arrival("x0", "a"), _arrival("x1", "a")])
    running = _ended("x0", first.answers[0].fence)
    begun = _cpu_seconds(simulation)
    for n in range(2, RUNS + 2):
        turn = simulation.turn(SURVIVOR, 1, [running], [_arrival(f"x{n}", "a")])
        running = _ended(turn.starts[0].id, turn.starts[0].fence)
    return _runs_a_second(simulation, RUNS, begun)


def _document(cap: int | None) -> dict[str, Any]:
    return {
        "max_running": cap,
        "keyed": False,
        "depends_on": [],
        "blocks": [],
        "on_crash": "requeue",
        "max_recoveries": 2,
        "max_consecutive_failures": None,
    }


def _arrival(id: str, job: str, key: str = "", queue: str = "celery") -> Arrival:
    return Arrival(
        id=id,
        attempt=0,
        job=job,
        key=key,
        priority=1,
        grant="",
        expires_ms=None,
        queue=queue,
        granted_queue="",
        message=MESSAGE,
    )


def _ended(id: str, fence: str) -> Outcome:
    return Outcome(id, fence, "succeeded")


def _parts(items: Iterator[Arrival], size: int) -> Iterator[list[Arrival]]:
    part: list[Arrival] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _round(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 1) for name, figure in figures.items()}
