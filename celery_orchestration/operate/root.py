"""The root cause: why something does not run, and the line that mends it. Pure.

It follows from the last link of the chain (``operate/explain.py``), and from why the one before it waits for that. What
only the code or the broker can tell (:class:`Surroundings`) is asked where the ledger alone could say no more than that
nothing has happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_orchestration.job.policy import show
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate import overdue, reading, reasons, redis_problems
from celery_orchestration.operate.broker import Stranger
from celery_orchestration.operate.clock import lasting, when
from celery_orchestration.operate.explain import Step, doing
from celery_orchestration.operate.explanation import Cause, Code
from celery_orchestration.operate.hints import command, redis_cli, worker_for

#: Seconds after which somebody may want to end a run that others wait for.
LONG = 60
#: What a run that is active keeps the one before it in the chain from, by the rule that says so.
_KEPT: dict[str, Code] = {"room": "room", "blocked": "blocked", "depends": "busy", "behind": "behind"}
#: What a dependency lacks.
_WANTING: dict[str, tuple[Code, str]] = {
    "never": ("never_ran", "has never ended"),
    "failed": ("failed", "failed the last time it ran"),
    "old": ("old", "ended too long ago for what depends on it"),
    "stale": ("stale", "has not ended since the last start of what depends on it"),
}


@dataclass(frozen=True)
class Surroundings:
    """What the ledger does not know."""

    #: Where jobs of this app's code are sent.
    queue_of: Mapping[str, str] = field(default_factory=dict)
    #: Jobs that the code has a schedule for that our scheduler fires, and those that another beat does.
    scheduled: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    #: How our scheduler is started.
    beat: str = command(program="beat")
    #: Dependency cycles of the code.
    cycles: Sequence[Sequence[str]] = ()
    #: Where the ledger is.
    address: str = ""
    #: Whether workers start though Redis may evict keys.
    allow_eviction: bool = False
    #: Workers on a queue that the ledger does not know. They are asked: that takes a second.
    strangers: Callable[[str], Sequence[Stranger]] = lambda queue: ()
    #: The pool of a queue, and how many workers it is to have, if a live supervisor runs that pool.
    supervised: Callable[[str], tuple[str, int] | None] = lambda queue: None


@dataclass(frozen=True)
class Finder:
    """`found`: what ``lua/verbs/operator/explain.lua`` tells."""

    found: Mapping[str, Any]
    around: Surroundings = Surroundings()

    def root(self, chain: Sequence[Step]) -> Cause:
        last, before = chain[-1], chain[-2] if len(chain) > 1 else None
        if "cycle" in last.found:
            return _ring([step.job for step in chain[last.found["cycle"] - 1 :]])
        if last.words:
            return getattr(self, f"_{last.rule}", self._held)(last)
        if last.run is not None:
            return getattr(self, f"_is_{last.run.state}", self._is_active)(last, before)
        return self._is_idle(last.job) if before is None else self._is_wanting(last.job, before)

    # -- the last link waits for something that is no run: one method per word of the gate

    def _held(self, last: Step) -> Cause:
        """By a run that was gone when it was looked for."""
        rule, name, how = (*last.words, "", "")[:3]
        code = _WANTING[how][0] if how in _WANTING else _KEPT[rule]
        return Cause(code=code, job=name or last.job, text=reasons.sentence(last.words, lambda _: ""))

    def _epoch(self, last: Step) -> Cause:
        left = lasting(self.found["clock_left"] / 1000)
        text = f"the ledger may have forgotten something: nothing starts for {left}"
        return Cause(code="epoch", job=last.job, text=text, wrong=True)

    def _paused(self, last: Step) -> Cause:
        pause = reading.pause_of(self.found.get("pause"))
        text = "everything is paused"
        if pause is not None:
            text += f", by {pause.by} {self._ago(pause.at.timestamp())}" + (f": {pause.why}" if pause.why else "")
        return Cause(code="paused", job=last.job, text=text, wrong=True, mend=command("resume"))

    def _disabled(self, last: Step) -> Cause:
        return self._off(last.job)

    def _off(self, job: str) -> Cause:
        told = self.told(job)
        off = json.loads(told["disabled"])
        by_failures = off["by"] == "failures"
        by = "" if by_failures else f" by {off['by']}"
        text = f"{job} was disabled{by} {self._ago(off['at'] / 1000)}" + (f": {off['why']}" if off["why"] else "")
        if told.get("cools"):
            text += f"; it is tried again in {lasting(max(0, told['cools'] - self.found['now']) / 1000)}"
        elif told.get("probe"):
            text += f"; run {told['probe']} tries whether it works again"
        elif self._may_be_tried(job):
            text += f"; its next run tries whether it works again: {self._asked_for(job).text}"
        code: Code = "disabled_by_failures" if by_failures else "disabled_by_person"
        return Cause(code=code, job=job, text=text, wrong=True, mend=command("enable", job))

    def _may_be_tried(self, job: str) -> bool:
        """It is disabled, and the gate lets one run pass all the same."""
        return "disabled" in self.told(job) and self.told(job).get("probe") == ""

    def _unknown(self, last: Step) -> Cause:
        job = last.job
        return (
            self._cycle_of_code(job)
            or self._stranger(job, self.around.queue_of.get(job))
            or self._no_worker(job)
            or Cause(
                code="unknown_job",
                job=job,
                text=f"no worker has brought a job {job} yet",
                wrong=True,
                mend="start a worker whose code has it, or correct the name in depends_on",
            )
        )

    def _nobody(self, last: Step) -> Cause:
        job = last.job
        return self._no_worker(job) or Cause(
            code="no_release",
            job=job,
            text=reasons.no_release(job, last.words[2]),
            wrong=True,
            mend=reasons.rid_of(job),
        )

    def _global(self, last: Step) -> Cause:
        text = f"as many runs of all jobs as allowed: {self.found['total']} of {self.found.get('max_running')}"
        return Cause(code="global_cap", job=last.job, text=text)

    def _due(self, last: Step) -> Cause:
        error = self.told(last.job).get("last_error") if last.run is not None and last.run.retries else None
        text = f"{last.job} is not to start before {last.words[1]}"
        text += f": it is tried again, after {error}" if error else ""
        return Cause(code="due_later", job=last.job, text=text)

    def _alone(self, last: Step) -> Cause:
        text = "its workers died: it is tried alone, when one has nothing else to do"
        return Cause(code="alone", job=last.job, text=text)

    def _astray(self, last: Step) -> Cause:
        text = f"{last.job} came to a worker whose release lacks the job: a worker that has it takes it within seconds"
        return Cause(code="astray", job=last.job, text=text)

    def _slot(self, last: Step) -> Cause:
        text = f"all slots of the workers that serve queue {last.words[1]} are busy"
        return self._unserved(last.job, last.found["queue"]) or Cause(code="no_slot", job=last.job, text=text)

    # -- the last link is a run that does not wait: one method per state

    def _is_active(self, last: Step, _: Step | None) -> Cause:
        assert last.run is not None
        return Cause(code="released", job=last.job, text=f"{last.job} {doing(last.run)}")

    def _is_running(self, last: Step, before: Step | None) -> Cause:
        run, job = last.run, last.job
        assert run is not None
        text = f"{job} {doing(run)}"
        mend: str | None
        if run.timed_out:
            mend = "its code cannot be interrupted: restart its worker, and have the code end in time"
            return self._died(last) or Cause(code="past_time_limit", job=job, text=text, wrong=True, mend=mend)
        code = _KEPT.get(before.rule, "running") if before else "running"
        mend = command("cancel", "--terminate", run.id) if code != "running" and run.seconds > LONG else None
        return self._died(last) or Cause(code=code, job=job, text=text, mend=mend)

    def _is_queued(self, last: Step, _: Step | None) -> Cause:
        assert last.run is not None
        text = f"{last.job} {doing(last.run)}"
        return self._unserved(last.job, last.found["queue"]) or Cause(code="handed_over", job=last.job, text=text)

    _is_granted = _is_queued

    def _is_retrying(self, last: Step, _: Step | None) -> Cause:
        error = self.told(last.job).get("last_error")
        text = f"{last.job} is to be tried again" + (f", after {error}" if error else "")
        return Cause(code="retrying", job=last.job, text=text)

    def _is_ending(self, last: Step, _: Step | None) -> Cause:
        text = f"{last.job} is about to end: a worker tells Celery"
        return self._no_worker(last.job) or Cause(code="ending", job=last.job, text=text)

    def _died(self, last: Step) -> Cause | None:
        """The worker of a running run, as far as one can tell: its lease may not be over yet."""
        worker = (self.found.get("workers") or {}).get(last.found["run"]["worker"])
        if worker is None or not worker["silent"]:
            return None
        silent = self.found["now"] - worker["beat"]
        text = f"{last.job} was started on {worker['name']}, which has been silent for {lasting(silent / 1000)}"
        if not self.found["live"] and not self.found["led"]:
            text += ": nobody is alive to recover the run"
            return Cause(code="worker_died", job=last.job, text=text, wrong=True, mend=command(program="worker"))
        left = worker["lease"] - silent
        text += f": the run is recovered {f'in {lasting(left / 1000)}' if left > 0 else 'at the next sweep'}"
        return Cause(code="worker_died", job=last.job, text=text, wrong=True)

    # -- nobody has asked for a run of the last link's job, and one could start

    def _is_idle(self, job: str) -> Cause:
        found = self._full(job) or self._unserved(job, self.around.queue_of.get(job)) or self._unheard(job)
        if found is not None and found.code != "pool_at_rest":
            return found
        asked = self._off(job) if self._may_be_tried(job) else self._asked_for(job)
        return asked if found is None else asked.model_copy(update={"text": f"{asked.text}; {found.text}"})

    def _is_wanting(self, job: str, before: Step) -> Cause:
        """`before` depends on the job, which lacks something."""
        asked = self._off(job) if before.words[2] == "disabled" else self._is_idle(job)
        if asked.wrong:
            return asked
        code, text = _WANTING[before.words[2]]
        error = self.told(job).get("last_error") if code == "failed" else None
        text = f"{job} {text}" + (f": {error}" if error else "")
        comes = asked.code == "scheduled"
        mend = None if comes else self._trigger(job)
        return Cause(code=code, job=job, text=f"{text}; {asked.text}", wrong=code == "failed" or not comes, mend=mend)

    def _unheard(self, job: str) -> Cause | None:
        """It has never ended, as far as the ledger knows."""
        return None if "ended" in self.told(job) else self._stranger(job, self.around.queue_of.get(job))

    def _asked_for(self, job: str) -> Cause:
        """By whom, and when."""
        entries = self._entries(job)
        following = overdue.next_fire(entries)
        resting = [entry for entry in entries if entry["paused"]]
        if resting and len(resting) == len(entries):
            return _resting(job, resting[0])
        led = any(entry.get("led", self.found["led"]) for entry in entries) if entries else self.found["led"]
        if not led and (entries or job in self.around.scheduled):
            text = f"no scheduler leads: {job} is not fired"
            return Cause(code="no_scheduler", job=job, text=text, wrong=True, mend=self.around.beat)
        if entries:
            soon = "" if following is None else f" in {lasting(max(0, following - self.found['now']) / 1000)}"
            return Cause(code="scheduled", job=job, text=f"its next run is due{soon or ' when its last one ended'}")
        if job in self.around.scheduled:
            text = f"the code has a schedule for {job}, but the scheduler that leads does not: it has other code"
            mend = f"{self.around.beat}  # restart it with this code"
            return Cause(code="entry_missing", job=job, text=text, wrong=True, mend=mend)
        if job in self.around.elsewhere:
            text = "it is fired by a beat that is not ours: the ledger does not know when"
            return Cause(code="scheduled", job=job, text=text)
        text = "it has no schedule: it runs when somebody calls it"
        return Cause(code="not_asked_for", job=job, text=text, mend=self._trigger(job))

    def _trigger(self, job: str) -> str:
        """A job of another app is not this one's to call."""
        return command("trigger", job) if job in self.around.queue_of else f"call {show(job)} from the app that has it"

    def _full(self, job: str) -> Cause | None:
        """Runs that were asked for stay in their queues, unknown to the ledger."""
        if not self.found.get("full"):
            return None
        mend = f"{command('doctor')}  # says how to give it more memory"
        return Cause(code="redis_full", job=job, text=redis_problems.FULL, wrong=True, mend=mend)

    # -- nobody takes anything from a queue

    def _unserved(self, job: str, queue: str | None) -> Cause | None:
        # Those of workers that died are counted until somebody sweeps.
        if queue is None or (self.found["live"] and (self.found.get("slots") or {}).get(queue)):
            return None
        return (
            (None if self.found["live"] else self._cycle_of_code(job))
            or self._stranger(job, queue)
            or self._redis_evicts(job)
            or self._supervised(job, queue)
            or self._no_worker(job)
            or Cause(
                code="unserved_queue",
                job=job,
                text=f"no live worker serves queue {queue}, where {job} is sent",
                wrong=True,
                mend=worker_for(queue),
            )
        )

    def _supervised(self, job: str, queue: str) -> Cause | None:
        """A supervisor starts the workers of this queue."""
        pool, wanted = self.around.supervised(queue) or ("", 0)
        if not pool:
            return None
        if not wanted:
            text = f"pool {pool} has no worker now: its supervisor starts one when runs are ready"
            return Cause(code="pool_at_rest", job=job, text=text)
        text = f"pool {pool} has no live worker now, and is to have {wanted}: its supervisor starts them"
        mend = command("explain", f"pool:{pool}")
        return Cause(code="unserved_queue", job=job, text=text, wrong=True, mend=mend)

    def _redis_evicts(self, job: str) -> Cause | None:
        policy = self.found.get("eviction", "")
        if self.found["live"] or not policy.startswith("allkeys-") or self.around.allow_eviction:
            return None
        text = f"no worker starts while Redis may drop parts of the ledger: its maxmemory-policy is {policy}"
        mend = redis_cli(self.around.address, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        return Cause(code="redis_evicts", job=job, text=text, wrong=True, mend=mend)

    def _no_worker(self, job: str) -> Cause | None:
        if self.found["live"]:
            return None
        if found := self._redis_evicts(job):
            return found
        return Cause(code="no_worker", job=job, text="no worker is alive", wrong=True, mend=command(program="worker"))

    def _stranger(self, job: str, queue: str | None) -> Cause | None:
        found = self.around.strangers(queue) if queue else ()
        if not found:
            return None
        names = ", ".join(one.name for one in found)
        if found[0].namespace is not None:
            return Cause(
                code="worker_of_another_app",
                job=job,
                text=f"queue {queue} is served by {names} of namespace {found[0].namespace}, too: what that "
                "takes is lost to this app",
                wrong=True,
                mend="give each app a broker of its own: another database of Redis, another virtual host of RabbitMQ",
            )
        return Cause(
            code="worker_without_extension",
            job=job,
            text=f"queue {queue} is served by {names} without the extension: what is taken from there "
            "passes no gate, and the ledger does not hear how it ended",
            wrong=True,
            mend="install celery_orchestration there (and no orchestration_mode off), or keep it from that queue: -Q",
        )

    def _cycle_of_code(self, job: str) -> Cause | None:
        ring = next((cycle for cycle in self.around.cycles if job in cycle), None)
        return None if ring is None else _ring(ring, of_code=True)

    # -- what the ledger tells

    def told(self, job: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _by_job(self.found["jobs"], job, {})
        return found

    def next_fire(self, job: str) -> datetime | None:
        ms = overdue.next_fire(self._entries(job))
        return None if ms is None else when(ms)

    def _entries(self, job: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = _by_job(self.found["fires"], job, [])
        return found

    def _ago(self, at: float) -> str:
        return f"{lasting(max(0.0, self.found['now'] / 1000 - at))} ago"


def _by_job(told: Mapping[str, Any] | None, job: str, none: Any) -> Any:
    return next((one for name, one in (told or {}).items() if decode_job(name) == job), none)


def _resting(job: str, entry: Mapping[str, Any]) -> Cause:
    name, off = entry["name"], json.loads(entry["off"])
    text = f"entry {name} of the schedule is paused by {off['by']}" + (f": {off['why']}" if off["why"] else "")
    return Cause(code="entry_paused", job=job, text=text, wrong=True, mend=command("schedule", "resume", name))


def _ring(jobs: Sequence[str], of_code: bool = False) -> Cause:
    ring = " → ".join([*jobs, jobs[0]])
    text = f"the code has a dependency cycle, so that no worker starts: {ring}"
    mend = "take one of these out of depends_on"
    if not of_code:
        text = f"they wait for each other: {ring}"
        mend += ", and end the workers that still have it: the releases that are live form the cycle together"
    return Cause(code="cycle", job=jobs[0], text=text, wrong=True, mend=mend)
