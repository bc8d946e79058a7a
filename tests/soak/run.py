"""Carries out a plan on real servers and workers, until nothing is left to do. The record of that is the story."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery import chain, chord, group
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_orchestration import Orchestration
from celery_orchestration.errors import LedgerError, OrchestrationError
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger.records import key_of
from soak.crew import APP, Crew
from soak.journal import VARIABLE, Journal
from soak.plan import LEASE, Act, Call, Fault, Plan, Run
from soak.story import READY, Rule, Story
from support.history import History
from support.invariants import leftovers, prefix_of, status_of
from support.servers import RabbitServer
from support.wait import until
from support.workers import celery_state_of_its_own, loaded_app

#: Seconds between two checks of the processes.
TICK = 0.1
#: Seconds for all runs to end once nothing is broken any more. (Before 5.7, kombu takes up to 105 s to redeliver.)
REST = 120.0
#: Seconds of rest after which a handed-over run that has not started counts as lost, to save time.
HURRY_AFTER = 4.0
#: If the soak itself stood still for this many seconds, the machine was too busy for a verdict.
STALL = LEASE / 3
#: Reads the state of a run's record, for runs without a reason in status().
_STATE = "local s = redis.call('HGET', KEYS[1], 'record'); return s and cmsgpack.unpack(s).state or false"

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
        self._hurry = hurry
        self._progress = progress
        self._steps: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._begin = 0.0
        self._crew = Crew(plan, directory, self.journal, self._soon, rabbit)
        self._outstanding: dict[str, Run] = {}

    def run(self) -> Story:
        (self.directory / "plan.json").write_text(self.plan.dumps())
        with self._crew, celery_state_of_its_own():
            env = self._environment()
            with loaded_app(APP, self._crew.broker, env) as module, _pulse(self.journal):
                self.app = module.app
                self._crew.start_workers({**env, **self.history.env(), VARIABLE: str(self.journal.path)})
                self._carry_out()
                self._rest()
                return self._story(self._leftovers())

    def _environment(self) -> dict[str, str]:
        env = {}
        if self.plan.topology != "together":
            env["TEST_LEDGER"] = self._crew.broker.ledger_url
        if self.plan.max_running is not None:
            env["TEST_MAX_RUNNING"] = str(self.plan.max_running)
        return env

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
        if not self._crew.broker_is_up:
            return self._soon(0.2, lambda: self._send(call))
        runs = [run.id for run in call.runs]
        try:
            self._apply(call)
        except (OperationalError, RedisError, OSError) as error:
            # A part of it may have been sent. It is not expected to end, but must not break anything either.
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
        if not (self._crew.broker_is_up and self._crew.ledger_is_up):
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
        except (OrchestrationError, OperationalError, RedisError, OSError) as error:
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

    def _fault(self, fault: Fault) -> None:
        self.counts["faults"] += 1
        self._crew.befall(fault)

    def _look(self) -> None:
        self._crew.check()
        self._progress(self._line())

    def _line(self) -> str:
        at = time.monotonic() - self._begin
        down = "" if self._crew.ledger_is_up else "  ledger down"
        still = sum(worker.paused for worker in self._crew.workers)
        return (
            f"{at:5.0f} s of {self.plan.seconds:.0f}  sent {self.counts['sent']}  faults {self.counts['faults']}"
            f"{down}{f'  {still} stopped' if still else ''}"
        )

    # -- coming to rest

    def _rest(self) -> None:
        begin = time.monotonic()
        self.journal.write("rest")
        while time.monotonic() - begin < REST:
            self._look()
            self._forget_the_ended()
            waited = time.monotonic() - begin
            self._progress(f"coming to rest: {len(self._outstanding)} left, {waited:.0f} s")
            if not self._outstanding:
                break
            if self._hurry and waited > HURRY_AFTER:
                self._publish_again_what_was_lost()
            time.sleep(0.3)
        self.journal.write("rested", seconds=time.monotonic() - begin)
        for pid, last in self._crew.seen.items():
            self.journal.write("seen", pid=pid, last=last)

    def _forget_the_ended(self) -> None:
        for run in list(self._outstanding):
            if self.app.AsyncResult(run).state in READY:
                del self._outstanding[run]

    def _publish_again_what_was_lost(self) -> None:
        """Half a minute is long for a short soak: handed-over runs that have not started are made overdue now."""
        for run in status_of(self.app).runs:
            if run.state == "queued" and run.seconds > 2:
                self._crew.ledger.zadd(key_of(prefix_of(self.app), "deadlines"), {run.id: 0}, xx=True)

    def _leftovers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def clean() -> bool:
            found.clear()
            found.update(leftovers(self.app, self._crew.ledger))
            return not found or bool(self._outstanding)

        with contextlib.suppress(AssertionError):
            until(clean, 20, poll=0.3)
        self._crew.stop_workers()
        return found

    # -- the story

    def _story(self, left: dict[str, Any]) -> Story:
        self._forget_the_ended()
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
            state = self._crew.ledger.eval(_STATE, 1, key_of(prefix_of(self.app), "run", run))
            if state:
                found[run] = reasons.get(run, state)
        return found

    def _queued(self) -> set[str]:
        """Runs that have not ended and whose message is in the broker. RabbitMQ is not asked, because it does not lose
        messages."""
        if self._crew.broker.rabbit is not None or not self._outstanding:
            return set()
        with self._crew.broker.redis.client(decode_responses=False) as client:
            text = b"".join(
                b"".join(client.lrange(key, 0, -1)) if client.type(key) == b"list" else b"".join(client.hvals(key))
                for key in client.scan_iter(count=1000)
                if not key.startswith(prefix_of(self.app).encode()) and client.type(key) in (b"list", b"hash")
            )
        return {run for run in self._outstanding if f'"{run}"'.encode() in text.replace(b"\\", b"")}


@contextlib.contextmanager
def _pulse(journal: Journal) -> Iterator[None]:
    """Records the times at which this process could not run: the workers may have been affected, too."""
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
