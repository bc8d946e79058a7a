"""The servers and workers of a soak, the faults that happen to them, and the workers that replace dead ones."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak.journal import Journal
from soak.plan import LEASE, Fault, Plan
from support.servers import RabbitServer, RedisServer
from support.verbs import make_unknown
from support.wait import until
from support.workers import Broker, WorkerProcess

APP = "support.apps.soak"
#: Seconds for a worker that was asked to stop.
STOP = 30.0
#: How Celery 5.7 ends, with plain tasks as well, when its broker's Redis dies while it has unacknowledged messages.
GIVES_UP = "Unrecoverable error: AttributeError(\"'NoneType' object has no attribute 'hostname'\")"

Later = Callable[[float, Callable[[], None]], None]


class Crew:
    """``later(seconds, function)`` calls a function after a time."""

    def __init__(
        self, plan: Plan, directory: Path, journal: Journal, later: Later, rabbit: RabbitServer | None = None
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._journal = journal
        self._later = later
        self._rabbit = rabbit
        self._cleanups = contextlib.ExitStack()
        self.broker_is_up = True
        self.ledger_is_up = True
        self.workers: list[WorkerProcess] = []
        self._leaving: list[tuple[WorkerProcess, float]] = []
        #: When each process was last seen alive.
        self.seen: dict[int, float] = {}
        self.env: dict[str, str] = {}

    def __enter__(self) -> Crew:
        with contextlib.ExitStack() as started:
            started.enter_context(self._cleanups)
            self.broker, self.ledger_server = self._servers()
            self.ledger = self.ledger_server.client(int(self.broker.ledger_url.rpartition("/")[2]))
            started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanups.close()

    def start_workers(self, env: dict[str, str]) -> None:
        self.env = env
        for place in range(len(self._plan.places)):
            self.workers.append(self._worker(place))
        for worker in self.workers:
            worker.wait_ready(60)

    def _redis(self, **options: Any) -> RedisServer:
        server = RedisServer(self._directory, **options)
        self._cleanups.callback(server.cleanup)
        return server.start()

    def _servers(self) -> tuple[Broker, RedisServer]:
        """A Redis that is killed keeps every write that it has acknowledged."""
        durable = self._redis(name="ledger", appendonly=True)
        if self._plan.topology == "together":
            return Broker("redis", durable.url(0), durable.url(1), durable.url(0), durable), durable
        # A client that sends wants to subscribe to the result, which it cannot do while that Redis is down.
        other = self._redis(name="other")
        if self._plan.topology == "apart":
            return Broker("redis", other.url(0), other.url(1), durable.url(0), other), durable
        rabbit = self._rabbit
        if rabbit is None:
            rabbit = RabbitServer(self._directory)
            self._cleanups.callback(rabbit.cleanup)
            rabbit.start()
        vhost = self._cleanups.enter_context(rabbit.fresh_vhost())
        return Broker("rabbitmq", rabbit.url(vhost), other.url(1), durable.url(0), other, rabbit), durable

    def _worker(self, place: int) -> WorkerProcess:
        worker = WorkerProcess(
            APP,
            broker_url=self.broker.broker_url,
            backend_url=self.broker.backend_url,
            directory=self._directory,
            name=f"place{place}",
            pool=self._plan.places[place].pool,
            concurrency=self._plan.places[place].concurrency,
            env=self.env,
        )
        self._cleanups.callback(worker.cleanup)
        worker.start()
        self._journal.write("started", worker=worker.hostname, pid=worker.pid)
        return worker

    # -- what befalls them

    def befall(self, fault: Fault) -> None:
        self._journal.write("fault", what=fault.what, place=fault.worker, seconds=fault.seconds)
        faults = {
            "kill_child": self._kill_child,
            "kill_worker": self._kill_worker,
            "end_worker": self._end_worker,
            "stop_worker": self._stop_worker,
            "stop_main": self._stop_main,
            "kill_ledger": self._kill_ledger,
            "stop_ledger": self._stop_ledger,
            "cut_broker": self._cut_broker,
            "flush_scripts": self._flush_scripts,
        }
        faults[fault.what](fault)

    def _struck(self, worker: WorkerProcess, **fields: Any) -> None:
        self._journal.write("struck", worker=worker.hostname, **fields)

    def _died(self, deaths: dict[int, float]) -> None:
        for pid, at in deaths.items():
            self._journal.write("death", pid=pid, at=at)

    def _kill_child(self, fault: Fault) -> None:
        worker = self.workers[fault.worker]
        children = worker.children()
        if children:
            pid = children[fault.child % len(children)]
            self._struck(worker, pid=pid)
            worker.kill_child(pid)
            self._died({pid: worker.deaths[pid]})

    def _kill_worker(self, fault: Fault) -> None:
        worker = self.workers[fault.worker]
        self._struck(worker)
        self._died(worker.kill())
        self.workers[fault.worker] = self._worker(fault.worker)

    def _end_worker(self, fault: Fault) -> None:
        """As a deployment does it: the worker is stopped, and the next one starts at the same time."""
        worker = self.workers[fault.worker]
        self._struck(worker)
        worker.signal(signal.SIGTERM)
        self._leaving.append((worker, time.monotonic()))
        self.workers[fault.worker] = self._worker(fault.worker)

    def _stop_worker(self, fault: Fault, whole: bool = True) -> None:
        worker = self.workers[fault.worker]
        self._journal.write("stopped", worker=worker.hostname)
        worker.pause(whole=whole)
        self._later(fault.seconds, lambda: self._continue(worker))

    def _stop_main(self, fault: Fault) -> None:
        """Its children continue, but nobody renews their lease."""
        self._stop_worker(fault, whole=False)

    def _continue(self, worker: WorkerProcess) -> None:
        worker.resume()
        self._journal.write("continued", worker=worker.hostname)

    def _kill_ledger(self, fault: Fault) -> None:
        self.ledger_is_up = False
        self.broker_is_up = self._plan.topology != "together"
        self.ledger_server.kill()
        self._later(fault.seconds, self._start_ledger)

    def _stop_ledger(self, fault: Fault) -> None:
        """Connections stay open, and nothing answers."""
        self.ledger_is_up = False
        self.broker_is_up = self._plan.topology != "together"
        self.ledger_server.pause()
        self._later(fault.seconds, self._start_ledger)

    def _start_ledger(self) -> None:
        if self.ledger_server.running:
            self.ledger_server.resume()
        else:
            self.ledger_server.start()
        self.ledger_is_up = self.broker_is_up = True
        self._journal.write("ledger_is_back")

    def _cut_broker(self, _: Fault) -> None:
        """Closes every connection to the broker; if the ledger is in the same Redis, also those to the ledger."""
        if self.broker.rabbit is not None:
            self.broker.rabbit.close_connections()
        elif self.broker_is_up:
            with self.broker.redis.client() as client:
                client.client_kill_filter(_type="normal")

    def _flush_scripts(self, _: Fault) -> None:
        if self.ledger_is_up:
            make_unknown(self.ledger)

    # -- looking after them

    def check(self) -> None:
        now = time.monotonic()
        for place, worker in enumerate(self.workers):
            if not worker.running:
                self._replace(place, worker)
        for worker in [*self.workers, *(worker for worker, _ in self._leaving)]:
            for pid in (worker.pid, *worker.children()):
                self.seen[pid] = now
        for leaving in list(self._leaving):
            worker, since = leaving
            if not worker.running:
                self._leaving.remove(leaving)
            elif now - since > STOP + LEASE:
                self._journal.write("did_not_end", worker=worker.hostname)
                self._leaving.remove(leaving)

    def _replace(self, place: int, worker: WorkerProcess) -> None:
        """A job that kills its process has ended a worker with threads; or Celery ended it; or it is a bug."""
        self._struck(worker)
        self._died(worker.kill())
        killed = any(entry["kind"] == "dies" and entry["pid"] == worker.pid for entry in self._journal.read())
        if not killed:
            celerys = GIVES_UP in worker.log_of_this_start() and self._plan.topology != "rabbitmq"
            kind = "ended_by_celery" if celerys else "ended_by_itself"
            self._journal.write(kind, worker=worker.hostname, code=worker.returncode)
        self.workers[place] = self._worker(place)

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
            self._leaving.append((worker, time.monotonic()))
        for worker, _ in self._leaving:
            try:
                until(lambda worker=worker: not worker.running, STOP, poll=0.1)
            except AssertionError:
                self._journal.write("did_not_end", worker=worker.hostname)
