"""For the tests of your own project: the gate without Redis, worker or broker.

``decide`` says whether a run would start in a situation that the test describes, and if not, why::

    decision = decide(app, job="shop.process_data", running=["shop.cleanup"])
    assert decision.reason == "waiting for shop.cleanup: running"

The rules are those of the ledger (``job/rules.py``), and so are the sentences (``job/reasons.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal
from weakref import WeakSet

from celery import Celery
from celery.canvas import Signature
from pydantic import Field, NonNegativeFloat

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import reasons
from celery_orchestration.job.app import read_settings, signature_of
from celery_orchestration.job.graph import Graph
from celery_orchestration.job.options import Priority
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.rules import Job, Last, Rule, Run, Situation, reason_to_wait
from celery_orchestration.job.task import jobs_of
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger.keys import room_key
from celery_orchestration.operate.base_model import Model

__all__ = ["Decision", "Ended", "decide"]


class Decision(Model):
    """The decision of the gate. It is true if the run starts."""

    starts: bool
    reason: str | None = Field(default=None, description="why it waits, in the words of `status`")
    rule: Rule | None = Field(default=None, description="the rule of the gate that makes it wait")
    waits_for: str | None = Field(default=None, description="the job that it waits for, if it is one")

    def __bool__(self) -> bool:
        return self.starts


class Ended(Model):
    """How the latest ended run of a job ended, and how long ago."""

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
    """Whether a run of ``job`` that arrives now would start. Everything that is not given is assumed to be fine.

    A job is given by its full name or its task. Where the arguments or the priority of a run matter, write the call:
    ``sync.s("eu")``, ``sync.s().set(priority="high")``.

    ``running``: runs that have started and not ended; the same job may be listed several times.
    ``waiting``: waiting runs in the order of their arrival, all of them before this run.
    ``ended``: how the latest ended run of a job ended; for ``max_age_seconds`` and ``fresh``, ``Ended(
    outcome="failed", seconds_ago=90)``. A job that is not named has just succeeded.
    ``started``: seconds since the last start of a job; only ``Dependency(fresh=True)`` uses it. A job that is not named
    started before everything in ``ended``.
    ``disabled``: disabled jobs; or a mapping of disabled jobs to reasons.
    """
    jobs = _jobs(app)
    graph = Graph.build(jobs, plain=[name for name in app.tasks if name not in jobs])
    names = _Names(app, jobs)
    asked = names.run("job", job, with_key=True)
    if asked.job not in jobs:
        raise ConfigurationError(f"decide: job names {show(asked.job)}, a job of another service")
    why = disabled if isinstance(disabled, Mapping) else dict.fromkeys(disabled, "by hand")
    now = Situation(
        jobs={name: Job.of(policy, graph.never_beside(name)) for name, policy in jobs.items()},
        max_running=read_settings(app).max_running,
        paused=paused,
        disabled={names.of("disabled", one): str(text) for one, text in why.items()},
        ended={names.of("ended", one): _last(how) for one, how in (ended or {}).items()},
        started={names.of("started", one): -ago for one, ago in (started or {}).items()},
    )
    for one in running:
        now.start(names.run("running", one, _is_of(one, asked.job)))
    waits = [names.run("waiting", one, _is_of(one, asked.job)) for one in waiting]
    for place, run in enumerate(waits):
        now.wait(replace(run, arrival=place))
    words = reason_to_wait(now, replace(asked, arrival=len(waits)))
    if words is None:
        return Decision(starts=True)
    return Decision(
        starts=False,
        reason=reasons.sentence(words, lambda _: "running"),
        rule=words[0],
        waits_for=reasons.job_of(words),
    )


class _Names:
    """Reads jobs and calls as a test writes them."""

    def __init__(self, app: Celery, jobs: Mapping[str, Policy]) -> None:
        self._app = app
        self._jobs = jobs

    @cached_property
    def known(self) -> set[str]:
        external = {name for policy in self._jobs.values() for name in policy.external}
        return {*self._jobs, *external}

    def of(self, where: str, job: Any) -> str:
        name = _name_of(job)
        if name in self.known:
            return name
        if name in self._app.tasks:
            raise ConfigurationError(f"decide: {where} names {show(name)}, a task without base=OrchestratedTask")
        raise ConfigurationError(f"decide: {where} names an unknown job {show(name)}{suggest(name, self.known)}")

    def run(self, where: str, job: Any, with_key: bool) -> Run:
        """``with_key``: read the room key from the arguments. It matters only among runs of the job in question."""
        name = self.of(where, job)
        policy = self._jobs.get(name)
        args, kwargs, options = (job.args, job.kwargs, job.options) if isinstance(job, Signature) else ((), {}, {})
        written = options.get("priority")
        priority = policy.priority if policy else Priority.NORMAL
        if written is not None and type(written) is not int:
            priority = Priority.parse(written)
        if policy is None or policy.key is None or not with_key:
            return Run(name, priority)
        try:
            key = policy.room_key(args, kwargs, signature_of(self._app.tasks[name]))
        except ValueError as exc:
            raise ConfigurationError(f"decide: {where}: {exc}; give the call with its arguments: task.s(...)") from exc
        return Run(name, priority, room_key(key))


_imported: WeakSet[Celery] = WeakSet()


def _jobs(app: Celery) -> dict[str, Policy]:
    """The app's jobs, including those in modules that a worker imports by itself."""
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
    raise ConfigurationError(f"decide: give a job as its full name, its task or a call of it, not as {show(job)}")


def _is_of(job: Any, name: str) -> bool:
    return _name_of(job) == name


def _last(how: Literal["succeeded", "failed", "never"] | Ended) -> Last | None:
    """Its time is in seconds, and now is 0."""
    if isinstance(how, Ended):
        return Last(how.outcome == "succeeded", -how.seconds_ago)
    if how == "never":
        return None
    if how in ("succeeded", "failed"):
        return Last(how == "succeeded", 0.0)
    raise ConfigurationError(
        f"decide: ended says 'succeeded', 'failed', 'never' or Ended(...), not {show(how)}"
        f"{suggest(str(how), ('succeeded', 'failed', 'never'))}"
    )
