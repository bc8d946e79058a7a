"""Stock ``celery beat`` processes, and a stage on which they fire."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_orchestration.job.app import read_settings
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.ledger.records import key_of
from support.invariants import Fired, fired_twice, fires_of
from support.stage import Stage
from support.wait import until
from support.workers import BACKEND_VARIABLE, BROKER_VARIABLE, CeleryProcess, celery_command

SCHEDULED = "support.apps.scheduled"
#: The length of a term in the app, in seconds; and the longest time on a busy machine until another scheduler leads and
#: fires after the leader died.
TERM, TAKEOVER = 1.5, 15.0
#: What a scheduler logs when it knows whether it leads.
_SETTLED = ("This scheduler leads", "Standing by:")


class SchedulerProcess(CeleryProcess):
    """A stock ``celery beat`` process."""

    def __init__(
        self,
        app: str,
        *,
        broker_url: str,
        backend_url: str,
        directory: Path,
        loglevel: str = "INFO",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            f"beat-{uuid.uuid4().hex[:8]}",
            celery_command(app, "beat", "-l", loglevel, *options),
            directory=directory,
            env={BROKER_VARIABLE: broker_url, BACKEND_VARIABLE: backend_url, **(env or {})},
            ready_prompt="beat: Starting...",
        )

    @property
    def known_as(self) -> str:
        """Its name in the ledger."""
        return f"beat-{self.pid}@{socket.gethostname()}"

    def wait_settled(self, timeout: float = 60) -> None:
        """Waits until it leads or stands by."""

        def settled() -> bool:
            if not self.running:
                raise AssertionError(f"{self.name} ended ({self.returncode}):\n{self.tail()}")
            return any(prompt in self.log_of_this_start() for prompt in _SETTLED)

        until(settled, timeout, f"{self.name} leads or stands by", poll=0.05)


@dataclass(frozen=True)
class Lead:
    name: str
    term: str
    since: int
    until: int


class ScheduleStage(Stage):
    """A schedule of the test's own, its schedulers and workers, and its fires."""

    def __init__(self, *args: Any, directory: Path, schedule: Mapping[str, Any], **options: Any) -> None:
        env = {"TEST_SCHEDULE": json.dumps(schedule), **options.pop("env", {})}
        super().__init__(*args, module=options.pop("module", SCHEDULED), env=env, **options)
        self.schedulers: list[SchedulerProcess] = []
        self._directory = directory
        self._cleanups = contextlib.ExitStack()
        self._reported: Callable[[SchedulerProcess], None] = lambda _: None

    # -- schedulers

    def beat(self, *, settled: bool = True, env: Mapping[str, str] | None = None, **options: Any) -> SchedulerProcess:
        process = SchedulerProcess(
            options.pop("module", self.module),
            broker_url=options.pop("broker_url", self.broker.broker_url),
            backend_url=options.pop("backend_url", self.broker.backend_url),
            directory=self._directory,
            env={**self.history.env(), **self.env, **(env or {})},
            **options,
        )
        self._cleanups.callback(process.cleanup)
        self._reported(process)
        self.schedulers.append(process)
        process.start()
        if settled:
            process.wait_settled()
        return process

    def stop_all(self) -> None:
        for process in self.schedulers:
            if process.running:
                process.wait_settled()  # asked to stop while it starts, it ends, but not with 0
                assert process.stop() == 0, f"{process.name} ended with {process.returncode}"

    @property
    def lead(self) -> Lead | None:
        """The scheduler that leads by the ledger's record, if any."""
        found = self.ledger.hgetall(key_of(self.prefix, "leader"))
        if not found or int(found["until"]) < self.now:
            return None
        return Lead(found["name"], found["term"], int(found["since"]), int(found["until"]))

    def leader(self, *, but: SchedulerProcess | None = None, timeout: float = TAKEOVER) -> SchedulerProcess:
        """Waits until one of the schedulers leads, another one than ``but``."""

        def found() -> SchedulerProcess | None:
            lead = self.lead
            leaders = [one for one in self.schedulers if lead and one.running and one.known_as == lead.name]
            return leaders[0] if leaders and leaders[0] is not but else None

        return until(found, timeout, f"somebody leads{' but ' + but.name if but else ''}")

    # -- entries

    def key(self, entry: str) -> str:
        return key_of(self.prefix, "entry", keys.entry(entry))

    def entry(self, name: str) -> dict[str, str]:
        """Its record in the ledger."""
        return self.ledger.hgetall(self.key(name))

    @property
    def now(self) -> int:
        """Redis's time, ms."""
        seconds, micros = self.ledger.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def was_last_due(self, name: str, seconds_ago: float) -> int:
        """As if the entry had existed before, and had fired this long ago. Returns that time, in ms."""
        last = self.now - round(seconds_ago * 1000)
        self.ledger.hsetnx(self.key(name), "generation", "1")
        self.ledger.hset(self.key(name), "last", last)
        return last

    def fires(self, entry: str) -> list[Fired]:
        """The fires whose runs have ended, and those that made no run, by their due times."""
        return [one for one in fires_of(self.app) if one.entry == entry]

    def ran(self, entry: str) -> list[Fired]:
        return [one for one in self.fires(entry) if one.made_a_run]

    def wait_fires(self, entry: str, count: int = 1, *, after: int = 0, timeout: float = 30) -> list[Fired]:
        """Waits until this many runs of it have ended that were due after that time (ms)."""
        wanted = f"{count} runs of {entry} ended"
        return until(lambda: found if len(found := self._since(entry, after)) >= count else [], timeout, wanted)

    def _since(self, entry: str, after: int) -> list[Fired]:
        return [one for one in self.ran(entry) if one.due > after]

    def executions(self, job: str) -> list[str]:
        """Run ids, in the order of their starts."""
        return [event.run for event in self.history.started(job)]

    # -- what must hold

    def nothing_fired_twice(self) -> None:
        """I3; and if no worker died, no run was executed twice."""
        assert not (twice := fired_twice(self.app)), twice
        executions = Counter(event.run for event in self.history.started() if event.job in jobs_of(self.app))
        assert self.deaths or not (twice := [run for run, times in executions.items() if times > 1]), twice

    def all_fired_well(self) -> None:
        """The schedulers end: each fire has run, once, and nothing is left over."""
        self.stop_all()
        self.all_well()
        self.nothing_fired_twice()
        runs = Counter(one.entry for one in fires_of(self.app) if one.made_a_run)
        fired = {name: int(self.entry(name).get("fires", 0)) for name in self.job_entries()}
        assert fired == {name: runs[name] for name in fired}, f"fired {fired}, ended {runs}"

    def job_entries(self) -> list[str]:
        """Names of the entries that fire jobs."""
        with contextlib.closing(Ledger.of(self.app, read_settings(self.app))) as ledger:
            return [found["name"] for _, found in ledger.read_entries(0, 100_000) if "job" in found]

    @contextlib.contextmanager
    def ending(self, reported: Callable[[SchedulerProcess], None]) -> Iterator[ScheduleStage]:
        """Ends its schedulers with the block, whatever happens in the test."""
        self._reported = reported
        with self._cleanups:
            yield self
