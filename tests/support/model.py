"""A simple model with which the ledger is compared. The gate's rules are those of
``celery_orchestration/job/rules.py``.

It has no counters and no indexes: the model answers every question of a rule by looking at all runs. Where the ledger
keeps numbers up to date, the model computes them again, so that a wrong update shows as a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_orchestration.job import rules
from support.gate_model import Dep, GateModel, Job, Past, Run, Worker

__all__ = ["Dep", "Job", "Model", "Past", "Run", "Worker"]

#: How many runs one call hands over.
LIMIT = 16


@dataclass
class Model(GateModel):
    """What the ledger's verbs do."""

    # -- changing -----------------------------------------------------------------------------------

    def start(self, run: Run, worker: str) -> None:
        run.state, run.worker, run.dependencies_checked, run.dest, run.first = "running", worker, True, None, False
        self.past[run.job].begun = run.begun = self.tick()
        run.started = True
        self.claim(run)

    def claim(self, run: Run) -> None:
        """The first run that goes while a disabled job may be tried is the probe."""
        if self.disabled.get(run.job) == "" and not run.forced:
            self.disabled[run.job] = run.id

    def note_end(self, run: Run, ok: bool | None) -> None:
        job, past = self.jobs[run.job], self.past[run.job]
        if ok is not None:
            past.ok, past.ended, past.old = ok, self.tick(), False
            past.failures = 0 if ok else past.failures + 1
            if job.max_failures and past.failures >= job.max_failures and run.job not in self.disabled:
                self.disabled[run.job], past.cooling = None, job.cools
        if self.disabled.get(run.job) == run.id:
            if ok:
                del self.disabled[run.job]
                past.cooling = False
            elif ok is False:
                self.disabled[run.job], past.cooling = None, job.cools
            else:
                self.disabled[run.job] = ""

    def switch(self, job: str, on: bool) -> None:
        past = self.past[job]
        past.cooling = False
        if on:
            past.failures = 0
            self.disabled.pop(job, None)
        else:
            self.disabled[job] = None

    def cooled_down(self, job: str) -> None:
        self.past[job].cooling = False
        self.disabled[job] = ""

    def forget(self, run: Run, marker: bool) -> None:
        del self.runs[run.id]
        if marker:
            self.done[run.id] = (run.attempt, run.publication)

    def promote(self, run: Run, started: bool) -> None:
        if run.next_attempt is not None:
            following = run.next_attempt
            following.state, following.started = "later" if following.later else "waiting", started
            self.runs[run.id] = following
            self.comes_first(following)

    def comes_first(self, run: Run) -> None:
        run.first = run.state == "waiting" and not run.started and self.has_dependents(run.job)

    def continue_with_retry(self, run: Run) -> None:
        if run.next_attempt.job != run.job:
            self.note_end(run, None)
        self.forget(run, False)
        self.promote(run, run.started and run.next_attempt.job == run.job)

    def no_longer_kept(self, run: Run) -> None:
        self.kept = {worker: id for worker, id in self.kept.items() if id != run.id}

    def recover(self, run: Run, counted: str, begun: bool = True) -> str:
        """``counted``: 'process' or 'worker' if that died, '' if none did."""
        run.worker = None
        self.no_longer_kept(run)
        if run.next_attempt is not None:
            self.continue_with_retry(run)
            return "superseded"
        run.recoveries += bool(counted)
        fails = begun and self.jobs[run.job].crash == "fail"
        if fails or (counted and run.recoveries > self.jobs[run.job].max_recoveries):
            if fails or counted == "process" or run.alone:
                run.started = False
                run.state = "dead"
                self.note_end(run, False)
                return "dead"
            run.alone = True
        run.state = "waiting"
        return "waits"

    def settle(self, run: Run, outcome: str, after: list[str]) -> str:
        if outcome in ("crashed", "interrupted", "returned"):
            what = self.recover(run, "process" if outcome == "crashed" else "", outcome != "returned")
            if what == "dead":
                self.forget(run, True)
                after.append(run.job)
            return what
        self.no_longer_kept(run)
        if outcome == "retry":
            if run.next_attempt is not None:
                self.continue_with_retry(run)
            else:
                run.state, run.worker, run.alone = "retrying", None, False
            return "ok"
        if outcome == "requeued" and run.scheduled and run.next_attempt is None:
            # The run goes on for its entry: the message that is back in the broker counts as its next attempt.
            run.state, run.worker, run.alone, run.attempt = "retrying", None, False, run.attempt - 1
            return "ok"
        self.note_end(run, {"succeeded": True, "failed": False}.get(outcome))
        self.forget(run, outcome != "requeued")
        self.promote(run, False)
        after.append(run.job)
        return "ok"

    # -- handing over ---------------------------------------------------------------------------------

    def try_alone(self, here: Worker, free: int) -> tuple[list[str], int]:
        """Keeps the worker free for a run that has to be tried alone, and starts the run if nothing else runs there."""
        if here.name not in self.kept:
            for run in sorted(self.runs.values(), key=lambda r: r.rank):
                taken = any(id == run.id and worker in self.workers for worker, id in self.kept.items())
                waits = run.state == "waiting" and run.alone
                if waits and not taken and self.may_start(run) and self.destination(run) in here.queues:
                    self.kept[here.name] = run.id
                    break
        run = self.runs.get(self.kept.get(here.name, ""))
        if run is not None and run.alone and run.state == "waiting" and self.may_start(run):
            if free > 0 and not any(r.worker == here.name for r in self.runs.values()):
                self.start(run, here.name)
                return [run.id], free - 1
        elif run is None or run.worker != here.name:
            self.kept.pop(here.name, None)
        return [], free

    def place(self, queue: str, here: Worker | None, free: int) -> str | None:
        if here is not None and free > 0 and queue in here.queues and here.name not in self.kept:
            return "here"
        return "queue" if self.under_way(queue) < self.slots(queue) else None

    def candidates(
        self, after: list[str], here: Worker | None, free: int
    ) -> list[tuple[tuple[float, float], Run, str]]:
        found = []
        next_ones = {job: first for job in after if (first := self._first_of(job)) is not None}
        for run in self.waiting():
            place = self.place(self.destination(run), here, free)
            if place is None:
                continue
            if self.may_start(run):
                found.append(((float(run.rank[0]), float(run.rank[1])), run, place))
            # When D ends, the runs that wait for D may pass D's next run.
            for ended, following in next_ones.items():
                depends = any(dep.job == ended for dep in self.jobs[run.job].deps)
                passes = depends and following.rank < run.rank and self._first_of(run.job) is run
                if passes and self.may_start(run, ignoring=ended):
                    found.append(((float(following.rank[0]), following.rank[1] - 0.5), run, place))
        return sorted(found, key=lambda one: one[0])

    def _first_of(self, name: str) -> Run | None:
        """The run that a job would start next: the first that has room, is enabled and has its dependencies."""
        waiting = (run for run in self.waiting() if run.job == name and rules.room(self, run) is None)
        return next((run for run in waiting if rules.bars_others(self, run)), None)

    def hand_over(
        self, after: list[str], here: Worker | None, free: int, spare: Callable[[], int] | None = None
    ) -> tuple[list[str], list[str], int]:
        """Returns the ids granted, the ids started here, and the number of offered slots that are left. ``spare``
        returns how many more slots there are, when they are needed."""
        granted, started = [], []
        for _ in range(LIMIT):
            if self.held_back():
                break
            if free <= 0 and spare is not None:
                free, spare = free + spare(), None
            candidates = self.candidates(after, here, free)
            if not candidates:
                break
            _, run, place = candidates[0]
            run.dependencies_checked = True
            if place == "here" and here is not None:
                free -= 1
                self.start(run, here.name)
                started.append(run.id)
            else:
                self.grant(run)
                granted.append(run.id)
        return granted, started, free

    def grant(self, run: Run) -> None:
        run.state, run.dest = "granted", self.destination(run)
        self.claim(run)
        self.tick()

    # -- verbs ------------------------------------------------------------------------------------------

    def known(  # noqa: PLR0911 - one return for each answer
        self, arrival: Run, granted: bool, worker: str, after: list[str]
    ) -> tuple[str, Run | None, bool]:
        """What is known of an arrival: an answer; or '' with the attempt before it, and whether that attempt is
        running."""
        attempt, job, run = arrival.attempt, arrival.job, self.runs.get(arrival.id)
        if run is None:
            ended = self.done_attempt(arrival.id, arrival.publication) >= attempt
            return ("drop", None, False) if ended else ("", None, False)
        if attempt < run.attempt:
            return "drop", None, False
        if attempt == run.attempt:
            if run.state in ("granted", "queued") and granted and worker in self.kept:
                return "kept", None, False
            if run.state in ("granted", "queued") and granted:
                if self.in_new_epoch:
                    run.state, run.dest = "waiting", None
                    self.comes_first(run)
                    return "wait", None, False
                self.start(run, worker)
                return "start", None, False
            return "drop", None, False
        if run.state == "running":
            if run.next_attempt is not None and run.next_attempt.attempt >= attempt:
                return "drop", None, False
            return "", run, True
        if run.state == "ending":
            return "drop", None, False
        self.forget(run, False)
        if run.job != job:
            self.note_end(run, None)
            after.append(run.job)
        return "", run, False

    def would_wait(self, arrival: Run, priority: int, number: int, worker: str) -> bool:
        """Whether the gate is closed for an arrival, given its number in the turn, in the present state."""
        key = arrival.key if self.jobs[arrival.job].keyed else ""
        run = replace(arrival, key=key, rank=(3 - priority, self.arrivals + number), may_be_copy=True)
        return worker in self.kept or not self.may_start(run)

    def admit(self, worker: str, arrival: Run, priority: int, granted: bool, after: list[str]) -> str:
        arrival.id = self.run_id(arrival.task, arrival.publication)
        answer, before, runs = self.known(arrival, granted, worker, after)
        if answer:
            return answer
        self.arrivals += 1
        key = arrival.key if self.jobs[arrival.job].keyed else ""
        run = replace(arrival, key=key, rank=(3 - priority, self.arrivals))
        if before is not None and before.job == run.job:
            run = replace(run, rank=before.rank, recoveries=before.recoveries, dependencies_checked=before.started)
            run.scheduled, run.first = before.scheduled, before.first and not run.later and not runs
        if runs and before is not None:
            run.state = "early"
            before.next_attempt = run
            return "wait"
        run.started = before.started if before is not None and before.job == run.job else False
        run.state = "later" if run.later else "waiting"
        self.runs[run.id] = run
        if run.later:
            return "wait"
        if self.dropped(run):
            run.state, run.why, run.started, run.first = "ending", "skipped", False, False
            self.note_end(run, None)
            return "wait"
        if worker not in self.kept and self.may_start(run):
            self.start(run, worker)
            return "start"
        self.comes_first(run)
        return "wait"

    def fire(self, entry: str, run: Run, priority: int, overlap: str) -> str:
        """An entry is due: its run goes to the gate, unless its last run prevents that."""
        last = self.runs.get(self.entries.get(entry, ""))
        in_the_way = last is not None and last.state != "ending" and (overlap == "skip" or not last.started)
        if overlap != "allow" and in_the_way:
            return "skipped"
        run.rank, run.scheduled = (3 - priority, self.arrivals + 1), True
        if self.dropped(run):
            return "skipped"
        self.arrivals += 1
        run.key = run.key if self.jobs[run.job].keyed else ""
        run.state = "later" if run.later else "waiting"
        self.comes_first(run)
        self.runs[run.id] = run
        self.entries[entry] = run.id
        return "fired"

    def dropped(self, run: Run) -> bool:
        return run.job in self.disabled and self.jobs[run.job].drop and not run.started and not self.enabled_for(run)

    def come_due(self, run: Run) -> None:
        if not run.started and not run.forced:
            self.arrivals += 1
            run.rank = (run.rank[0], self.arrivals)
        run.state = "waiting"
        self.comes_first(run)
        if self.dropped(run):
            self.end_unstarted(run.id, "skipped")

    def end_unstarted(self, id: str, why: str) -> bool:
        """A run that has not started, or waits to be tried again, is called off."""
        run = self.runs.get(id)
        if run is None or run.state not in ("later", "waiting", "granted", "queued"):
            return False
        run.state, run.why, run.started, run.dest, run.first = "ending", why, False, None, False
        self.note_end(run, None)
        return True

    def take_runs(self, worker: str, counted: str) -> None:
        self.kept.pop(worker, None)
        for run in [r for r in self.runs.values() if r.worker == worker]:
            if self.recover(run, counted) == "dead":
                run.state, run.why = "ending", "crashed"

    # -- a new epoch ------------------------------------------------------------------------------------

    def take_back(self, worker: str, told: Run) -> str:
        """A worker reports that it has this run, by the fence that `told` has."""
        run = self.runs.get(told.id)
        if run is not None and run.publication != told.publication:
            if run.state not in ("waiting", "later", "granted", "queued"):
                return "void"
            self.move_aside(run)
            run = None
        if run is None and self.done_attempt(told.id, told.publication) >= told.attempt:
            return "void"
        if run is not None:
            higher = run.attempt == told.attempt and run.state == "running" and run.fence > told.fence
            if run.attempt > told.attempt or run.state == "ending" or higher:
                return "void"
            if (run.attempt, run.state, run.fence) == (told.attempt, "running", told.fence):
                return "ok"
        self.arrivals += 1
        new = replace(
            told, rank=(told.rank[0], self.arrivals), state="running", worker=worker, dependencies_checked=True,
            started=True, recoveries=0, dest=None, next_attempt=None, alone=False, scheduled=False, first=False,
        )  # fmt: skip
        if run is not None:
            if run.state == "running":
                self.no_longer_kept(run)
            if run.next_attempt is not None and run.next_attempt.attempt > told.attempt:
                new.next_attempt = run.next_attempt
            if run.job == told.job:
                new.rank, new.recoveries, new.alone, new.scheduled = run.rank, run.recoveries, run.alone, run.scheduled
            else:
                self.note_end(run, None)
        self.runs[told.id] = new
        self.claim(new)
        past = self.past[told.job]
        past.begun = max(past.begun or 0, told.begun)
        return "ok"

    def move_aside(self, run: Run) -> None:
        """Another publication has its id."""
        del self.runs[run.id]
        if self.disabled.get(run.job) == run.id:
            self.disabled[run.job] = f"{run.task}~{run.publication}"
        run.id = f"{run.task}~{run.publication}"
        self.runs[run.id] = run
        if run.state != "later":
            run.state, run.dest = "waiting", None
            self.comes_first(run)

    def return_all_but(self, worker: str, has: set[tuple[str, str]]) -> int:
        """The runs that were running there and are not any more. `has`: ids and publications."""
        gone = [run for run in self.runs.values() if run.worker == worker and (run.id, run.publication) not in has]
        for run in gone:
            if self.recover(run, counted="") == "dead":
                run.state, run.why = "ending", "crashed"
        return len(gone)
