"""Root causes of an idle job: a run could start, but none was asked for. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_orchestration.job import reasons
from celery_orchestration.job.reasons import RootCause
from celery_orchestration.job.text import show
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.explain.chain import Step
from celery_orchestration.operate.explain.models import Cause
from celery_orchestration.operate.explain.queue_causes import QueueCauses
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.status import overdue, redis_problems


class IdleCauses(QueueCauses):
    """The job is idle or disabled, or it lacks something that its dependents wait for."""

    def idle(self, job: str) -> Cause:
        queue = self.around.queue_of.get(job)
        found = self._redis_full(job) or self.unserved_queue(job, queue) or self._never_heard_of(job)
        if found is not None and found.code != "pool_at_rest":
            return found
        asked = self.disabled(job) if self._may_probe(job) else self.asked_for(job)
        return asked if found is None else asked.model_copy(update={"text": f"{asked.text}; {found.text}"})

    def lacks_something(self, job: str, before: Step) -> Cause:
        """`before` depends on the job, which lacks something."""
        asked = self.disabled(job) if before.words[2] == "disabled" else self.idle(job)
        if asked.wrong:
            return asked
        missing = reasons.CONDITIONS[before.words[2]]
        code = missing.root_cause
        error = self.job_record(job).get("last_error") if code == "failed" else None
        text = f"{job} {missing.about_dependency}" + (f": {error}" if error else "")
        comes = asked.code == "scheduled"
        fix = None if comes else self._trigger(job)
        return Cause(code=code, job=job, text=f"{text}; {asked.text}", wrong=code == "failed" or not comes, fix=fix)

    def _never_heard_of(self, job: str) -> Cause | None:
        """The cause if the job has never ended, and workers that the ledger does not know serve its queue."""
        return None if "ended" in self.job_record(job) else self.unknown_worker(job, self.around.queue_of.get(job))

    def asked_for(self, job: str) -> Cause:
        """When and by whom the next run will be asked for."""
        entries = self.entries(job)
        following = overdue.next_fire(entries)
        resting = [entry for entry in entries if entry["paused"]]
        if resting and len(resting) == len(entries):
            return _paused_entry(job, resting[0])
        led = any(entry.get("led", self.found["led"]) for entry in entries) if entries else self.found["led"]
        if not led and (entries or job in self.around.scheduled):
            text = f"no scheduler leads: {job} is not fired"
            return Cause(code="no_scheduler", job=job, text=text, wrong=True, fix=self.around.beat)
        if entries:
            soon = "" if following is None else f" in {lasting(max(0, following - self.found['now']) / 1000)}"
            return Cause(code="scheduled", job=job, text=f"its next run is due{soon or ' when its last one ended'}")
        if job in self.around.scheduled:
            text = f"the code has a schedule for {job}, but the leading scheduler's code does not"
            fix = f"{self.around.beat}  # restart it with this code"
            return Cause(code="entry_missing", job=job, text=text, wrong=True, fix=fix)
        if job in self.around.elsewhere:
            text = "another beat fires it: the ledger does not know when"
            return Cause(code="scheduled", job=job, text=text)
        text = "it has no schedule: it runs when somebody calls it"
        return Cause(code="not_asked_for", job=job, text=text, fix=self._trigger(job))

    def _trigger(self, job: str) -> str:
        """How to ask for a run. Only the app that has the job can call it."""
        return command("trigger", job) if job in self.around.queue_of else f"call {show(job)} from the app that has it"

    def _redis_full(self, job: str) -> Cause | None:
        """The cause if Redis is full: messages of new runs then stay in their queues, unknown to the ledger."""
        if not self.found.get("full"):
            return None
        fix = f"{command('doctor')}  # shows how to give it more memory"
        return Cause(code="redis_full", job=job, text=redis_problems.FULL, wrong=True, fix=fix)

    def disabled(self, job: str) -> Cause:
        record = self.job_record(job)
        off = json.loads(record["disabled"])
        by_failures = off["by"] == "failures"
        by = "" if by_failures else f" by {off['by']}"
        text = f"{job} was disabled{by} {self.ago(off['at'] / 1000)}" + (f": {off['why']}" if off["why"] else "")
        if record.get("cools"):
            text += f"; a run tries it again in {lasting(max(0, record['cools'] - self.found['now']) / 1000)}"
        elif record.get("probe"):
            text += f"; run {record['probe']} tests whether it works again"
        elif self._may_probe(job):
            text += f"; its next run tests whether it works again: {self.asked_for(job).text}"
        code: RootCause = "disabled_by_failures" if by_failures else "disabled_by_person"
        return Cause(code=code, job=job, text=text, wrong=True, fix=command("enable", job))

    def _may_probe(self, job: str) -> bool:
        """Whether the job is disabled, but the gate lets one run pass to test it."""
        return "disabled" in self.job_record(job) and self.job_record(job).get("probe") == ""


def _paused_entry(job: str, entry: Mapping[str, Any]) -> Cause:
    name, off = entry["name"], json.loads(entry["off"])
    text = f"entry {name} of the schedule is paused by {off['by']}" + (f": {off['why']}" if off["why"] else "")
    return Cause(code="entry_paused", job=job, text=text, wrong=True, fix=command("schedule", "resume", name))
