"""A plan is carried out on real servers and workers, until everything came to rest; what happened is the story."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import chain, chord, group
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_orchestration import Orchestration
from celery_orchestration.errors import LedgerError
from celery_orchestration.task import jobs_of
from soak.checks import REDELIVERY
from soak.journal import VARIABLE, Journal
from soak.losses import lost_by_broker
from soak.plan import LEASE, Act, Call, Fault, Plan, Run
from soak.story import PLAIN, READY, Rule, Story
from support.history import History
from support.invariants import leftovers, prefix_of, status_of
from support.servers import RabbitServer, RedisServer
from support.wait import until
from support.workers import Broker, WorkerProcess, celery_state_of_its_own, loaded_app

APP = "support.apps.soak"
#: Seconds between two looks at the processes.
TICK = 0.1
#: Seconds for all runs to end once nothing is broken any more, and for a worker that is told to end.
REST, STOP = 75.0, 30.0
#: Seconds of rest after which, in a hurry, what was handed over and has not started counts as lost.
HURRY_AFTER = 4.0
#: Seconds after which the soak itself, had it stood still that long, says that the machine was too busy to tell.
STALL = LEASE / 3
#: How Celery 5.7 ends, plain tasks or not, when its broker's Redis dies while it has unacknowledged messages.
GIVES_UP = "Unrecoverable error: AttributeError(\"'NoneType' object has no attribute 'hostname'\")"
#: The state of a run's record, for those that status() has no reason for.
_STATE = "local s = redis.call('HGET', KEYS[1], 's'); return s and ({cmsgpack.unpack(s)})[3] or false"

Progress = Callable[[str], None]


class Soak:
    def __init__(
        self,
        plan: Plan,
        directory: Path,
        *,
        rabbit: RabbitServer | None = None,
        hurry: bool = False,
        progress: Progress = lambda _: None,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.history = History(directory / "history.jsonl")
        self.journal = Journal(directory / "journal.jsonl")
        self.counts: Counter[str] = Counter()
        self._rabbit = rabbit
        self._hurry = hurry
        self._progress = progress
        self._cleanups = contextlib.ExitStack()
        self._steps: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._begin = 0.0
        self._broker_is_up = True
        self._ledger_is_up = True
        self._workers: list[WorkerProcess] = []
        self._leaving: list[tuple[WorkerProcess, float]] = []
        self._seen: dict[int, float] = {}
        self._outstanding: dict[str, Run] = {}
        self._looked_at = 0

    def run(self) -> Story:
        (self.directory / "plan.json").write_text(self.plan.dumps())
        with self._cleanups, celery_state_of_its_own():
            self._set_up()
            self._carry_out()
            self._rest()
            return self._story(self._leftovers())

    # -- setting up

    def _set_up(self) -> None:
        self._broker, self._ledger_server = self._servers()
        self._env = {**self.history.env(), VARIABLE: str(self.journal.path)}
        if self.plan.topology != "together":
            self._env["TEST_LEDGER"] = self._broker.ledger_url
        if self.plan.max_running is not None:
            self._env["TEST_MAX_RUNNING"] = str(self.plan.max_running)
        self.module: ModuleType = self._cleanups.enter_context(loaded_app(APP, self._broker, self._env))
        self.app = self.module.app
        self._client = self._ledger_server.client(int(self._broker.ledger_url.rpartition("/")[2]))
        for place in range(len(self.plan.places)):
            self._workers.append(self._worker(place))
        for worker in self._workers:
            worker.wait_ready(60)
        self._cleanups.enter_context(_pulse(self.journal))

    def _redis(self, **options: Any) -> RedisServer:
        server = RedisServer(self.directory, **options)
        self._cleanups.callback(server.cleanup)
        return server.start()

    def _servers(self) -> tuple[Broker, RedisServer]:
        """Whatever Redis is killed keeps what it acknowledged."""
        durable = self._redis(name="ledger", appendonly=True)
        if self.plan.topology == "together":
            return Broker("redis", durable.url(0), durable.url(1), durable.url(0), durable), durable
        # A client that sends wants to hear of the result: it could not while that Redis is down.
        other = self._redis(name="other")
        if self.plan.topology == "apart":
            return Broker("redis", other.url(0), other.url(1), durable.url(0), other), durable
        rabbit = self._rabbit
        if rabbit is None:
            rabbit = RabbitServer(self.directory)
            self._cleanups.callback(rabbit.cleanup)
            rabbit.start()
        vhost = self._cleanups.enter_context(rabbit.fresh_vhost())
        return Broker("rabbitmq", rabbit.url(vhost), other.url(1), durable.url(0), other, rabbit), durable

    def _worker(self, place: int) -> WorkerProcess:
        worker = WorkerProcess(
            APP,
            broker_url=self._broker.broker_url,
            backend_url=self._broker.backend_url,
            directory=self.directory,
            name=f"place{place}",
            pool=self.plan.places[place].pool,
            concurrency=self.plan.places[place].concurrency,
            env=self._env,
        )
        self._cleanups.callback(worker.cleanup)
        worker.start()
        self.journal.write("started", worker=worker.hostname, pid=worker.pid)
        return worker

    # -- carrying out

    def _carry_out(self) -> None:
        for call in self.plan.calls:
            self._at(call.at, lambda call=call: self._send(call))
        for act in self.plan.acts:
            self._at(act.at, lambda act=act: self._act(act))
        for fault in self.plan.faults:
            self._at(fault.at, lambda fault=fault: self._fault(fault))
        self._begin = time.monotonic()
        self.journal.write("begin")
        while self._steps:
            due = self._begin + self._steps[0][0]
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(min(wait, TICK))
                self._look()
                continue
            heapq.heappop(self._steps)[2]()

    def _at(self, at: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._steps, (at, next(self._numbers), step))

    def _soon(self, seconds: float, step: Callable[[], None]) -> None:
        self._at(time.monotonic() - self._begin + seconds, step)

    def _send(self, call: Call) -> None:
        if not self._broker_is_up:
            return self._soon(0.2, lambda: self._send(call))
        runs = [run.id for run in call.runs]
        try:
            self._apply(call)
        except (OperationalError, RedisError, OSError) as error:
            # Part of it may have been sent. It is not counted on, and must not break anything either.
            self.journal.write("unsent", runs=runs, error=repr(error))
            self.counts["unsent"] += 1
            return None
        self.journal.write("sent", runs=runs, shape=call.shape)
        self.counts["sent"] += len(runs)
        self._outstanding |= {run.id: run for run in call.runs}
        return None

    def _apply(self, call: Call) -> None:
        if call.shape == "single":
            [run] = call.runs
            self.app.tasks[run.job].apply_async(kwargs=run.kwargs, task_id=run.id, **run.options)
            return
        members = [
            self.app.tasks[run.job].signature(
                kwargs=run.kwargs, immutable=run.job != "gather", options={"task_id": run.id, **run.options}
            )
            for run in call.runs
        ]
        if call.shape == "chord":
            chord(members[:-1])(members[-1])
        else:
            {"chain": chain, "group": group}[call.shape](members).apply_async()

    def _act(self, act: Act) -> None:
        if not (self._broker_is_up and self._ledger_is_up):
            return self._soon(0.2, lambda: self._act(act))
        self.journal.write("act", what=act.what, run=act.run, seconds=act.seconds)
        self.counts[act.what] += 1
        try:
            if act.what == "pause":
                self._soon(act.seconds, self._resume)
                with self._operator() as operator:
                    operator.pause("soak")
            elif act.what == "cancel":
                with self._operator() as operator:
                    operator.cancel(act.run)
            else:
                self.app.control.revoke(act.run, terminate=act.what == "terminate")
        except (LedgerError, OperationalError, RedisError, OSError) as error:
            self.journal.write("act_failed", what=act.what, error=repr(error))
        return None

    def _operator(self) -> contextlib.closing[Orchestration]:
        """A new one each time, as on the command line."""
        return contextlib.closing(Orchestration(self.app))

    def _resume(self) -> None:
        try:
            with self._operator() as operator:
                operator.resume("soak")
        except (LedgerError, OperationalError, RedisError, OSError):
            self._soon(0.5, self._resume)

    # -- breaking

    def _fault(self, fault: Fault) -> None:
        self.journal.write("fault", what=fault.what, place=fault.worker, seconds=fault.seconds)
        self.counts[fault.what] += 1
        getattr(self, f"_{fault.what}")(fault)

    def _struck(self, worker: WorkerProcess, **fields: Any) -> None:
        self.journal.write("struck", worker=worker.hostname, **fields)

    def _died(self, deaths: dict[int, float]) -> None:
        for pid, at in deaths.items():
            self.journal.write("death", pid=pid, at=at)

    def _kill_child(self, fault: Fault) -> None:
        worker = self._workers[fault.worker]
        children = worker.children()
        if children:
            pid = children[fault.child % len(children)]
            self._struck(worker, pid=pid)
            worker.kill_child(pid)
            self._died({pid: worker.deaths[pid]})

    def _kill_worker(self, fault: Fault) -> None:
        worker = self._workers[fault.worker]
        self._struck(worker)
        self._died(worker.kill())
        self._workers[fault.worker] = self._worker(fault.worker)

    def _end_worker(self, fault: Fault) -> None:
        """As a deploy does it: told to end, and the next one starts beside it."""
        worker = self._workers[fault.worker]
        self._struck(worker)
        worker.signal(signal.SIGTERM)
        self._leaving.append((worker, time.monotonic()))
        self._workers[fault.worker] = self._worker(fault.worker)

    def _stop_worker(self, fault: Fault, whole: bool = True) -> None:
        worker = self._workers[fault.worker]
        self.journal.write("stopped", worker=worker.hostname)
        worker.pause(whole=whole)
        self._soon(fault.seconds, lambda: self._continue(worker))

    def _stop_main(self, fault: Fault) -> None:
        """Its children run on, and nobody renews their lease."""
        self._stop_worker(fault, whole=False)

    def _continue(self, worker: WorkerProcess) -> None:
        worker.resume()
        self.journal.write("continued", worker=worker.hostname)

    def _kill_ledger(self, fault: Fault) -> None:
        self._ledger_is_up = False
        self._broker_is_up = self.plan.topology != "together"
        self._ledger_server.kill()
        self._soon(fault.seconds, self._start_ledger)

    def _stop_ledger(self, fault: Fault) -> None:
        """Connections stay open, and nothing answers."""
        self._ledger_is_up = False
        self._broker_is_up = self.plan.topology != "together"
        self._ledger_server.pause()
        self._soon(fault.seconds, self._start_ledger)

    def _start_ledger(self) -> None:
        if self._ledger_server.running:
            self._ledger_server.resume()
        else:
            self._ledger_server.start()
        self._ledger_is_up = self._broker_is_up = True
        self.journal.write("ledger_is_back")

    def _cut_broker(self, _: Fault) -> None:
        """Every connection to the broker; where the ledger is there too, those to the ledger as well."""
        if self._broker.rabbit is not None:
            self._broker.rabbit.close_connections()
        elif self._broker_is_up:
            with self._broker.redis.client() as client:
                client.client_kill_filter(_type="normal")

    def _flush_scripts(self, _: Fault) -> None:
        if self._ledger_is_up:
            self._client.script_flush("SYNC")

    # -- looking

    def _look(self) -> None:
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            if not worker.running:
                self._replace(place, worker)
        for worker in [*self._workers, *(worker for worker, _ in self._leaving)]:
            for pid in (worker.pid, *worker.children()):
                self._seen[pid] = now
        for leaving in list(self._leaving):
            worker, since = leaving
            if not worker.running:
                self._leaving.remove(leaving)
            elif now - since > STOP + LEASE:
                self.journal.write("did_not_end", worker=worker.hostname)
                self._leaving.remove(leaving)
        self._progress(self._line())

    def _replace(self, place: int, worker: WorkerProcess) -> None:
        """A job that kills its process has taken a worker of threads along; or Celery gave up; or it is a bug."""
        self._struck(worker)
        self._died(worker.kill())
        killed = any(entry["kind"] == "dies" and entry["pid"] == worker.pid for entry in self.journal.read())
        if not killed:
            celerys = GIVES_UP in worker.log_of_this_start() and self.plan.topology != "rabbitmq"
            kind = "ended_by_celery" if celerys else "ended_by_itself"
            self.journal.write(kind, worker=worker.hostname, code=worker.returncode)
        self._workers[place] = self._worker(place)

    def _line(self) -> str:
        at = time.monotonic() - self._begin
        faults = sum(self.counts[fault.what] for fault in {fault.what: fault for fault in self.plan.faults}.values())
        down = "" if self._ledger_is_up else "  ledger down"
        still = sum(worker.paused for worker in self._workers)
        return (
            f"{at:5.0f} s of {self.plan.seconds:.0f}  sent {self.counts['sent']}  faults {faults}"
            f"{down}{f'  {still} stopped' if still else ''}"
        )

    # -- coming to rest

    def _rest(self) -> None:
        begin, next_look = time.monotonic(), REDELIVERY
        self.journal.write("rest")
        while time.monotonic() - begin < REST:
            self._look()
            self._forget_the_ended()
            waited = time.monotonic() - begin
            self._progress(f"coming to rest: {len(self._outstanding)} left, {waited:.0f} s")
            if not self._outstanding:
                break
            if waited > next_look:
                next_look = waited + 2
                if self._only_lost():
                    break
            if self._hurry and waited > HURRY_AFTER:
                self._publish_again_what_was_lost()
            time.sleep(0.3)
        self.journal.write("rested", seconds=time.monotonic() - begin)
        for pid, last in self._seen.items():
            self.journal.write("seen", pid=pid, last=last)

    def _forget_the_ended(self) -> None:
        for run in list(self._outstanding):
            if self.app.AsyncResult(run).state in READY:
                del self._outstanding[run]

    def _only_lost(self) -> bool:
        """Whether nobody has those that are left: no need to wait for them."""
        if len(self._outstanding) > 50:
            return False
        lost = set(lost_by_broker(self._story({})))
        return all(id in lost or run.job == PLAIN for id, run in self._outstanding.items()) and not (
            self._queued() & self._outstanding.keys()
        )

    def _publish_again_what_was_lost(self) -> None:
        """Half a minute is long for a short soak: what was handed over and has not started is overdue now."""
        for run in status_of(self.app).runs:
            if run.state == "queued" and run.seconds > 2:
                self._client.zadd(f"{prefix_of(self.app)}gr", {run.id: 0}, xx=True)

    def _leftovers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def clean() -> bool:
            found.clear()
            found.update(leftovers(self.app, self._client))
            return not found or bool(self._outstanding)

        with contextlib.suppress(AssertionError):
            until(clean, 20, poll=0.3)
        self._stop_workers()
        return found

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
            self._leaving.append((worker, time.monotonic()))
        for worker, _ in self._leaving:
            try:
                until(lambda worker=worker: not worker.running, STOP, poll=0.1)
            except AssertionError:
                self.journal.write("did_not_end", worker=worker.hostname)

    # -- the story

    def _story(self, left: dict[str, Any]) -> Story:
        states, results = {}, {}
        for _, run in self.plan.runs():
            if run.id not in self._outstanding:
                result = self.app.AsyncResult(run.id)
                states[run.id] = result.state
                if result.state == "SUCCESS":
                    results[run.id] = result.result
        return Story(
            plan=self.plan,
            rules=self._rules(),
            spans=self.history.spans(),
            journal=self.journal.read(),
            states=states,
            results=results,
            listed=self._listed(),
            queued=self._queued(),
            leftovers=left,
        )

    def _rules(self) -> dict[str, Rule]:
        return {
            name: Rule(policy.max_running, policy.key is not None, frozenset(policy.blocked))
            for name, policy in jobs_of(self.app).items()
        }

    def _listed(self) -> dict[str, str]:
        reasons = {run.id: f"waiting: {run.reason}" for run in status_of(self.app).waits}
        found = {}
        for run in self._outstanding:
            state = self._client.eval(_STATE, 1, f"{prefix_of(self.app)}r:{run}")
            if state:
                found[run] = reasons.get(run, state)
        return found

    def _queued(self) -> set[str]:
        """Runs that have not ended and whose message the broker has. RabbitMQ is not asked: it does not lose any."""
        if self._broker.rabbit is not None or not self._outstanding:
            return set()
        with self._broker.redis.client(decode_responses=False) as client:
            text = b"".join(
                b"".join(client.lrange(key, 0, -1)) if client.type(key) == b"list" else b"".join(client.hvals(key))
                for key in client.scan_iter(count=1000)
                if not key.startswith(prefix_of(self.app).encode()) and client.type(key) in (b"list", b"hash")
            )
        return {run for run in self._outstanding if f'"{run}"'.encode() in text.replace(b"\\", b"")}


@contextlib.contextmanager
def _pulse(journal: Journal) -> Iterator[None]:
    """Writes down when this process itself could not run: then the workers may have been as badly off."""
    done = threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not done.wait(TICK):
            now = time.monotonic()
            if now - last > STALL:
                journal.write("stall", since=last)
            last = now

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
