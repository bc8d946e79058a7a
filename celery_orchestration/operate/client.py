"""Orchestration: the ledger from Python, for operators and their scripts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger
from celery.utils.nodenames import default_nodename, host_format
from kombu.exceptions import EncodeError, KombuError, OperationalError

from celery_orchestration import commands
from celery_orchestration.errors import (
    AmbiguousRun,
    BadCall,
    BrokerUnavailable,
    ConfigurationError,
    LedgerError,
    LedgerRefused,
    LedgerUnavailable,
    UnknownJob,
    UnknownRun,
    UnknownWorker,
)
from celery_orchestration.job import queues
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.policy import pool_problems, show, suggest
from celery_orchestration.job.task import limits_of, owner_of, read_settings
from celery_orchestration.ledger import BEAT, Grant, Ledger, keys
from celery_orchestration.operate import code, reading
from celery_orchestration.operate.hints import me
from celery_orchestration.operate.models import (
    MOST_HISTORY,
    OUTCOMES,
    SHORTEST_ID,
    Cancelled,
    CancelledRuns,
    Change,
    DeadLetter,
    Ended,
    JobStatus,
    Letter,
    Purged,
    Released,
    Requeued,
    Status,
    Triggered,
)
from celery_orchestration.operate.status_filter import narrowed

if TYPE_CHECKING:  # loaded when they are asked for: a status comes quicker without
    from celery_orchestration.node.stores import Names
    from celery_orchestration.operate.dependency_graph import Picture
    from celery_orchestration.operate.diagnosis import Diagnosis, Health
    from celery_orchestration.operate.explanation import Explanation
    from celery_orchestration.operate.forecast import Forecast
    from celery_orchestration.operate.measure import Measured
    from celery_orchestration.operate.pool_models import Desired, PoolsStatus
    from celery_orchestration.operate.pools import Pools
    from celery_orchestration.operate.schedule import Schedule
    from celery_orchestration.operate.statistics import Statistics, Unit
    from celery_orchestration.pools.figures import PoolLook

T = TypeVar("T")
logger = get_logger(__name__)

#: How many workers are asked to sweep: one may be busy.
MOST_ASKED = 3
#: The broker does not take a message, or the ledger does not answer.
_UNREACHABLE = (KombuError, OSError, LedgerError)

#: How far a forecast goes at most.
MOST_FORECAST_HOURS = 7 * 24
#: How many runs a status lists at most.
MOST_RUNNING, MOST_WAITING = 1000, 100
#: The beginning of a run's id is looked for among so many that wait or are dead; of those that it may mean so many are
#: named.
MOST_FOUND, NAMED = 1000, 5
#: How many runs or letters are dealt with at a time.
PART = 100

_NOT_REQUEUED = {
    "none": "it is no dead letter any more",
    "unknown": "no worker has its job",
    "exists": "a run of that id has not ended",
    "protocol": "its message is of Celery's protocol 1",
}
#: Where runs that have not started are, by the state that people name.
UNSTARTED = {"waiting": ("waiting", "later"), "queued": ("deadlines",)}
#: How many runs are looked at in one call.
LOOKED_AT = 1000


class Orchestration:
    """The jobs of an app, seen and steered from outside. Needs no worker to answer."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._settings = read_settings(app)
        self._ledger = Ledger.of(app, self._settings)

    @property
    def app(self) -> Celery:
        return self._app

    def close(self) -> None:
        self._ledger.close()

    @cached_property
    def schedule(self) -> Schedule:
        """What fires when, and how people change that."""
        from celery_orchestration.operate.schedule import Schedule  # noqa: PLC0415

        return Schedule(self._app, self._settings, self._ledger, self._ask)

    def status(
        self,
        *,
        jobs: Collection[str] = (),
        states: Collection[str] = (),
        pools: Collection[str] = (),
        depths: bool = True,
    ) -> Status:
        """Jobs, runs, workers and queues, as one script saw them; of very many jobs, as several did.

        `jobs` (patterns, or parts of names), `states` and `pools` narrow it to jobs of which all that is given holds.
        `depths`: whether the broker is asked how much is in the queues.
        """
        whole, sent = self._status()
        found = narrowed(whole, jobs, states, pools, sent)
        return self._with_pools(self._with_depths(found), pools, bool(jobs or states)) if depths else found

    def _with_pools(self, status: Status, names: Collection[str], narrowed: bool) -> Status:
        """`narrowed`: only pools of jobs that are shown."""
        table = self._settings.pools
        if not table:
            return status
        from celery_orchestration.operate.pools import pools_status, without_resting  # noqa: PLC0415

        looks = self.pool_looks()
        shown = {job.pool for job in status.jobs} if narrowed else table.keys()
        wanted = {name: looks[name] for name in table if name in shown and (not names or name in names)}
        found = pools_status(wanted, status)
        problems = [*without_resting(status.problems, looks), *found.problems]
        return status.model_copy(update={"pools": found.pools, "problems": problems})

    def pools(self, *names: str) -> PoolsStatus:
        """The pools of orchestration_pools: what they have to do, their workers, and how their number changed."""
        from celery_orchestration.operate.pools import pools_status  # noqa: PLC0415

        status, _ = self._status()
        found = pools_status(self.pool_looks(names), status)
        problems = [*self._pool_problems(), *found.problems]
        return found.model_copy(update={"problems": list(dict.fromkeys(problems))})

    def desired(self) -> Desired:
        """How many workers each pool is to have, for what scales elsewhere. Needs no supervisor."""
        return self._pools.desired()

    def pool_looks(self, names: Collection[str] = ()) -> dict[str, PoolLook]:
        return self._pools.look(names)

    @cached_property
    def _pools(self) -> Pools:
        from celery_orchestration.operate.pools import Pools  # noqa: PLC0415

        return Pools(self._app, self._ledger, self._ask, self._settings.pools)

    def _pool_problems(self) -> list[str]:
        return pool_problems(self._settings.pools, code.sound_jobs(self._app)[0])

    def _with_depths(self, status: Status) -> Status:
        from celery_orchestration.operate import broker  # noqa: PLC0415

        told = broker.depths(self._app, [queue.name for queue in status.queues], self._store_names())
        counted = [queue.model_copy(update={"depth": told.messages[queue.name]}) for queue in status.queues]
        fetched = told.fetched if broker.kind(self._app) == "redis" else self._count_fetched(status)
        workers = [one.model_copy(update={"fetched": fetched.get(one.name)}) for one in status.workers]
        problems = [*status.problems, *([told.problem] if told.problem else [])]
        return status.model_copy(update={"queues": counted, "workers": workers, "problems": problems})

    def _count_fetched(self, status: Status) -> dict[str, int]:
        """Where the broker does not tell what workers have fetched, they do."""
        from celery_orchestration.operate import broker  # noqa: PLC0415

        told = broker.answers(self._app, commands.INSPECT, [one.name for one in status.workers if one.state != "dead"])
        answered = {name: reply for name, reply in told.replies.items() if isinstance(reply, Mapping)}
        return {name: len(reply["fetched"]) for name, reply in answered.items() if "fetched" in reply}

    def _store_names(self) -> Names:
        from celery_orchestration.node.stores import Names  # noqa: PLC0415

        return Names.in_app(self._app, self._settings.namespace)

    def _status(self) -> tuple[Status, dict[str, list[str]]]:
        """And the queues that jobs are sent to, each with its jobs."""
        found = self._ask(lambda: self._ledger.read_status(MOST_RUNNING, MOST_WAITING))
        jobs, mistakes = code.sound_jobs(self._app)
        sent = queues.destinations(self._app, jobs)
        scheduled = partial(self._is_scheduled, found["entries"])
        status = reading.status(self._settings.namespace, found, sent, limits_of(self._app), scheduled, jobs)
        lines = [line for mistake in mistakes for line in mistake.splitlines()]
        return status.model_copy(update={"problems": [*lines, *status.problems]}), sent

    def explain(self, job_or_run: str, *, ask_workers: bool = True) -> Explanation:
        """Why a job or a run does not run, down to the root; or what it is doing, did last, and when it runs next.

        `ask_workers`: whether they are asked, too, where the ledger knows of nothing; that takes a second."""
        from celery_orchestration.operate.explainer import Explainer  # noqa: PLC0415

        return Explainer(self._app, self._ledger, self._ask, self.schedule, ask_workers).explain(job_or_run)

    def doctor(self) -> Diagnosis:
        """What bites, or could: each with why it matters and the line that mends it. Asks ledger, broker and workers,
        and takes a second or two. Raises nothing about them: what does not answer is a finding."""
        from celery_orchestration.operate import doctor  # noqa: PLC0415

        return doctor.diagnose(self._app, self._settings, self._ledger, self.schedule)

    def health(self, worker: str | None = None, scheduler: bool = False) -> Health:
        """Does the ledger answer, and may runs start? Of a worker (its name as given with ``-n``): does its lease
        hold? Of schedulers: does one lead? In one round trip."""
        from celery_orchestration.operate import health  # noqa: PLC0415

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
        """The id of a run that has not ended, or of a dead letter, for people: by its beginning, too, if a status lists
        the run or it is one of the latest dead letters. `ended`: or one that has, if a history has it."""
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
                else f"there is no run {show(id_or_prefix)}, or it is over"
            )
        if len(found) > 1:
            shown = ", ".join(show(one) for one in sorted(found)[:NAMED])
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            raise AmbiguousRun(f"{show(id_or_prefix)} may mean {shown}{more}: give more of its id")
        return found[0]

    def _ended_like(self, beginning: str) -> list[str]:
        jobs = [keys.decode_job(job["name"]) for job in self._ask(self._ledger.read_graph)["jobs"]]
        records = [self._ask(lambda job=job: self._ledger.read_history(job, MOST_HISTORY)) or () for job in jobs]  # type: ignore[misc]
        ids = [reading.id_of(record) for of_job in records for record in of_job]
        letters = self._ask(lambda: self._ledger.find_ids(beginning, True, SHORTEST_ID, MOST_RUNNING, MOST_FOUND))
        return [*letters, *(id for id in ids if id.startswith(beginning))]

    def graph(self, job: str | None = None) -> Picture:
        """Which jobs wait for which, and which never run together; of one job, what it has to do with."""
        from celery_orchestration.operate.dependency_graph import about, picture  # noqa: PLC0415

        found = picture(self._settings.namespace, self._ask(self._ledger.read_graph), code.jobs(self._app))
        if job is None:
            return found
        known = [one.name for one in found.jobs]
        if job not in known:
            raise UnknownJob(f"there is no job {show(job)}{suggest(job, known)}")
        return about(found, job)

    def history(self, job: str, count: int = 100, outcomes: Collection[str] = ()) -> list[Ended]:
        """How the last runs of a job ended, the latest first; `outcomes`: only those that ended so."""
        if unknown := [one for one in outcomes if one not in OUTCOMES]:
            raise BadCall(f"no run ends as {show(unknown[0])}{suggest(unknown[0], OUTCOMES)}: {', '.join(OUTCOMES)}")
        found = self._ask_about(lambda: self._ledger.read_history(job, MOST_HISTORY if outcomes else count))
        if found is None:
            raise self._unknown(job)
        runs = (reading.ended(job, one) for one in found)
        return list(islice((run for run in runs if not outcomes or run.outcome in outcomes), count))

    def statistics(self, *jobs: str, by: Unit = "minute", hours: float | None = None) -> Statistics:
        """What these jobs did over time, all if none is named: by the minute for up to 24 hours, by the hour for up to
        30 days. Jobs that the ledger does not know did nothing."""
        from celery_orchestration.operate.statistics import read  # noqa: PLC0415

        return self._ask(lambda: read(self._ledger, jobs or self._job_names(), by, hours))

    def totals(self, *jobs: str) -> Statistics:
        """The same of all time, as far as the ledger goes back."""
        from celery_orchestration.operate.statistics import read  # noqa: PLC0415

        return self._ask(lambda: read(self._ledger, jobs or self._job_names(), "all"))

    def measured(self) -> Measured | None:
        """What metrics are made of, in bounded reads; None if the ledger does not answer."""
        from celery_orchestration.operate.measure import measure  # noqa: PLC0415

        try:
            return self._ask(lambda: measure(self._app, self._ledger))
        except LedgerError:
            return None

    def forecast(self, hours: float = 24) -> Forecast:
        """When each job of this app will run, what will wait for what, and what cannot end in time: the coming due
        times, put through the gate's rules, with runs that take as long as usual and succeed."""
        from celery_orchestration.operate import planner  # noqa: PLC0415
        from celery_orchestration.operate.forecast import forecast  # noqa: PLC0415

        if not 0 < hours <= MOST_FORECAST_HOURS:
            raise BadCall(f"a forecast goes up to {MOST_FORECAST_HOURS} hours ahead, not {hours:g}")
        jobs = code.jobs(self._app)
        status, usual = self.status(depths=False), self.statistics(*jobs, by="hour", hours=planner.USUAL_HOURS)
        known = self._ask(lambda: planner.entries_of(self._ledger))
        return forecast(planner.plan(self._app, jobs, status, usual, known, hours))

    def _job_names(self) -> list[str]:
        return [keys.decode_job(one) for one in self._ledger.job_names()]

    def audit(self, count: int = 100) -> list[Change]:
        """Who changed what, the latest first."""
        return [reading.change(one) for one in self._ask(lambda: self._ledger.read_audit(count))]

    # -- what people change: each is written into the audit -----------------------------------------

    def trigger(
        self, job: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, force: bool = False
    ) -> Triggered:
        """Asks for a run. `force`: it starts even if the job is disabled or everything paused, and before others; the
        other rules hold for it, too."""
        jobs = code.jobs(self._app)
        if job not in jobs:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs)}")
        task = self._app.tasks[job]
        self._ask(lambda: None)  # or else Celery tries for long to reach a Redis that is not there
        headers = {queues.FORCE_HEADER: True} if force else {}
        try:
            with denied_join_result():  # nobody waits for the result here: its store is not asked for it
                result = task.apply_async(args, dict(kwargs or {}), headers=headers)
        except (TypeError, EncodeError) as exc:
            raise BadCall(f"job {show(job)} cannot be called like that: {exc}") from exc
        except (OperationalError, OSError) as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take the call: {exc}") from exc
        try:
            self._ask(
                lambda: self._ledger.record_audit(me(), "trigger", keys.encode_job(job), "forced" if force else "")
            )
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"run {result.id} was sent, but is not in the audit: {exc}") from exc
        return Triggered(run_id=result.id, job=job, forced=force)

    def enable(self, job: str) -> JobStatus:
        """The job runs again: its failures are forgotten, and the runs that were held go, in rank order."""
        return self._switch(job, True, "")

    def disable(self, job: str, reason: str = "") -> JobStatus:
        """No run of the job starts until somebody enables it. What runs goes on."""
        return self._switch(job, False, reason)

    def pause(self, reason: str = "") -> Status:
        """No run of any job starts until somebody resumes. What runs goes on."""
        self._ask(lambda: self._ledger.pause_or_resume(True, me(), reason))
        return self.status(depths=False)

    def resume(self, reason: str = "") -> Status:
        self._hand_over(self._ask(lambda: self._ledger.pause_or_resume(False, me(), reason)))
        return self.status(depths=False)

    def cancel(self, run_id: str, terminate: bool = False) -> Cancelled:
        """Calls a run off that has not started: it ends as revoked. A running one only if `terminate`.

        How it ended is told to Celery by a worker: at once, or with its next sweep if it is busy.
        """
        state, grants = self._ask(lambda: self._ledger.cancel_by_hand(me(), run_id))
        self._hand_over(grants)
        if not state and run_id in self._fetched():
            self._revoke(run_id, "", terminate=False)
            return Cancelled(run_id=run_id, called_off=True, terminated=False, state="fetched")
        if not state:
            raise UnknownRun(f"there is no run {show(run_id)}, or it is over")
        called_off = state in ("waiting", "later", "granted", "queued")
        if called_off:
            self._have_swept()
        terminated = terminate and not called_off
        if terminated:
            self._revoke(run_id, "terminated", terminate=True)
        return Cancelled(run_id=run_id, called_off=called_off, terminated=terminated, state=state)

    def drain(self, worker: str) -> None:
        """Has a worker stop when its runs have ended: it takes no more, and shows as draining until it is gone."""
        known = [one.name for one in self._ask(self._ledger.list_nodes).members if one.kind != BEAT]
        if worker not in known:
            raise UnknownWorker(f"there is no worker {show(worker)}{suggest(worker, known)}")
        self._ask(lambda: self._ledger.record_audit(me(), "drain", keys.encode_job(worker), ""))
        try:
            self._app.control.shutdown(destination=[worker])
        except _UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take it, the worker goes on: {exc}") from exc

    def _revoke(self, run_id: str, note: str, terminate: bool) -> None:
        self._ask(lambda: self._ledger.record_audit(me(), "cancel", run_id, note))
        try:
            self._app.control.revoke(run_id, terminate=terminate)
        except _UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take it, the run goes on: {exc}") from exc

    def _fetched(self) -> dict[str, tuple[str, str]]:
        """Runs that wait for a slot in the worker that has fetched them: the ledger has not heard of them."""
        from celery_orchestration.operate import broker  # noqa: PLC0415

        workers = [one.name for one in self._ask(self._ledger.list_nodes).members if one.kind != BEAT]
        return broker.held(self._app, "fetched", workers)

    def unstarted(self, job: str, state: str | None = None) -> list[str]:
        """Ids of the runs of a job that have not started. `state`: only those that wait (``waiting``), or only those
        that were handed over to a queue (``queued``)."""
        if state is not None and state not in UNSTARTED:
            raise BadCall(f"unknown state {show(state)}{suggest(state, UNSTARTED)}: {', '.join(UNSTARTED)}")
        if self._ask_about(lambda: self._ledger.read_history(job, 0)) is None:
            raise self._unknown(job)
        return self._unstarted(job, state)

    def _unstarted(self, job: str, state: str | None) -> list[str]:
        found: list[str] = []
        for where in UNSTARTED[state] if state else [one for some in UNSTARTED.values() for one in some]:
            skip, looked = 0, LOOKED_AT
            while looked == LOOKED_AT:
                looked, part = self._ask(partial(self._ledger.list_unstarted, job, where, skip, LOOKED_AT))
                skip, found = skip + looked, found + part
        return list(dict.fromkeys(found))

    def cancel_all(self, job: str, state: str | None = None) -> CancelledRuns:
        """Calls off the runs of a job that have not started; `state` as in :meth:`unstarted`. They end as revoked. What
        runs goes on."""
        return self.cancel_runs(job, self.unstarted(job, state))

    def cancel_runs(self, job: str, run_ids: Sequence[str]) -> CancelledRuns:
        """Those of these runs that have not started meanwhile."""
        count = 0
        for i in range(0, len(run_ids), PART):
            done, grants = self._ask(partial(self._ledger.cancel_all_by_hand, me(), run_ids[i : i + PART]))
            self._hand_over(grants)
            count += done
        if count:
            self._have_swept()
        return CancelledRuns(job=job, count=count)

    def _have_swept(self) -> None:
        """A worker carries out what was left in the ledger. If none hears of it, one does so with its next sweep."""
        workers = [one.name for one in self._ask(self._ledger.list_nodes).members if one.kind != BEAT]
        if workers:
            asked = random.sample(workers, min(len(workers), MOST_ASKED))
            with suppress(*_UNREACHABLE):
                self._app.control.broadcast(commands.SWEEP, destination=asked)

    def release_all(self) -> Released:
        """Publishes everything that waits now, past the gate, and gives back what workers have fetched from a Redis
        broker and not acknowledged: the way out, once the workers run without orchestration.

        One at a time: two that do it together may publish a run twice.
        """
        count, which = 0, ""
        while True:
            which, part = self._ask(lambda which=which: self._ledger.release_waiting(me(), PART, which))  # type: ignore[misc]
            if not part:
                return Released(count=count, given_back=self._give_back_fetched())
            try:
                self._publish([(queue, Envelope.unpack(message), "") for _, queue, message in part])
            except _UNREACHABLE as exc:
                raise BrokerUnavailable(
                    f"{self._broker()} does not take them: {exc}; {count} runs were published, the others wait on"
                ) from exc
            count += self._ask(lambda part=part: self._ledger.confirm_released([id for id, _, _ in part]))  # type: ignore[misc]

    def _give_back_fetched(self) -> int:
        from celery_orchestration.operate import broker  # noqa: PLC0415

        try:
            return broker.give_back_all(self._app, self._store_names())
        except _UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not answer: {exc}") from exc

    # -- dead letters -------------------------------------------------------------------------------

    def dead_letters(self, job: str | None = None, count: int = 100, skip: int = 0) -> list[DeadLetter]:
        """Runs that failed for good, the latest first."""
        found = self._ask_about(lambda: self._ledger.list_dead_letters(job, max(0, skip), count))
        if found is None:
            raise self._unknown(job or "")
        return [reading.dead_letter(*one) for one in found]

    def dead_letter(self, run_id: str) -> Letter:
        found = self._ask(lambda: self._ledger.read_dead_letter(run_id))
        if found is None:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return reading.letter(*found)

    def requeue(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        everything: bool = False,
        as_job: str | None = None,
    ) -> Requeued:
        """One dead letter, those of a job, or all become runs again, from the beginning: without their retries so far,
        their `expires` and `eta`. They keep their ids, but for those that were revoked.

        `as_job`: they become runs of that job. So do runs that wait, if one is named, or their job: for one that was
        renamed or removed."""
        ids = self._letters(run_id, job, everything)
        if as_job is not None and job is not None:
            ids += self._unstarted(job, "waiting")
        found = self.requeue_letters(ids, as_job)
        if run_id is not None and found.left.get(run_id) == _NOT_REQUEUED["none"]:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return found

    def requeue_letters(self, run_ids: Sequence[str], as_job: str | None = None) -> Requeued:
        """These dead letters, in this order; those that are gone meanwhile are left."""
        queue = None if as_job is None else self._queue_of(as_job)
        runs, left = {}, {}
        for id in run_ids:
            what, new = self._requeue(id) if as_job is None else self._requeue_as(id, as_job, queue or "")
            if what == "ok":
                runs[id] = new
            else:
                left[id] = _NOT_REQUEUED[what]
        return Requeued(runs=runs, left=left)

    def purge(self, run_id: str | None = None, *, job: str | None = None, everything: bool = False) -> Purged:
        """One dead letter, those of a job, or all go."""
        found = self.purge_letters(self._letters(run_id, job, everything))
        if run_id is not None and not found.count:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return found

    def purge_letters(self, run_ids: Sequence[str]) -> Purged:
        """These dead letters, as far as they are still there."""
        parts = [run_ids[i : i + PART] for i in range(0, len(run_ids), PART)]
        count = sum(self._ask(lambda part=part: self._ledger.purge_dead_letters(me(), part)) for part in parts)  # type: ignore[misc]
        return Purged(count=count)

    def _letters(self, run_id: str | None, job: str | None, everything: bool) -> list[str]:
        """The ids of those that are meant, the oldest first."""
        if sum((run_id is not None, job is not None, everything)) != 1:
            raise BadCall("name one run, or a job, or say that all are meant")
        if run_id is not None:
            return [run_id]
        found: list[str] = []
        while part := self.dead_letters(job, PART, len(found)):
            found += [letter.id for letter in part]
        return list(dict.fromkeys(reversed(found)))

    def _requeue(self, id: str) -> tuple[str, str]:
        found = self._ask(lambda: self._ledger.read_dead_letter(id))
        if found is None:
            return "none", id
        _, revoked, message = found
        new = str(uuid4()) if revoked else id
        envelope = Envelope.unpack(message)
        envelope = envelope.again(new if revoked else envelope.headers.get("id") or id)
        attempt = keys.attempt(envelope.headers.get("replaced_task_nesting") or 0, 0)
        what, grants = self._ask(lambda: self._ledger.requeue(me(), id, new, attempt, envelope.pack()))
        self._hand_over(grants)
        return what, new

    def _requeue_as(self, id: str, job: str, queue: str) -> tuple[str, str]:
        found = self._ask(lambda: self._ledger.read_dead_letter(id, or_run=True))
        if found is None:
            return "none", id
        info, revoked, message = found
        new, envelope = str(uuid4()) if revoked else id, Envelope.unpack(message)
        if info != "{}":  # a dead letter begins anew
            envelope = envelope.again(new if revoked else envelope.headers.get("id") or id)
        try:
            envelope = envelope.renamed(job, queue)
        except ValueError:
            return "protocol", id
        headers = envelope.headers
        attempt = keys.attempt(headers.get("replaced_task_nesting") or 0, headers.get("retries") or 0)
        other = job, queue, queues.granted_queue_for(queue, self._app.conf.task_default_queue)
        what, grants = self._ask(lambda: self._ledger.requeue(me(), id, new, attempt, envelope.pack(), other))
        self._hand_over(grants)
        return what, new

    def _queue_of(self, job: str) -> str:
        jobs = code.jobs(self._app)
        if job not in jobs:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs)}")
        found = queues.destinations(self._app, [job])
        if not found:
            raise BadCall(f"job {show(job)} is sent to no queue by name")
        return next(iter(found))

    # -- inside -------------------------------------------------------------------------------------

    def _broker(self) -> str:
        """Where messages go, without secrets."""
        return f"the broker at {self._app.connection_for_write().as_uri()}"

    def _is_scheduled(self, entries: int) -> bool:
        return self.schedule.is_ours() and bool(entries or self.schedule.has_code())

    def _switch(self, job: str, on: bool, why: str) -> JobStatus:
        grants = self._ask_about(lambda: self._ledger.enable_or_disable(job, on, me(), why))
        if grants is None:
            raise self._unknown(job)
        self._hand_over(grants)
        return next(one for one in self.status(depths=False).jobs if one.name == job)

    def _unknown(self, job: str) -> UnknownJob:
        known = [one.name for one in self.status(depths=False).jobs]
        return UnknownJob(f"no worker has brought a job {show(job)} yet{suggest(job, known)}")

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            self._ledger.check(owner_of(self._app))
            return call()
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"the ledger at {self._ledger.address} does not answer: {exc}") from exc

    def _ask_about(self, call: Callable[[], T | None]) -> T | None:
        """None if the ledger does not know a job, or none can have such a name."""
        try:
            return self._ask(call)
        except ConfigurationError:
            return None

    def _hand_over(self, grants: Sequence[Grant]) -> None:
        """Publishes them. What does not get published is, by the next sweep of a worker."""
        if not grants:
            return
        try:
            found = zip(self._ledger.read_all_granted(grants), grants, strict=True)
            self._publish([(one[0], Envelope.unpack(one[1]), grant.number) for one, grant in found if one is not None])
            self._ledger.confirm_published(grants)
        except _UNREACHABLE as exc:
            logger.warning("%d runs are left to the workers to hand over: %s", len(grants), exc)

    def _publish(self, messages: Sequence[tuple[str, Envelope, str]]) -> None:
        with self._app.producer_or_acquire() as producer:
            for queue, envelope, grant in messages:
                envelope.publish(producer, queues.declared(self._app, queue), grant)
