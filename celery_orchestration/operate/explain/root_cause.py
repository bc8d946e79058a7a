"""The root cause: why something does not run, and the command that fixes it. Pure.

It follows from the last link of the chain (``chain.py``), and from why the link before it waits for that one. The code
and the broker (:class:`Surroundings`) are asked only where the ledger alone could say no more than that nothing has
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_orchestration.job import reasons
from celery_orchestration.job.reasons import RootCause
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.explain.chain import Step, activity
from celery_orchestration.operate.explain.idle_causes import IdleCauses
from celery_orchestration.operate.explain.models import Cause
from celery_orchestration.operate.explain.queue_causes import cycle
from celery_orchestration.operate.hints import command, no_release, without_release
from celery_orchestration.operate.models import RunStatus
from celery_orchestration.operate.status.runs import pause_of

#: Seconds after which somebody may want to end a run that others wait for.
LONG = 60


class RootCauseFinder(IdleCauses):
    def root(self, chain: Sequence[Step]) -> Cause:
        last, before = chain[-1], chain[-2] if len(chain) > 1 else None
        if "cycle" in last.found:
            return cycle([step.job for step in chain[last.found["cycle"] - 1 :]])
        if last.words:
            return self._waits(last)
        if last.run is not None:
            return self._has_a_run(last, last.run, before)
        return self.idle(last.job) if before is None else self.lacks_something(last.job, before)

    # -- the last link waits, but not for another run

    def _waits(self, last: Step) -> Cause:
        """The table (``job/reasons.py``) has a sentence and a fix for every reason; these reasons have more to say."""
        more: dict[str, Callable[[Step], Cause]] = {
            "epoch": self._epoch,
            "paused": self._paused,
            "disabled": lambda last: self.disabled(last.job),
            "unknown": self._unknown,
            "nobody": self._nobody,
            "global": self._global,
            "due": self._due,
            "alone": self._alone,
            "astray": self._astray,
            "slot": self._slot,
        }
        return more.get(last.rule, self._held)(last)

    def _held(self, last: Step) -> Cause:
        """The cause as the table of reasons has it."""
        reason, name, condition = reasons.REASONS[last.rule], *(*last.words[1:], "", "")[:2]
        code = reasons.CONDITIONS[condition].root_cause if last.rule == "depends" else reason.root_cause
        return Cause(
            code=code,
            job=(name if reason.names_job else "") or last.job,
            text=reasons.sentence(last.words, lambda _: ""),
            wrong=reason.needs_somebody,
            fix=command(*(word.format(last.job) for word in reason.fix)) if reason.fix else None,
        )

    def _epoch(self, last: Step) -> Cause:
        left = lasting(self.found["clock_left"] / 1000)
        text = f"the ledger may have lost data: nothing starts for {left}"
        return Cause(code="epoch", job=last.job, text=text, wrong=True)

    def _paused(self, last: Step) -> Cause:
        pause = pause_of(self.found.get("pause"))
        text = "everything is paused"
        if pause is not None:
            text += f", by {pause.by} {self.ago(pause.at.timestamp())}" + (f": {pause.why}" if pause.why else "")
        return Cause(code="paused", job=last.job, text=text, wrong=True, fix=command("resume"))

    def _unknown(self, last: Step) -> Cause:
        job = last.job
        return (
            self.cycle_of_code(job)
            or self.unknown_worker(job, self.around.queue_of.get(job))
            or self.no_worker(job)
            or Cause(
                code="unknown_job",
                job=job,
                text=f"no worker has registered a job {job} yet",
                wrong=True,
                fix="start a worker whose code has it, or correct the name in depends_on",
            )
        )

    def _nobody(self, last: Step) -> Cause:
        job = last.job
        return self.no_worker(job) or Cause(
            code="no_release",
            job=job,
            text=no_release(job, last.words[2]),
            wrong=True,
            fix=without_release(job),
        )

    def _global(self, last: Step) -> Cause:
        text = f"as many runs of all jobs as allowed: {self.found['total']} of {self.found.get('max_running')}"
        return Cause(code="global_cap", job=last.job, text=text)

    def _due(self, last: Step) -> Cause:
        error = self.job_record(last.job).get("last_error") if last.run is not None and last.run.retries else None
        text = f"{last.job} is not due before {last.words[1]}"
        text += f": it is retried, after {error}" if error else ""
        return Cause(code="due_later", job=last.job, text=text)

    def _alone(self, last: Step) -> Cause:
        text = "its workers died: it is retried alone, when a worker has nothing else to do"
        return Cause(code="alone", job=last.job, text=text)

    def _astray(self, last: Step) -> Cause:
        text = f"{last.job} came to a worker whose release lacks the job: another worker takes it within seconds"
        return Cause(code="astray", job=last.job, text=text)

    def _slot(self, last: Step) -> Cause:
        text = f"all slots of the workers that serve queue {last.words[1]} are busy"
        return self.unserved_queue(last.job, last.found["queue"]) or Cause(code="no_slot", job=last.job, text=text)

    # -- the last link has a run that does not wait

    def _has_a_run(self, last: Step, run: RunStatus, before: Step | None) -> Cause:
        if run.state == "running":
            return self._is_running(last, run, before)
        if run.state in ("queued", "granted"):
            return self._is_queued(last, run)
        if run.state == "retrying":
            return self._is_retrying(last)
        if run.state == "ending":
            return self._is_ending(last)
        return Cause(code="released", job=last.job, text=f"{last.job} {activity(run)}")

    def _is_running(self, last: Step, run: RunStatus, before: Step | None) -> Cause:
        job = last.job
        text = f"{job} {activity(run)}"
        fix: str | None
        if run.timed_out:
            fix = "its code cannot be interrupted: restart its worker, and make the code end in time"
            return self._died(last) or Cause(code="past_time_limit", job=job, text=text, wrong=True, fix=fix)
        held = reasons.REASONS.get(before.rule) if before else None
        code: RootCause = held.root_cause if held is not None and held.names_job else "running"
        fix = command("cancel", "--terminate", run.id) if code != "running" and run.seconds > LONG else None
        return self._died(last) or Cause(code=code, job=job, text=text, fix=fix)

    def _is_queued(self, last: Step, run: RunStatus) -> Cause:
        text = f"{last.job} {activity(run)}"
        return self.unserved_queue(last.job, last.found["queue"]) or Cause(code="handed_over", job=last.job, text=text)

    def _is_retrying(self, last: Step) -> Cause:
        error = self.job_record(last.job).get("last_error")
        text = f"{last.job} will be retried" + (f", after {error}" if error else "")
        return Cause(code="retrying", job=last.job, text=text)

    def _is_ending(self, last: Step) -> Cause:
        text = f"{last.job} is about to end: a worker is reporting that to Celery"
        return self.no_worker(last.job) or Cause(code="ending", job=last.job, text=text)

    def _died(self, last: Step) -> Cause | None:
        """The cause if the worker of the run is silent. Its lease may still hold."""
        worker = (self.found.get("workers") or {}).get(last.found["run"]["worker"])
        if worker is None or not worker["silent"]:
            return None
        silent = self.found["now"] - worker["heartbeat"]
        text = f"{last.job} was started on {worker['name']}, which has been silent for {lasting(silent / 1000)}"
        if not self.found["live"] and not self.found["led"]:
            text += ": nobody is alive to recover the run"
            return Cause(code="worker_died", job=last.job, text=text, wrong=True, fix=command(program="worker"))
        left = worker["lease"] - silent
        text += f": the run is recovered {f'in {lasting(left / 1000)}' if left > 0 else 'at the next sweep'}"
        return Cause(code="worker_died", job=last.job, text=text, wrong=True)
