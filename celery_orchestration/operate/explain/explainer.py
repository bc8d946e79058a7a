"""Explains a job or a run: gathers facts from the ledger, the code and the broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from celery import Celery

from celery_orchestration.errors import ConfigurationError, UnknownJob
from celery_orchestration.job import graph, queues
from celery_orchestration.job.app import SCHEDULER, owner_of, read_settings
from celery_orchestration.job.options import Priority
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import BEAT, Ledger
from celery_orchestration.ledger.keys import decode_job, text
from celery_orchestration.operate import app_jobs, broker
from celery_orchestration.operate.clock import clock, took, when
from celery_orchestration.operate.explain import chain as chains
from celery_orchestration.operate.explain import options
from celery_orchestration.operate.explain.facts import Surroundings
from celery_orchestration.operate.explain.models import Cause, Explanation, OptionValue
from celery_orchestration.operate.explain.root_cause import RootCauseFinder
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.history.records import read_ended, read_letter, run_id_of
from celery_orchestration.operate.models import MOST_HISTORY, SHORTEST_ID, Ended, Letter, QueueStatus
from celery_orchestration.operate.schedule import Schedule
from celery_orchestration.operate.status.redis_problems import FULL
from celery_orchestration.pools.table import queues_of

#: Root causes by which the ledger knows nothing that holds the run back: a worker may.
_MAY_BE_LIMITED = ("handed_over", "not_asked_for", "running", "scheduled")
_MAY_BE_FETCHED = ("not_asked_for", "scheduled")


class Explainer:
    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        ask: Callable[[Callable[[], Any]], Any],
        schedule: Schedule,
        ask_workers: bool = True,
    ) -> None:
        """`ask` calls the ledger and puts its errors into words. `ask_workers`: whether to ask the workers which runs
        they hold back, and to look for workers that the ledger does not know; that takes a second."""
        self._ask_workers = ask_workers
        self._app = app
        self._ledger = ledger
        self._ask = ask
        self._schedule = schedule
        self._jobs = app_jobs.jobs(app)

    def explain(self, about: str) -> Explanation:
        if text(about) != about:  # Redis cannot store such a name
            raise UnknownJob(f"there is no job {show(about)}, and no run")
        found = self._ask_ledger("job", about)
        if found is not None:
            return self._explained(about, None, found)
        found = self._ask_ledger("run", about)
        return self._explained(f"run {about}", about, found) if found is not None else self._ended(about)

    def _ask_ledger(self, kind: str, name: str) -> dict[str, Any] | None:
        policy = self._jobs.get(name)
        priority = policy.priority if policy else Priority.NORMAL
        try:
            found = self._ask(lambda: self._ledger.explain(kind, name, policy is not None, int(priority)))
        except ConfigurationError:  # no job can have such a name
            return None
        return dict(found) if found else None

    def _explained(self, about: str, run: str | None, found: Mapping[str, Any]) -> Explanation:
        chain = chains.steps(found)
        finder = RootCauseFinder(found, self._surroundings(found))
        cause, job = finder.root(chain), chain[0].job
        if len(chain) == 1 and cause.code in _MAY_BE_LIMITED:
            cause = self._rate_limit(job, run) or cause
        if len(chain) == 1 and run is None and cause.code in _MAY_BE_FETCHED:
            cause = self._waits_for_slot(job) or cause
        return Explanation(
            about=about,
            job=job,
            run=run,
            at=when(found["now"]),
            summary=chains.summary(about, chain, cause),
            root=cause,
            chain=chains.links(chain),
            last=next(iter(self._history(job, 1)), None),
            next_fire=finder.next_fire(job),
            queue=self._queue(job, found),
            options=self._options(job, finder.job_record(job)),
        )

    # -- what the ledger does not know --------------------------------------------------------------

    def _surroundings(self, found: Mapping[str, Any]) -> Surroundings:
        ours, asked = self._schedule.is_ours(), self._schedule.asked_for()
        continuous = {name for name, policy in self._jobs.items() if policy.mode == "continuous"}
        scheduled = frozenset(asked if ours else asked & continuous)  # another beat does not know continuous jobs
        return Surroundings(
            address=str(self._ledger.address),
            queue_of=self._queue_of,
            scheduled=scheduled,
            elsewhere=frozenset(asked - scheduled),
            beat=command(*(() if ours else ("-S", SCHEDULER)), program="beat"),
            cycles=self._cycles(),
            allow_eviction=read_settings(self._app).allow_eviction,
            strangers=lambda queue: [one for one in self._strangers(frozenset(found["names"])) if queue in one.queues],
            supervised=lambda queue: self._supervised.get(queue),  # noqa: PLW0108  (asked only then)
        )

    @cached_property
    def _supervised(self) -> dict[str, tuple[str, int]]:
        """The queues of pools that a live supervisor runs: the pool, and how many workers it should have."""
        pools = {name: queues_of(self._app, name) for name in read_settings(self._app).pools}
        found = self._ask(lambda: self._ledger.read_pools(pools)) if pools else {}
        run = {name for one in found.get("supervisors") or () for name in json.loads(one["tables"])}
        return {
            queue: (name, found["pools"][name].get("wanted") or 0)
            for name, names in pools.items()
            if name in run
            for queue in names
        }

    @cached_property
    def _queue_of(self) -> dict[str, str]:
        sent = queues.destinations(self._app, self._jobs)
        return {job: queue for queue, jobs in sent.items() for job in jobs}

    def _cycles(self) -> list[list[str]]:
        """Each once around: ["a", "b"]."""
        try:
            closed = graph.cycles({name: policy.document() for name, policy in self._jobs.items()})
            return [cycle[:-1] for cycle in closed]
        except ConfigurationError:  # it names something that is no task, which a worker reports
            return []

    @lru_cache(maxsize=1)  # noqa: B019  (an explainer explains once)
    def _strangers(self, known: frozenset[str]) -> list[broker.Stranger]:
        if not self._ask_workers:
            return []
        namespace = read_settings(self._app).namespace
        return broker.strangers(self._app, known, set(self._queue_of.values()), namespace)[0]

    def _queue(self, job: str, found: Mapping[str, Any]) -> QueueStatus | None:
        name = self._queue_of.get(job)
        if name is None:
            return None
        return QueueStatus(
            name=name,
            depth=broker.depths(self._app, [name]).messages[name],
            slots=(found.get("slots") or {}).get(name, 0),
            under_way=(found.get("under_way") or {}).get(name, 0),
            waiting=sum(link.get("queue") == name for link in found["chain"]),
        )

    def _options(self, job: str, record: Mapping[str, Any]) -> list[OptionValue]:
        policy = self._jobs.get(job)
        return options.of_job(self._app.tasks[job], policy, record or None) if policy else []

    def _rate_limit_of(self, job: str) -> str | None:
        return getattr(self._app.tasks.get(job), "rate_limit", None)

    @cached_property
    def _rate_limited(self) -> dict[str, tuple[str, str]]:
        """Runs that workers hold back by Celery's ``rate_limit``, in order: job and worker of each."""
        if not self._ask_workers or not any(map(self._rate_limit_of, self._jobs)):
            return {}
        return broker.held(self._app, "rate_limited")

    @cached_property
    def _fetched(self) -> dict[str, tuple[str, str]]:
        """Runs that a worker has fetched and that wait for a slot there: job and worker of each."""
        if not self._ask_workers:
            return {}
        workers = [one.name for one in self._ask(self._ledger.list_nodes).nodes if one.kind != BEAT]
        return broker.held(self._app, "fetched", workers)

    def _waits_for_slot(self, job: str, run: str | None = None) -> Cause | None:
        """The cause if workers have fetched the run, or runs of the job, and have no free slot."""
        found = [id for id, (of, _) in self._fetched.items() if of == job and run in (None, id)]
        if not found:
            return None
        worker = self._fetched[found[0]][1]
        more = f", as do {len(found) - 1} more" if len(found) > 1 else ""
        text = f"run {found[0]} was fetched by {worker}, and waits for a free slot there{more}"
        return Cause(code="fetched", job=job, text=text)

    def _rate_limit(self, job: str, run: str | None = None) -> Cause | None:
        """The cause if Celery's rate limit holds the run back, or runs of the job."""
        if not self._rate_limit_of(job):
            return None
        held = [id for id, (of, _) in self._rate_limited.items() if of == job]
        if not held or run not in (None, *held):
            return None
        who = f"run {run}" if run else f"{len(held)} run{'s' if len(held) > 1 else ''}"
        worker = self._rate_limited[run or held[0]][1]
        text = f"{job} may start {self._rate_limit_of(job)} (rate_limit): worker {worker} holds {who} back"
        return Cause(code="rate_limit", job=job, text=text, fix=command("rate_limit", job, "0", program="control"))

    # -- what has ended -----------------------------------------------------------------------------

    def _history(self, job: str, count: int) -> list[Ended]:
        return [read_ended(job, one) for one in self._ask(lambda: self._ledger.read_history(job, count)) or ()]

    def _ended(self, about: str) -> Explanation:
        """Explains a run that has ended, if a history or a dead letter has it."""
        graph = self._ask(self._ledger.read_graph)
        known = sorted(decode_job(job["name"]) for job in graph["jobs"])
        ended = self._ask(lambda: self._find_ended(known, about))
        letter = self._ask(lambda: self._ledger.read_dead_letter(about))
        if ended is None and letter is None and (held := self._find_held(about)) is not None:
            return self._explained_held(held, graph["now"])
        if ended is None and letter is None:
            names = {*known, *self._jobs}
            full = self._ask(lambda: self._ledger.read_health(owner_of(self._app)))["full"]
            raise UnknownJob(
                f"there is no job {show(about)}, and no known run{suggest(about, names)}"
                + (f". {FULL}" if full else "")
            )
        job = ended.job if ended else read_letter(*letter).job
        cause = _cause_of_end(about, job, ended, None if letter is None else read_letter(*letter))
        return Explanation(
            about=f"run {about}",
            job=job,
            run=about,
            at=when(graph["now"]),
            summary=f"run {about}: {cause.text}",
            root=cause,
            chain=[],
            last=ended,
            next_fire=None,
            queue=None,
            options=self._options(job, {}),
        )

    def _find_held(self, about: str) -> str | None:
        """The id of a run that a worker holds; the beginning of the id is enough."""
        held = (*self._rate_limited, *self._fetched)
        found = [id for id in held if id == about or (len(about) >= SHORTEST_ID and id.startswith(about))]
        return found[0] if len(found) == 1 or about in found[:1] else None

    def _explained_held(self, run: str, now: int) -> Explanation:
        job, _ = self._rate_limited.get(run) or self._fetched[run]
        cause = self._rate_limit(job, run) or self._waits_for_slot(job, run)
        assert cause is not None
        return Explanation(
            about=f"run {run}",
            job=job,
            run=run,
            at=when(now),
            summary=f"run {run}: {cause.text}",
            root=cause,
            chain=[],
            last=next(iter(self._history(job, 1)), None),
            next_fire=None,
            queue=None,
            options=self._options(job, {}),
        )

    def _find_ended(self, jobs: Sequence[str], run: str) -> Ended | None:
        for job in jobs:
            for record in self._ledger.read_history(job, MOST_HISTORY) or ():
                if run_id_of(record) == run:
                    return read_ended(job, record)
        return None


def _cause_of_end(run: str, job: str, ended: Ended | None, letter: Letter | None) -> Cause:
    if letter is not None:
        text = f"{job} failed for good: {letter.error or 'no error is known'}"
        fix = command("dlq", "requeue", run)
        return Cause(code="dead_letter", job=job, text=text, wrong=True, fix=fix)
    assert ended is not None
    after = "" if ended.seconds is None else f" after {took(ended.seconds)}"
    why = f": {ended.error}" if ended.error else ""
    return Cause(code="ended", job=job, text=f"{job} {ended.outcome} {clock(ended.ended)}{after}{why}")
