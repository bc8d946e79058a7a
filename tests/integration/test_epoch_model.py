"""Epochs against the model: Redis is restarted, emptied, or forgets its last writes in the midst of everything else.

Whatever it forgot: what the workers run is running with the fence it had, what they do not run is not, and all counts
are right. Until the epoch opens nothing starts.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from celery_orchestration.ledger import Arrival, Claim, Claimed, NewEpoch, Presence
from celery_orchestration.ledger.records import key_of
from integration.test_ledger_model import NAMES, PREFIX, QUEUES, LedgerMachine, _redis, documents
from support.model import Model, Past, Run, Worker

__all__ = ["_redis"]


class EpochMachine(LedgerMachine):
    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[str, str] = {}
        self.kept: tuple[dict[str, tuple[bytes, int]], Model, dict[str, list[str]]] | None = None
        self.raw = self.redis.__class__.from_url(self.redis_url(), decode_responses=False)

    #: A run that is claimed brings the time of its start, which would have to become earlier, too.
    time_passes = None  # type: ignore[assignment]

    def redis_url(self) -> str:
        options = self.redis.connection_pool.connection_kwargs
        return f"redis://{options['host']}:{options['port']}/0"

    def teardown(self) -> None:
        if hasattr(self, "model") and self.model.closed:
            self.opens()
        super().teardown()
        self.raw.close()

    def register(self, name: str, queues: tuple[str, ...], slots: int) -> None:
        """A process of its own each time: it has nothing to claim."""
        self.announce(Worker(name, slots, queues), "")

    def announce(self, worker: Worker, epoch: str) -> str:
        found = self.ledger.register(
            Presence(
                worker=worker.name, name=worker.name, host="h", pid=1, slots=worker.slots, kind="prefork",
                queues=worker.queues, release="release", mode="enforce", lease_ms=3_600_000, owner="test",
                done_ms=3_600_000, policies="{}", jobs=tuple(NAMES),
            ),
            epoch,
        )  # fmt: skip
        self.model.workers[worker.name] = worker
        if not epoch:
            self.epochs[worker.name] = found.epoch
        return found.epoch

    def fence(self, id: str, fence: str) -> None:
        super().fence(id, fence)
        self.model.runs[id].fence = int(fence)

    # -- rules ----------------------------------------------------------------------------------------------

    @rule()
    def everything_is_kept(self) -> None:
        """By a replica, or on disk: Redis may come back like that."""
        dump = {key: (self.raw.dump(key), max(self.raw.pttl(key), 0)) for key in self.raw.keys("*")}
        self.kept = dump, copy.deepcopy(self.model), copy.deepcopy(self.grants)

    @rule(what=st.sampled_from(["restarted", "emptied", "went back", "went back"]))
    def redis_forgets(self, what: str) -> None:
        workers, running = dict(self.model.workers), self.running()
        if what == "went back":
            if self.kept is None:
                return
            self.go_back()
        elif what == "emptied":
            self.empty()
        if what != "emptied":
            self.redis.hset(key_of(PREFIX, "ledger"), "server", "another one")
            self.epoch_is_noticed(sorted(self.model.workers))
        self.model.closed = True
        told = {name: self.announce(worker, self.epochs[name]) for name, worker in sorted(workers.items())}
        if what != "restarted":
            # What was kept may be of other policies.
            for run in self.model.runs.values():
                run.first = run.first and self.model.has_dependents(run.job)
            assert self.ledger.install_policies("release", self.model.cap, documents(self.model.jobs))
            self.model.forget_first()
        for name in sorted(workers):
            self.claim(name, told[name], running[name])
        self.dead = sorted(self.model.workers.keys() - workers.keys())
        for name in self.dead:
            # In what was kept it was alive.
            self.redis.zadd(key_of(PREFIX, "leases"), {name: -1})
            del self.model.workers[name]
            self.model.take_runs(name, counted="worker")
        self.sweep()

    @rule(data=st.data(), before=st.integers(0, 4), after=st.integers(1, 4))
    def redis_goes_back(self, data: st.DataObject, before: int, after: int) -> None:
        """With work before and after what it kept."""
        self.work(data, before)
        self.everything_is_kept()
        self.work(data, after)
        self.redis_forgets("went back")

    def work(self, data: st.DataObject, turns: int) -> None:
        for _ in range(turns):
            self.turn(data, data.draw(st.integers(0, 2)), False)

    def running(self) -> dict[str, list[Run]]:
        runs = copy.deepcopy(list(self.model.runs.values()))
        return {name: [run for run in runs if run.worker == name] for name in self.model.workers}

    def epoch_is_noticed(self, workers: list[str]) -> None:
        for name in workers:
            self.numbers += 1
            with pytest.raises(NewEpoch):
                self.ledger.sweep(name, self.numbers, 1)
            with pytest.raises(NewEpoch):
                self.ledger.turn(name, self.numbers, "enforce", 1, [], [])

    def go_back(self) -> None:
        assert self.kept is not None
        dump, model, grants = self.kept
        clock, jobs, cap = self.model.clock, self.model.jobs, self.model.cap
        self.redis.flushdb()
        for key, (value, ttl) in dump.items():
            self.raw.restore(key, ttl, value)
        self.model, self.grants = copy.deepcopy(model), copy.deepcopy(grants)
        self.model.clock, self.model.jobs, self.model.cap = clock, jobs, cap

    def empty(self) -> None:
        self.redis.flushdb()
        old = self.model
        self.model = Model(old.jobs, old.cap)
        self.model.past = {name: Past() for name in old.jobs}
        self.model.clock = old.clock
        self.kept = None

    def claim(self, name: str, epoch: str, runs: list[Run]) -> None:
        claims = [
            Claim(
                Arrival(
                    run.task, run.attempt, run.job, run.key, 3 - run.rank[0], "", None, *QUEUES[run.job],
                    self.message_of(run.id), publication=run.publication,
                ),
                str(run.fence),
                run.id,
            )
            for run in runs
        ]  # fmt: skip
        found = self.ledger.claim_runs(name, epoch, [], claims)
        back = self.model.return_all_but(name, {(run.id, run.publication) for run in runs})
        expected = [self.model.take_back(name, run) for run in runs]
        # Runs that must not run again count as failures, and may disable their job.
        assert replace(found, disabled=[]) == Claimed(expected, 0, back)
        assert self.ledger.claim_runs(name, epoch, [], claims) == Claimed(expected, 0, 0)
        self.epochs[name] = epoch

    @rule()
    @precondition(lambda self: self.model.closed)
    def opens(self) -> None:
        """Its time has passed."""
        self.redis.hset(key_of(PREFIX, "ledger"), "opens", 0)
        self.model.closed = False
        self.sweep()


EpochMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)
TestEpochs = EpochMachine.TestCase
