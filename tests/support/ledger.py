"""A ledger on a real Redis, with short methods for the actions of workers, schedulers and operators, verb by verb."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import redis

from celery_orchestration.ledger import Adoption, Arrival, Fire, Ledger, Outcome, Presence, Turn, keys
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from celery_orchestration.operate.explain.chain import Step, links, steps, summary
from celery_orchestration.operate.explain.facts import Surroundings
from celery_orchestration.operate.explain.models import Cause
from celery_orchestration.operate.explain.root_cause import RootCauseFinder
from support.servers import RedisServer

PREFIX = keys.prefix("shop")


class Shop:
    """A ledger with one worker, and short methods for its actions."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.redis = server.client()
        self.ledger = Ledger(redis.ConnectionPool.from_url(server.url()), PREFIX)
        self.number = 0
        self.fences: dict[str, str] = {}

    def now(self) -> int:
        """Redis's clock, in milliseconds."""
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def install(self, jobs: dict[str, dict[str, Any]], cap: int | None = None, release: str = "r1") -> None:
        documents = {
            name: {
                **{"max_running": None, "keyed": False, "depends_on": [], "blocks": [], "on_crash": "requeue"},
                **{"max_recoveries": 2, "max_consecutive_failures": None},
                **job,
            }
            for name, job in jobs.items()
        }
        for job in documents.values():
            job["depends_on"] = [
                {"on": "success", "max_age_seconds": None, "fresh": False, **dep} for dep in job["depends_on"]
            ]
        self.document = json.dumps({"max_running": cap, "jobs": documents})
        self.jobs = tuple(map(keys.encode_job, jobs))
        self.register("w1", release=release)
        merged = releases.merged([self.document])
        assert self.ledger.install_policies(release, merged.cap, merged.jobs)

    def register(self, worker: str, slots: int = 8, queues: tuple[str, ...] = ("q",), release: str = "r1") -> Any:
        return self.ledger.register(
            Presence(
                worker=worker, name=f"{worker}@host", host="host", pid=1, slots=slots, kind="prefork", queues=queues,
                release=release, mode="enforce", lease_ms=30_000, owner="shop", done_ms=60_000, policies=self.document,
                jobs=self.jobs,
            )
        )  # fmt: skip

    def turn(
        self,
        *,
        ends: dict[str, str] | None = None,
        come: list[Arrival] | None = None,
        free: int = 0,
        worker: str = "w1",
    ) -> Turn:
        self.number += 1
        outcomes = [Outcome(id, self.fences[id], outcome) for id, outcome in (ends or {}).items()]
        turn = self.ledger.turn(worker, self.number, "enforce", free, outcomes, come or [])
        for answer in turn.answers:
            if answer.what == "start":
                self.fences[answer.run] = answer.fence
        for start in turn.starts:
            self.fences[start.id] = start.fence
        return turn

    def come(self, id: str, job: str, **more: Any) -> str:
        return self.turn(come=[arrival(id, job, **more)]).answers[0].what

    def end(self, id: str, outcome: str = "succeeded", free: int = 1) -> list[str]:
        """Returns the runs that start in the slot that became free."""
        turn = self.turn(ends={id: outcome}, free=free)
        assert turn.settled == ["ok"]
        return [start.id for start in turn.starts]


def arrival(
    id: str, job: str, key: str = "", priority: int = 1, attempt: int = 0, grant: str = "", **more: Any
) -> Arrival:
    return Arrival(id, attempt, job, key, priority, grant, None, "q", "", id.encode(), **more)


class Case(Shop):
    sweeps = 1000

    def sweep(self, worker: str = "w1") -> Any:
        self.sweeps += 1
        return self.ledger.sweep(worker, self.sweeps, 5000)

    def dies(self, worker: str, found_by: str = "w1") -> Any:
        self.redis.zadd(key_of(PREFIX, "leases"), {worker: -1})
        self.redis.hincrby(key_of(PREFIX, "ledger"), "clock", 1)
        return self.sweep(found_by)

    def status(self) -> Any:
        return self.ledger.read_status(100, 100)

    def observe(self, come: list[Arrival], free: int = 0) -> Turn:
        self.number += 1
        return self.ledger.turn("w1", self.number, "observe", free, [], come)

    def takes_workers_down(self, id: str = "bad", job: str = "bad") -> None:
        """A run that was there when three workers died: it has to be tried alone."""
        grant = ""
        for number in range(3):
            doomed = f"doomed{number}"
            self.register(doomed)
            if number:
                self.ledger.leave("next")
            assert self.turn(worker=doomed, come=[arrival(id, job, grant=grant)]).answers[0].what == "start"
            if number < 2:
                self.register("next")
            grants = self.dies(doomed).grants
            grant = grants[0].number if grants else ""
        assert self.redis.hgetall(key_of(PREFIX, "alone")) == {id: ""}


class Desk(Case):
    """Whoever asks."""

    def chain(self, name: str, kind: str = "job") -> list[Step]:
        return steps(self.ledger.explain(kind, name))

    def root(self, name: str, kind: str = "job", **around: Any) -> Cause:
        found = self.ledger.explain(kind, name, exists=True)
        chain = steps(found)
        cause = RootCauseFinder(found, Surroundings(**around)).root(chain)
        assert links(chain)
        assert summary(name, chain, cause).endswith(cause.text)
        return cause

    def why(self, name: str, kind: str = "job", **around: Any) -> tuple[str, str]:
        cause = self.root(name, kind, **around)
        return cause.code, cause.job

    def path(self, name: str, kind: str = "job") -> list[str]:
        """Runs, and jobs without a run that anybody asked for."""
        return [step.run.id if step.run else step.job for step in self.chain(name, kind)]

    def told(self, name: str) -> Any:
        return (self.ledger.explain("job", name) or {})["jobs"][name]

    def silence(self, worker: str, ms: int) -> None:
        self.redis.hincrby(key_of(PREFIX, "worker", worker), "heartbeat", -ms)

    def fire(self, job: str, id: str = "fired", name: str = "entry", **more: Any) -> str:
        """An entry of the schedule asks for a run. Returns the term."""
        term = self.ledger.lead("s1", "s1@host", 10_000, "").term
        now = int(self.redis.time()[0]) * 1000
        adoption = Adoption(name, name, job, job, "every 5 s", "code", None)
        [adopted] = self.ledger.adopt_entries(term, now, [adoption]) or []
        due = adopted.last_ms + 1
        fire = Fire(name, adopted.generation, due, due + 60_000, 0, job, id, 60_000, message=b"message", queue="q")
        assert self.ledger.dispatch(term, [replace(fire, **more)]).answers == [("fired",)]
        return term
