"""The supervisor of pools on one machine: it claims places, and keeps a worker on each.

Call :meth:`Supervisor.start`, :meth:`~Supervisor.step` repeatedly, and :meth:`~Supervisor.stop`, all from one thread,
which must live as long as the workers (see ``worker_process``). There is no global state: a process may have any number
of supervisors.

A step never raises because of Redis, the broker or a worker. During a Redis outage, workers stay as they are.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from celery import Celery

from celery_orchestration.errors import ConfigurationError, LedgerError, LedgerUnavailable, Superseded
from celery_orchestration.job.app import owner_of, read_settings
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.pool import Pool, pool_problems
from celery_orchestration.ledger import Ledger, Place
from celery_orchestration.pools.backlog import Backlog
from celery_orchestration.pools.command import worker_command, worker_environment
from celery_orchestration.pools.machine import Machine, machine
from celery_orchestration.pools.place_worker import Launch, PlaceWorker
from celery_orchestration.pools.places import Places, identity
from celery_orchestration.pools.pool_scaling import PoolScaling
from celery_orchestration.pools.pool_snapshot import PoolReader
from celery_orchestration.pools.stall import Stalls
from celery_orchestration.pools.table import Table, queues_of, shared
from celery_orchestration.pools.worker_process import OnLine

#: Seconds that workers get to drain, unless orchestration_drain_seconds is set.
DRAIN_SECONDS = 30.0
#: Seconds between two steps, and between two reads of the pools.
STEP_SECONDS, LOOK_SECONDS = 0.25, 1.0
#: An older answer of the broker does not count.
OLDEST_READING_SECONDS = 10.0
STATE_DIRECTORY = Path(".orchestration")

PREFIX = "pools"


class Supervisor:
    def __init__(
        self,
        app: Celery,
        app_name: str,
        table: Table,
        jobs: Mapping[str, Policy],
        on_line: OnLine,
        *,
        name: str | None = None,
        state_directory: Path = STATE_DIRECTORY,
        worker_options: Sequence[str] = (),
        here: Machine | None = None,
    ) -> None:
        """`app_name`: the workers' ``celery -A``. `on_line`: gets a prefix and a line, from any thread: the output of
        workers, and with prefix ``pools`` the supervisor's own messages. `worker_options`: more options of every
        worker."""
        self._app, self._app_name, self._jobs = app, app_name, jobs
        self._settings = read_settings(app)
        if self._settings.mode == "off":
            raise ConfigurationError("pools need the ledger, and orchestration_mode is off: start workers by hand")
        self._on_line = on_line
        self._worker_options = list(worker_options)
        self.machine = here or machine()
        self._host = socket.gethostname()
        self.identity = identity(name, state_directory, self._settings.namespace)
        self._ledger = Ledger.of(app, self._settings)
        self.places = Places(self._ledger, self._settings, self.identity.name)
        self._pools = {name: PoolScaling(name, pool) for name, pool in table.items()}
        self._reader = PoolReader(self._ledger, self._queues())
        self._backlog = Backlog(app, self._all_queues, LOOK_SECONDS)
        self._stalls = Stalls(app)
        self.place_workers: dict[tuple[str, int], PlaceWorker] = {}
        self._renew_at = self._look_at = 0.0
        self._renewed = False
        self._ledger_problem = ""
        #: It stops: it claims no more places, and its workers drain.
        self.stopping = False
        self.superseded: Superseded | None = None

    # -- what callers do ----------------------------------------------------------------------------

    def start(self) -> None:
        """Raises if the ledger belongs to another app. Waits for a ledger that does not answer."""
        try:
            self._ledger.check(owner_of(self._app))
        except LedgerUnavailable as exc:
            self._say_ledger_problem(exc)
        for problem in pool_problems(self.table, self._jobs):
            self.say(problem)
        if not self.identity.lasting:
            self.say("The state directory cannot be written to: after a restart the places come back after one lease")
        for name, pool in self.table.items():
            if lacks := self.machine.lacks(pool.cpus, pool.memory_mb):
                self.say(f"No worker of pool {name!r} can start on this machine: {lacks}")
        self._backlog.start()

    def step(self) -> float:
        """Do the work that is due. Returns the seconds until the next step."""
        now = monotonic()
        self._step_workers(now)
        try:
            if now >= self._renew_at and self.superseded is None:
                self._renew_at = now + self._settings.sweep_interval_seconds
                self._renew()
                self._ledger_problem = ""
            if now >= self._look_at and self._renewed and self.superseded is None:
                self._look_at = now + LOOK_SECONDS
                self._look(now)
        except Superseded as exc:
            self.superseded = exc
            self.places.held.clear()  # the other process has these places, with the same fences
            self.say(str(exc))
            self.drain()
        except LedgerError as exc:
            self._say_ledger_problem(exc)
        return STEP_SECONDS

    def drain(self) -> None:
        """All workers drain within ``drain_seconds``, and no new ones start."""
        if not self.stopping:
            self.stopping = True
            self._renew_at = 0.0
            self.say("Draining all workers")
        for place_worker in self.place_workers.values():
            place_worker.leave("the supervisor stops", self.drain_seconds)

    def stop_now(self) -> None:
        """End running tasks; they go back to their queues."""
        self.drain()
        for place_worker in self.place_workers.values():
            place_worker.stop_now()

    @property
    def is_over(self) -> bool:
        return self.stopping and not self.place_workers

    def stop(self) -> None:
        """At the very end: kill remaining workers and give up the places."""
        for place_worker in self.place_workers.values():
            place_worker.kill()
        self.places.leave_all()
        self._backlog.stop()
        self._ledger.close()
        self.identity.release()

    def reload(self, table: Table, problems: Sequence[str] = ()) -> None:
        """Use another table of pools: workers whose options changed are replaced one after the other, and those that
        keep dying are restarted at once. `problems`: mismatches between the table and the jobs of the current code."""
        pools = {name: self._pools.get(name) or PoolScaling(name, pool) for name, pool in table.items()}
        for name, pool in table.items():
            pools[name].pool = pool
        self._pools = pools
        self._reader.queues = self._queues()
        for (name, _), place_worker in self.place_workers.items():
            if name not in pools:
                place_worker.leave("its pool is no longer in the table", None)
            else:
                place_worker.try_at_once()
        self._renew_at = self._look_at = 0.0
        self.say(f"The configuration was read again; pools: {', '.join(sorted(pools)) or 'none'}")
        for problem in problems:
            self.say(problem)

    def restart_workers(self, why: str) -> None:
        """Replace all workers: each drains, and another starts on its place."""
        for place_worker in self.place_workers.values():
            place_worker.replace(why, self.drain_seconds)

    @property
    def table(self) -> dict[str, Pool]:
        return {name: scaling.pool for name, scaling in self._pools.items()}

    @property
    def drain_seconds(self) -> float:
        configured = self._settings.drain_seconds
        return DRAIN_SECONDS if configured is None else configured

    def say(self, text: str) -> None:
        self._on_line(PREFIX, text)

    # -- places and their workers -------------------------------------------------------------------

    def _step_workers(self, now: float) -> None:
        for key, place_worker in list(self.place_workers.items()):
            for text in place_worker.step(now):
                self.say(text)
            if place_worker.is_over:
                del self.place_workers[key]
                self._leave(place_worker.place)

    def _leave(self, place: Place) -> None:
        try:
            if self.places.held.get((place.pool, place.number)) == place:
                self.places.leave(place)
        except LedgerError as exc:
            self._say_ledger_problem(exc)

    def _launch(self, place: Place) -> Launch:
        """How to start a worker on this place, by the current table."""
        scaling = self._pools.get(place.pool)
        pool = scaling.applied if scaling is not None else Pool()
        command = worker_command(self._app, self._app_name, place, pool, self._worker_options)
        return Launch(command, worker_environment(place, self.drain_seconds), pool.nice)

    def _renew(self) -> None:
        about = {
            "host": self._host,
            "pid": os.getpid(),
            "tables": {name: shared(pool) for name, pool in self.table.items()},
            "report": self._report(),
        }
        info = {key: place_worker.info() for key, place_worker in self.place_workers.items()}
        leaving, void, found = self.places.renew(about, info)
        self._renewed = True
        for place in leaving:
            if place_worker := self.place_workers.get((place.pool, place.number)):
                place_worker.leave("the pool shrinks", None)
        for place in void:
            if place_worker := self.place_workers.get((place.pool, place.number)):
                self.say(f"Place {place.number} of pool {place.pool!r} is no longer ours: its worker here drains")
                place_worker.leave("its place is no longer ours", self.drain_seconds)
        for place in found:
            self._take_over(place)

    def _take_over(self, place: Place) -> None:
        """The previous process of this name had the place: its worker drains, or is gone."""
        if self.stopping or place.pool not in self._pools:
            return self._leave(place)
        self.say(f"Place {place.number} of pool {place.pool!r} is still ours from the previous process")
        place_worker = self._occupy(place)
        place_worker.wait_for_last(place)
        if place.leaving:
            place_worker.leave("the pool shrinks", None)
        return None

    def _occupy(self, place: Place) -> PlaceWorker:
        """Keep a worker on this place. If one still drains there, because another supervisor had the place for a while,
        the next one starts after it."""
        key = place.pool, place.number
        if key in self.place_workers:
            self.place_workers[key].stay(place)
        else:
            self.place_workers[key] = PlaceWorker(place, self._launch, self._on_line)
        return self.place_workers[key]

    # -- scaling --------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        reading = self._backlog.reading
        is_fresh = reading is not None and now - reading.at < OLDEST_READING_SECONDS
        queued = reading.queues if reading is not None and is_fresh else None
        snapshots = self._reader.read(self.table, queued, self._backlog.problem or "the broker does not answer")
        for name, snapshot in snapshots.items():
            scaling = self._pools[name]
            for text in scaling.seen(snapshot, self.identity.name):
                self.say(text)
            alive = {(one.name.partition("@")[0], one.pid) for one in snapshot.workers if not one.dead}
            for key, place_worker in self.place_workers.items():
                if key[0] == name:
                    place_worker.note_alive(alive)
            if self.stopping:
                continue
            message, asked_to_stop = scaling.decide(self._ledger, self.identity.name, now)
            if message:
                self.say(message)
            if asked_to_stop:
                self._renew_at = 0.0
            self._replace_changed(name)
            self._claim(scaling, now)
        if not self.stopping:
            running = {key: place_worker for key, place_worker in self.place_workers.items() if place_worker.is_running}
            for key, why in self._stalls.stalled(running, snapshots, self.table, now):
                self.say(f"Worker {self.place_workers[key].name} is stalled: {why}. It drains and is replaced")
                self.place_workers[key].note_stall(why)
                self.place_workers[key].replace("it was stalled", self.drain_seconds)

    def _claim(self, scaling: PoolScaling, now: float) -> None:
        for _ in range(scaling.missing(now)):
            scaling.lacks = self.machine.lacks(scaling.pool.cpus, scaling.pool.memory_mb, *self._used())
            mine = len([key for key in self.places.held if key[0] == scaling.name])
            if scaling.lacks or not scaling.is_our_turn(mine, now):
                return
            place = self.places.claim(scaling.name)
            if place is None:
                return
            self._occupy(place)

    def _used(self) -> tuple[float, float]:
        """Processors and memory that the workers of this machine take, of all supervisors."""
        counted = set(self.places.held).union(*(scaling.on_host(self._host) for scaling in self._pools.values()))
        pools = [self._pools[name].pool for name, _ in counted if name in self._pools]
        return sum(pool.cpus or 0.0 for pool in pools), sum(pool.memory_mb or 0.0 for pool in pools)

    def _replace_changed(self, name: str) -> None:
        """After a reload, replace one worker of a pool at a time."""
        of_pool = [place_worker for key, place_worker in self.place_workers.items() if key[0] == name]
        if any(place_worker.is_changing for place_worker in of_pool):
            return
        for place_worker in of_pool:
            if place_worker.has_other_command():
                self.say(f"Worker {place_worker.name} is replaced: its options changed")
                place_worker.replace("its options changed", None)
                return

    # -- for people ----------------------------------------------------------------------------------

    def _report(self) -> str:
        problems = [problem for place_worker in self.place_workers.values() for problem in place_worker.problems()]
        for name, scaling in self._pools.items():
            problems += scaling.differences
            if scaling.lacks:
                problems.append(f"pool {name!r} has fewer workers than wanted: {scaling.lacks} on {self._host}")
        return json.dumps({"problems": problems, "stopping": self.stopping})

    def _say_ledger_problem(self, exc: Exception) -> None:
        text = f"The ledger at {self._ledger.address} does not answer: {str(exc).rstrip('.')}. Workers stay as they are"
        if text != self._ledger_problem:
            self._ledger_problem = text
            self.say(text)

    def _queues(self) -> dict[str, list[str]]:
        return {name: queues_of(self._app, name) for name in self._pools}

    def _all_queues(self) -> list[str]:
        return [queue for queues in list(self._reader.queues.values()) for queue in queues]
