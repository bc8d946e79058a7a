"""The questions that an operator can ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING

from celery.utils.nodenames import default_nodename, host_format

from celery_orchestration import commands
from celery_orchestration.errors import (
    AmbiguousRun,
    BadCall,
    LedgerError,
    LedgerRefused,
    UnknownJob,
    UnknownRun,
)
from celery_orchestration.job import queues
from celery_orchestration.job.app import limits_of, owner_of
from celery_orchestration.job.pool import pool_problems
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import keys
from celery_orchestration.operate import app_jobs
from celery_orchestration.operate.client.connection import Connection
from celery_orchestration.operate.history.records import read_change, read_ended, run_id_of
from celery_orchestration.operate.models import (
    MOST_HISTORY,
    OUTCOMES,
    SHORTEST_ID,
    Change,
    Ended,
    Status,
)
from celery_orchestration.operate.status.filter import filtered
from celery_orchestration.operate.status.reader import read_status

if TYPE_CHECKING:  # imported where they are used: a status needs none of them
    from celery_orchestration.operate.doctor.models import Diagnosis, Health
    from celery_orchestration.operate.explain.models import Explanation
    from celery_orchestration.operate.forecast.report import Forecast
    from celery_orchestration.operate.graph.dependency_graph import DependencyGraph
    from celery_orchestration.operate.history.statistics import Statistics, Unit
    from celery_orchestration.operate.measurements import Measured
    from celery_orchestration.operate.pools.models import Desired, PoolsStatus
    from celery_orchestration.operate.pools.status import Pools
    from celery_orchestration.pools.pool_snapshot import PoolSnapshot

#: The longest forecast.
MOST_FORECAST_HOURS = 7 * 24
#: How many runs a status lists at most.
MOST_RUNNING, MOST_WAITING = 1000, 100
#: How many waiting or dead runs are searched for the beginning of an id, and how many matches an error names.
MOST_FOUND, NAMED = 1000, 5
#: The indexes of the ledger that hold runs that have not started, by state.
UNSTARTED = {"waiting": ("waiting", "later"), "queued": ("deadlines",)}
#: How many runs one call looks at.
LOOKED_AT = 1000


class Queries(Connection):
    """All methods that read and change nothing."""

    def status(
        self,
        *,
        jobs: Collection[str] = (),
        states: Collection[str] = (),
        pools: Collection[str] = (),
        depths: bool = True,
    ) -> Status:
        """Jobs, runs, workers and queues at one moment; with very many jobs, at several moments in quick succession.

        `jobs` (patterns, or parts of names), `states` and `pools` narrow it to the jobs that match all of them.
        `depths`: whether to ask the broker how many messages the queues have.
        """
        whole, sent = self._status()
        found = filtered(whole, jobs, states, pools, sent)
        return self._with_pools(self._with_depths(found), pools, bool(jobs or states)) if depths else found

    def _with_pools(self, status: Status, names: Collection[str], filtered: bool) -> Status:
        """`filtered`: show only pools of the jobs that are shown."""
        table = self._settings.pools
        if not table:
            return status
        from celery_orchestration.operate.pools.status import pools_status, without_idle_pools  # noqa: PLC0415

        snapshots = self.pool_snapshots()
        shown = {job.pool for job in status.jobs} if filtered else table.keys()
        wanted = {name: snapshots[name] for name in table if name in shown and (not names or name in names)}
        found = pools_status(wanted, status)
        problems = [*without_idle_pools(status.problems, snapshots), *found.problems]
        return status.model_copy(update={"pools": found.pools, "problems": problems})

    def pools(self, *names: str) -> PoolsStatus:
        """The pools of orchestration_pools: their work, their workers, and how the number of workers changed."""
        from celery_orchestration.operate.pools.status import pools_status  # noqa: PLC0415

        status, _ = self._status()
        found = pools_status(self.pool_snapshots(names), status)
        problems = [*self._pool_problems(), *found.problems]
        return found.model_copy(update={"problems": list(dict.fromkeys(problems))})

    def desired(self) -> Desired:
        """How many workers each pool should have, for autoscalers such as KEDA. Needs no supervisor."""
        return self._pools.desired()

    def pool_snapshots(self, names: Collection[str] = ()) -> dict[str, PoolSnapshot]:
        return self._pools.snapshots(names)

    @cached_property
    def _pools(self) -> Pools:
        from celery_orchestration.operate.pools.status import Pools  # noqa: PLC0415

        return Pools(self._app, self._ledger, self._ask, self._settings.pools)

    def _pool_problems(self) -> list[str]:
        return pool_problems(self._settings.pools, app_jobs.valid_jobs(self._app)[0])

    def _with_depths(self, status: Status) -> Status:
        from celery_orchestration.operate import broker  # noqa: PLC0415

        answer = broker.depths(self._app, [queue.name for queue in status.queues], self._store_names())
        counted = [queue.model_copy(update={"depth": answer.messages[queue.name]}) for queue in status.queues]
        fetched = answer.fetched if broker.kind(self._app) == "redis" else self._count_fetched(status)
        workers = [one.model_copy(update={"fetched": fetched.get(one.name)}) for one in status.workers]
        problems = [*status.problems, *([answer.problem] if answer.problem else [])]
        return status.model_copy(update={"queues": counted, "workers": workers, "problems": problems})

    def _count_fetched(self, status: Status) -> dict[str, int]:
        """Asks the workers how many messages they have fetched, where the broker cannot say."""
        from celery_orchestration.operate import broker  # noqa: PLC0415

        answer = broker.answers(
            self._app, commands.INSPECT, [one.name for one in status.workers if one.state != "dead"]
        )
        answered = {name: reply for name, reply in answer.replies.items() if isinstance(reply, Mapping)}
        return {name: len(reply["fetched"]) for name, reply in answered.items() if "fetched" in reply}

    def _status(self) -> tuple[Status, dict[str, list[str]]]:
        """Returns the status, and the queues that jobs are sent to, each with its jobs."""
        found = self._ask(lambda: self._ledger.read_status(MOST_RUNNING, MOST_WAITING))
        jobs, mistakes = app_jobs.valid_jobs(self._app)
        sent = queues.destinations(self._app, jobs)
        scheduled = partial(self._is_scheduled, found["entries"])
        status = read_status(self._settings.namespace, found, sent, limits_of(self._app), scheduled, jobs)
        lines = [line for mistake in mistakes for line in mistake.splitlines()]
        return status.model_copy(update={"problems": [*lines, *status.problems]}), sent

    def _is_scheduled(self, entries: int) -> bool:
        return self.schedule.is_ours() and bool(entries or self.schedule.has_code())

    def explain(self, job_or_run: str, *, ask_workers: bool = True) -> Explanation:
        """Why a job or a run does not run, down to the root cause; or what it does now, did last and when it runs next.

        `ask_workers`: whether to ask the workers where the ledger knows no reason; that takes a second."""
        from celery_orchestration.operate.explain.explainer import Explainer  # noqa: PLC0415

        return Explainer(self._app, self._ledger, self._ask, self.schedule, ask_workers).explain(job_or_run)

    def doctor(self) -> Diagnosis:
        """Checks for common problems: each finding says why it matters and how to fix it. Asks the ledger, the broker
        and the workers, which takes a second or two. One that does not answer is a finding, not an error."""
        from celery_orchestration.operate.doctor.diagnose import diagnose  # noqa: PLC0415

        return diagnose(self._app, self._settings, self._ledger, self.schedule)

    def health(self, worker: str | None = None, scheduler: bool = False) -> Health:
        """Does the ledger answer, and may runs start? In one round trip.

        `worker`: also, does the lease of this worker (its name as given with ``-n``) hold? `scheduler`: also, does a
        scheduler lead?"""
        from celery_orchestration.operate.doctor import health  # noqa: PLC0415

        name = None if worker is None else keys.text(host_format(default_nodename(worker)))
        address, namespace = str(self._ledger.address), self._settings.namespace
        try:
            found = self._ledger.read_health(owner_of(self._app), name or "")
        except LedgerRefused as exc:
            return health.no_answer(str(exc), address, namespace, name)
        except LedgerError as exc:
            return health.no_answer(f"the ledger at {address} does not answer: {exc}", address, namespace, name)
        beat = str(self._app.conf.beat_scheduler) if scheduler and not self.schedule.is_ours() else None
        return health.health(found, address, namespace, name, scheduler, beat)

    def find_run(self, id_or_prefix: str, *, dead: bool = False, ended: bool = False) -> str:
        """The full id of a run that has not ended. The beginning of the id is enough if a status lists the run.

        `dead`: of a dead letter instead, by its beginning if it is one of the latest. `ended`: also look for ended
        runs in the histories of all jobs."""
        word = keys.text(id_or_prefix)
        found = self._ask(lambda: self._ledger.find_ids(word, dead, SHORTEST_ID, MOST_RUNNING, MOST_FOUND))
        if ended and len(word) >= SHORTEST_ID and found != [word]:
            found = list(dict.fromkeys([*found, *self._ended_like(word)]))
        if not found and not dead and len(word) >= SHORTEST_ID:
            found = [id for id in self._fetched() if id.startswith(word)]
        if not found or word != id_or_prefix:
            raise UnknownRun(
                f"there is no dead letter {show(id_or_prefix)}"
                if dead
                else f"there is no run {show(id_or_prefix)}, or it has ended"
            )
        if len(found) > 1:
            shown = ", ".join(show(one) for one in sorted(found)[:NAMED])
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            raise AmbiguousRun(f"{show(id_or_prefix)} may mean {shown}{more}: give more of its id")
        return found[0]

    def _ended_like(self, beginning: str) -> list[str]:
        jobs = [keys.decode_job(job["name"]) for job in self._ask(self._ledger.read_graph)["jobs"]]
        records = [self._ask(lambda job=job: self._ledger.read_history(job, MOST_HISTORY)) or () for job in jobs]  # type: ignore[misc]
        ids = [run_id_of(record) for of_job in records for record in of_job]
        letters = self._ask(lambda: self._ledger.find_ids(beginning, True, SHORTEST_ID, MOST_RUNNING, MOST_FOUND))
        return [*letters, *(id for id in ids if id.startswith(beginning))]

    def graph(self, job: str | None = None) -> DependencyGraph:
        """Which jobs wait for which, and which never run together. `job`: only the jobs related to this one."""
        from celery_orchestration.operate.graph.dependency_graph import about, build_graph  # noqa: PLC0415

        found = build_graph(self._settings.namespace, self._ask(self._ledger.read_graph), app_jobs.jobs(self._app))
        if job is None:
            return found
        known = [one.name for one in found.jobs]
        if job not in known:
            raise UnknownJob(f"there is no job {show(job)}{suggest(job, known)}")
        return about(found, job)

    def history(self, job: str, count: int = 100, outcomes: Collection[str] = ()) -> list[Ended]:
        """How the last runs of a job ended, the latest first. `outcomes`: only runs with one of these outcomes."""
        if unknown := [one for one in outcomes if one not in OUTCOMES]:
            raise BadCall(f"unknown outcome {show(unknown[0])}{suggest(unknown[0], OUTCOMES)}: {', '.join(OUTCOMES)}")
        found = self._ask_about(lambda: self._ledger.read_history(job, MOST_HISTORY if outcomes else count))
        if found is None:
            raise self._unknown_job(job)
        runs = (read_ended(job, one) for one in found)
        return list(islice((run for run in runs if not outcomes or run.outcome in outcomes), count))

    def statistics(self, *jobs: str, by: Unit = "minute", hours: float | None = None) -> Statistics:
        """What these jobs (all, if none is named) did over time: by the minute for up to 24 hours, by the hour for up
        to 30 days. A job that the ledger does not know has no counts."""
        from celery_orchestration.operate.history.statistics import read  # noqa: PLC0415

        return self._ask(lambda: read(self._ledger, jobs or self._job_names(), by, hours))

    def totals(self, *jobs: str) -> Statistics:
        """The same over all time that the ledger remembers."""
        from celery_orchestration.operate.history.statistics import read  # noqa: PLC0415

        return self._ask(lambda: read(self._ledger, jobs or self._job_names(), "all"))

    def measured(self) -> Measured | None:
        """The figures for metrics, in bounded reads; None if the ledger does not answer."""
        from celery_orchestration.operate.measurements import measure  # noqa: PLC0415

        try:
            return self._ask(lambda: measure(self._app, self._ledger))
        except LedgerError:
            return None

    def forecast(self, hours: float = 24) -> Forecast:
        """When each job of this app will run, what will wait for what, and what cannot end in time.

        Simulates the coming due times with the gate's rules. Each run takes as long as usual, and succeeds."""
        from celery_orchestration.operate.forecast import planner  # noqa: PLC0415
        from celery_orchestration.operate.forecast.report import forecast  # noqa: PLC0415

        if not 0 < hours <= MOST_FORECAST_HOURS:
            raise BadCall(f"a forecast goes up to {MOST_FORECAST_HOURS} hours ahead, not {hours:g}")
        jobs = app_jobs.jobs(self._app)
        status, usual = self.status(depths=False), self.statistics(*jobs, by="hour", hours=planner.USUAL_HOURS)
        known = self._ask(lambda: planner.entries_of(self._ledger))
        return forecast(planner.plan(self._app, jobs, status, usual, known, hours))

    def audit(self, count: int = 100) -> list[Change]:
        """Who changed what, the latest first."""
        return [read_change(one) for one in self._ask(lambda: self._ledger.read_audit(count))]

    def unstarted(self, job: str, state: str | None = None) -> list[str]:
        """Ids of the runs of a job that have not started. `state`: only the ``waiting`` ones, or only those that were
        handed over to a queue (``queued``)."""
        if state is not None and state not in UNSTARTED:
            raise BadCall(f"unknown state {show(state)}{suggest(state, UNSTARTED)}: {', '.join(UNSTARTED)}")
        if self._ask_about(lambda: self._ledger.read_history(job, 0)) is None:
            raise self._unknown_job(job)
        return self._unstarted(job, state)

    def _unstarted(self, job: str, state: str | None) -> list[str]:
        found: list[str] = []
        for where in UNSTARTED[state] if state else [one for some in UNSTARTED.values() for one in some]:
            skip, looked = 0, LOOKED_AT
            while looked == LOOKED_AT:
                looked, part = self._ask(partial(self._ledger.list_unstarted, job, where, skip, LOOKED_AT))
                skip, found = skip + looked, found + part
        return list(dict.fromkeys(found))

    def _job_names(self) -> list[str]:
        return [keys.decode_job(one) for one in self._ledger.job_names()]

    def _unknown_job(self, job: str) -> UnknownJob:
        known = [one.name for one in self.status(depths=False).jobs]
        return UnknownJob(f"no worker has registered a job {show(job)} yet{suggest(job, known)}")
