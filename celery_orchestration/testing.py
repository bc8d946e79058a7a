"""For the tests of projects that have jobs: the gate without Redis, worker or broker.

``decide`` answers whether a run would start in a situation that the test describes, and if not, why::

    decision = decide(app, job="shop.process_data", running=["shop.cleanup"])
    assert decision.reason == "waiting for shop.cleanup: running"

Rules and words are those of the ledger (``lua/lib/gate.lua``, ``operate/reasons.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from weakref import WeakSet

from celery import Celery
from celery.canvas import Signature
from pydantic import Field, NonNegativeFloat

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.graph import Graph
from celery_orchestration.ledger.keys import room_key
from celery_orchestration.operate import reasons
from celery_orchestration.operate.models import Model
from celery_orchestration.policy import Policy, Priority, show, suggest
from celery_orchestration.task import jobs_of, read_settings, signature_of

__all__ = ["Decision", "Ended", "decide"]

Rule = Literal["paused", "disabled", "room", "global", "blocked", "depends", "behind"]


class Decision(Model):
    """What the gate says. It is true if the run starts."""

    starts: bool
    reason: str | None = Field(default=None, description="why it waits, in the words of `status`")
    rule: Rule | None = Field(default=None, description="which rule of the gate it is")
    waits_for: str | None = Field(default=None, description="the job that it waits for, if it is one")

    def __bool__(self) -> bool:
        return self.starts


class Ended(Model):
    """How the latest run of a job that has ended did so, and how long ago."""

    outcome: Literal["succeeded", "failed"]
    seconds_ago: NonNegativeFloat = 0


def decide(
    app: Celery,
    *,
    job: Any,
    running: Iterable[Any] = (),
    waiting: Iterable[Any] = (),
    ended: Mapping[Any, Literal["succeeded", "failed", "never"] | Ended] | None = None,
    started: Mapping[Any, float] | None = None,
    disabled: Collection[Any] = (),
    paused: bool = False,
) -> Decision:
    """Whether a run of ``job`` that arrives now would start. What is not mentioned is as on a good day.

    A job is given by its full name or its task. Where the arguments or the priority of a run matter, write the call:
    ``sync.s("eu")``, ``sync.s().set(priority="high")``.

    ``running``: runs that have started and not ended; the same job may be there several times.
    ``waiting``: runs that wait, in the order in which they came, and all before this one.
    ``ended``: how the latest ended run of a job ended; for ``max_age_seconds`` and ``fresh``, ``Ended(
    outcome="failed", seconds_ago=90)``. A job that is not named has just succeeded.
    ``started``: seconds since the last start of a job; only ``Dependency(fresh=True)`` looks at it. A job that is not
    named started before everything in ``ended``.
    ``disabled``: jobs that are; with a mapping, why.
    """
    jobs = _jobs(app)
    graph = Graph.build(jobs, plain=[name for name in app.tasks if name not in jobs])
    now = _Situation(app, jobs, graph.never_beside, paused)
    run = now.run("job", job, with_key=True)
    if run.job not in jobs:
        raise ConfigurationError(f"decide: job names {show(run.job)}, a job of another service")
    now.running = [now.run("running", one, _is_of(one, run.job)) for one in running]
    now.waiting = [now.run("waiting", one, _is_of(one, run.job)) for one in waiting]
    now.ended = {now.name("ended", one): _ended(how) for one, how in (ended or {}).items()}
    now.started = {now.name("started", one): ago for one, ago in (started or {}).items()}
    why = disabled if isinstance(disabled, Mapping) else dict.fromkeys(disabled, "by hand")
    now.disabled = {now.name("disabled", one): str(text) for one, text in why.items()}
    words = now.closed(run)
    if words is None:
        return Decision(starts=True)
    rule, *rest = words
    about = rest[0] if rule in ("room", "blocked", "depends", "behind") else None
    return Decision(starts=False, reason=reasons.sentence(words, lambda _: "running"), rule=rule, waits_for=about)


@dataclass(frozen=True)
class _Run:
    job: str
    priority: Priority
    key: str = ""


class _Situation:
    """The rules of the gate, each as the design words it, over lists."""

    def __init__(
        self, app: Celery, jobs: Mapping[str, Policy], never_beside: Callable[[str], tuple[str, ...]], paused: bool
    ) -> None:
        self._app = app
        self._jobs = jobs
        self._never_beside = never_beside
        self.paused = paused
        self.cap = read_settings(app).max_running
        self.running: list[_Run] = []
        self.waiting: list[_Run] = []
        self.ended: dict[str, Ended | None] = {}
        self.started: dict[str, float] = {}
        self.disabled: dict[str, str] = {}

    # -- names ----------------------------------------------------------------------------------------

    @cached_property
    def known(self) -> set[str]:
        external = {name for policy in self._jobs.values() for name in policy.external}
        return {*self._jobs, *external}

    def name(self, where: str, job: Any) -> str:
        name = _name_of(job)
        if name in self.known:
            return name
        if name in self._app.tasks:
            raise ConfigurationError(f"decide: {where} names {show(name)}, a task without base=OrchestratedTask")
        raise ConfigurationError(f"decide: {where} names an unknown job {show(name)}{suggest(name, self.known)}")

    def run(self, where: str, job: Any, with_key: bool) -> _Run:
        """``with_key``: room keys count among runs of one job; for another one nobody has to think of arguments."""
        name = self.name(where, job)
        policy = self._jobs.get(name)
        args, kwargs, options = (job.args, job.kwargs, job.options) if isinstance(job, Signature) else ((), {}, {})
        written = options.get("priority")
        priority = policy.priority if policy else Priority.NORMAL
        if written is not None and type(written) is not int:
            priority = Priority.parse(written)
        if policy is None or policy.key is None or not with_key:
            return _Run(name, priority)
        try:
            key = policy.room_key(args, kwargs, signature_of(self._app.tasks[name]))
        except ValueError as exc:
            raise ConfigurationError(f"decide: {where}: {exc}; give the call with its arguments: task.s(...)") from exc
        return _Run(name, priority, room_key(key))

    # -- rules ----------------------------------------------------------------------------------------

    def closed(self, run: _Run) -> list[Any] | None:
        """None if the run may start, else what it waits for: the words of ``closed`` in ``lua/lib/gate.lua``."""
        if self.paused:
            return ["paused"]
        if run.job in self.disabled:
            return ["disabled", self.disabled[run.job]]
        cap = self._jobs[run.job].max_running
        if cap is not None and sum((one.job, one.key) == (run.job, run.key) for one in self.running) >= cap:
            return ["room", run.job, run.key]
        if self.cap is not None and len(self.running) >= self.cap:
            return ["global"]
        busy = {one.job for one in self.running}
        for other in self._never_beside(run.job):
            if other in busy:
                return ["blocked", other]
        return self._unmet(run.job, self.waiting) or self._barred(run)

    def _unmet(self, job: str, before: Sequence[_Run]) -> list[Any] | None:
        """`before`: runs that wait and came before the one that is asked about."""
        for dep in self._jobs[job].document()["deps"]:
            how = self._wanting(dep, self.started.get(job), before)
            if how is not None:
                return ["depends", dep["job"], how]
        return None

    def _wanting(self, dep: Mapping[str, Any], started: float | None, before: Sequence[_Run]) -> str | None:
        name = dep["job"]
        if any(one.job == name for one in self.running):
            return "busy"
        if any(one.job == name for one in before):
            return "disabled" if name in self.disabled else "fires"
        if dep["on"] == "idle":
            return None
        last = self.ended.get(name, Ended(outcome="succeeded"))
        how = None
        if last is None:
            how = "never"
        elif dep["on"] == "success" and last.outcome == "failed":
            how = "failed"
        elif dep["max_age_ms"] is not None and last.seconds_ago * 1000 > dep["max_age_ms"]:
            how = "old"
        elif dep["fresh"] and started is not None and last.seconds_ago >= started:
            how = "stale"
        return "disabled" if how and name in self.disabled else how

    def _barred(self, run: _Run) -> list[Any] | None:
        """No barging. A run that waits for a dependency, or whose job is disabled, bars nobody."""
        before = [one for one in self.waiting if one.priority >= run.priority]
        if any((one.job, one.key) == (run.job, run.key) for one in before):
            return ["behind", run.job]
        beside = set(self._never_beside(run.job))
        places = {id(one): place for place, one in enumerate(self.waiting)}
        for one in sorted(before, key=lambda one: -one.priority):
            unmet = self._unmet(one.job, self.waiting[: places[id(one)]])
            if one.job in beside and one.job not in self.disabled and not unmet:
                return ["behind", one.job]
        return None


_imported: WeakSet[Celery] = WeakSet()


def _jobs(app: Celery) -> dict[str, Policy]:
    """With those of modules that a worker would find by itself."""
    if app not in _imported:
        app.loader.import_default_modules()
        _imported.add(app)
    return jobs_of(app)


def _name_of(job: Any) -> str:
    if isinstance(job, str):
        return job
    name = job.task if isinstance(job, Signature) else getattr(job, "name", None)
    if isinstance(name, str):
        return name
    raise ConfigurationError(f"decide: a job is given by its full name, its task or a call of it, not by {show(job)}")


def _is_of(job: Any, name: str) -> bool:
    return _name_of(job) == name


def _ended(how: Literal["succeeded", "failed", "never"] | Ended) -> Ended | None:
    if isinstance(how, Ended):
        return how
    if how == "never":
        return None
    if how in ("succeeded", "failed"):
        return Ended(outcome=how)
    raise ConfigurationError(
        f"decide: ended says 'succeeded', 'failed', 'never' or Ended(...), not {show(how)}"
        f"{suggest(str(how), ('succeeded', 'failed', 'never'))}"
    )
