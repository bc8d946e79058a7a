"""The gate as the design words it: a plain model that the ledger is compared with.

No counters, no indexes, no cleverness: every question is answered by looking at all runs. Where the ledger keeps
numbers up to date, this recomputes them, so that a wrong update shows as a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

HOLDS_ROOM = ("granted", "queued", "running")
LIMIT = 16


class Dep(NamedTuple):
    job: str
    on: str
    fresh: bool = False
    #: Whether the end of the dependency counts no more once it is old.
    ages: bool = False


@dataclass(frozen=True)
class Job:
    name: str
    cap: int | None = None
    keyed: bool = False
    #: All jobs that never run beside it, those of its groups included. Symmetric already.
    blocks: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    #: Those that it blocks by name.
    pairs: frozenset[str] = frozenset()
    deps: tuple[Dep, ...] = ()
    crash: str = "requeue"
    max_recoveries: int = 2
    max_failures: int | None = None
    cools: bool = False
    drop: bool = False


@dataclass
class Run:
    id: str
    job: str
    key: str
    attempt: int
    rank: tuple[int, int]
    own_queue: str
    granted_queue: str = ""
    #: Which call it comes from, and with which task id.
    publication: str = ""
    task: str = ""
    dest: str | None = None
    state: str = "new"
    worker: str | None = None
    judged: bool = False
    started: bool = False
    recoveries: int = 0
    why: str = ""
    behind: Run | None = None
    #: Of its start: when that was, and the fence.
    begun: int = 0
    fence: int = 0
    later: bool = False  # it came with a time
    alone: bool = False
    scheduled: bool = False
    #: It waits, has not started, and others depend on its job: it comes before runs of theirs that arrive later.
    first: bool = False

    @property
    def forced(self) -> bool:
        return self.rank[0] < 0


@dataclass
class Past:
    """What is remembered of a job."""

    ok: bool | None = None
    ended: int | None = None
    #: It ended longer ago than any dependency allows.
    old: bool = False
    begun: int | None = None
    failures: int = 0
    cooling: bool = False


@dataclass
class Worker:
    name: str
    slots: int
    queues: tuple[str, ...]


@dataclass
class Model:
    jobs: dict[str, Job]
    cap: int | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    #: Of runs that ended: the attempt, and the publication.
    done: dict[str, tuple[int, str]] = field(default_factory=dict)
    past: dict[str, Past] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    paused: bool = False
    #: A new epoch has begun, and the workers have not had a lease to claim what they run.
    closed: bool = False
    #: Disabled jobs, each with its probe: None (there is none), '' (there may be one) or the run.
    disabled: dict[str, str | None] = field(default_factory=dict)
    #: Workers that are kept free, each for a run.
    kept: dict[str, str] = field(default_factory=dict)
    #: Entries of the schedule, each with its last run.
    entries: dict[str, str] = field(default_factory=dict)
    clock: int = 0
    arrivals: int = 0

    def __post_init__(self) -> None:
        self.past = {name: Past() for name in self.jobs}

    # -- looking ------------------------------------------------------------------------------------

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def holding(self, job: str) -> list[Run]:
        return [run for run in self.runs.values() if run.job == job and run.state in HOLDS_ROOM]

    def total(self) -> int:
        return sum(run.state in HOLDS_ROOM for run in self.runs.values())

    def busy(self, job: str) -> bool:
        return any(run.job == job and run.started for run in self.runs.values())

    def has_room(self, job: Job, key: str) -> bool:
        holding = [run for run in self.holding(job.name) if not job.keyed or run.key == key]
        return job.cap is None or len(holding) < job.cap

    def waiting(self) -> list[Run]:
        return sorted((r for r in self.runs.values() if r.state == "waiting" and not r.alone), key=lambda r: r.rank)

    def dependencies_met(self, run: Run) -> bool:
        if run.judged:
            return True
        job = self.jobs[run.job]
        for name, on, fresh, ages in job.deps:
            past = self.past[name]
            if self.busy(name) or self.fires_before(name, run):
                return False
            if on == "idle":
                continue
            if past.ended is None or (on == "success" and not past.ok):
                return False
            if ages and past.old:
                return False
            begun = self.past[run.job].begun
            if fresh and begun is not None and past.ended <= begun:
                return False
        return True

    def fires_before(self, job: str, run: Run) -> bool:
        """Whether a waiting run of that job that has not started arrived before this one."""
        return any(r.first and r.job == job and r.rank[1] < run.rank[1] for r in self.runs.values())

    def forget_first(self) -> None:
        """Other policies are in force: nobody waits for runs of a job that no other one depends on any more."""
        for run in self.runs.values():
            run.first = run.first and self.has_dependents(run.job)

    def has_dependents(self, job: str) -> bool:
        return any(dep.job == job for other in self.jobs.values() for dep in other.deps)

    def enabled_for(self, run: Run) -> bool:
        return run.job not in self.disabled or run.forced or self.disabled[run.job] in ("", run.id)

    def counts(self, run: Run) -> bool:
        """Rules 1 and 4: only a waiting run that passes these bars others."""
        return self.enabled_for(run) and self.dependencies_met(run)

    def barred(self, run: Run, ignoring: str | None = None, copy: bool = False) -> bool:
        """``copy``: run is an arrival; that it may be a copy of a run that waits is found out later."""
        job = self.jobs[run.job]
        for other in self.waiting():
            if (other.id == run.id and not copy) or other.rank >= run.rank or not self.counts(other):
                continue
            same_lane = other.job == run.job and (not job.keyed or other.key == run.key)
            if same_lane or (other.job in job.blocks and other.job != ignoring):
                return True
        return False

    def may_start(self, run: Run, ignoring: str | None = None, copy: bool = False) -> bool:
        """Rules 1 to 5, but for the global cap, which is a matter of order."""
        job = self.jobs[run.job]
        return (
            not self.closed
            and (run.forced or not self.paused)
            and self.enabled_for(run)
            and self.has_room(job, run.key)
            and not any(self.holding(other) for other in job.blocks)
            and self.dependencies_met(run)
            and not self.barred(run, ignoring, copy)
        )

    def global_room(self) -> bool:
        return self.cap is None or self.total() < self.cap

    def slots(self, queue: str) -> int:
        return sum(worker.slots for worker in self.workers.values() if queue in worker.queues)

    def under_way(self, queue: str) -> int:
        return sum(run.dest == queue for run in self.runs.values())

    def destination(self, run: Run) -> str:
        return run.granted_queue if run.granted_queue and self.slots(run.granted_queue) else run.own_queue

    def run_id(self, task: str, publication: str) -> str:
        """The run that a message belongs to, or is to make."""
        own = f"{task}~{publication}"
        for id in (task, own):
            if id in self.runs and self.runs[id].publication == publication:
                return id
            if id in self.done and self.done[id][1] == publication:
                return id
        return own if task in self.runs or task in self.done else task

    def done_attempt(self, id: str, publication: str) -> int:
        attempt, of = self.done.get(id, (-1, ""))
        return attempt if of == publication else -1

    # -- changing -----------------------------------------------------------------------------------

    def start(self, run: Run, worker: str) -> None:
        run.state, run.worker, run.judged, run.dest, run.first = "running", worker, True, None, False
        self.past[run.job].begun = run.begun = self.tick()
        run.started = True
        self.claim(run)

    def claim(self, run: Run) -> None:
        """The first to go while a disabled job may be tried is the probe."""
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
        if run.behind is not None:
            following = run.behind
            following.state, following.started = "later" if following.later else "waiting", started
            self.runs[run.id] = following
            self.comes_first(following)

    def comes_first(self, run: Run) -> None:
        run.first = run.state == "waiting" and not run.started and self.has_dependents(run.job)

    def give_way(self, run: Run) -> None:
        if run.behind.job != run.job:
            self.note_end(run, None)
        self.forget(run, False)
        self.promote(run, run.started and run.behind.job == run.job)

    def no_longer_kept(self, run: Run) -> None:
        self.kept = {worker: id for worker, id in self.kept.items() if id != run.id}

    def recover(self, run: Run, counted: str, begun: bool = True) -> str:
        """``counted``: 'process' or 'worker' if that is what died, '' if none did."""
        run.worker = None
        self.no_longer_kept(run)
        if run.behind is not None:
            self.give_way(run)
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
        return "requeued"

    def settle(self, run: Run, outcome: str, after: list[str]) -> str:
        if outcome in ("crashed", "interrupted", "returned"):
            what = self.recover(run, "process" if outcome == "crashed" else "", outcome != "returned")
            if what == "dead":
                self.forget(run, True)
                after.append(run.job)
            return what
        self.no_longer_kept(run)
        if outcome == "retry":
            if run.behind is not None:
                self.give_way(run)
            else:
                run.state, run.worker, run.alone = "retrying", None, False
            return "ok"
        if outcome == "requeued" and run.scheduled and run.behind is None:
            # Its entry is not done with it: the message that is back in the broker counts as its next attempt.
            run.state, run.worker, run.alone, run.attempt = "retrying", None, False, run.attempt - 1
            return "ok"
        self.note_end(run, {"succeeded": True, "failed": False}.get(outcome))
        self.forget(run, outcome != "requeued")
        self.promote(run, False)
        after.append(run.job)
        return "ok"

    # -- handing over ---------------------------------------------------------------------------------

    def try_alone(self, here: Worker, free: int) -> tuple[list[str], int]:
        """Keeps the worker free for a run that has to be tried alone, and starts that if nothing else runs there."""

        def may(run: Run) -> bool:
            return self.global_room() and self.may_start(run)

        if here.name not in self.kept:
            for run in sorted(self.runs.values(), key=lambda r: r.rank):
                taken = any(id == run.id and worker in self.workers for worker, id in self.kept.items())
                waits = run.state == "waiting" and run.alone
                if waits and not taken and may(run) and self.destination(run) in here.queues:
                    self.kept[here.name] = run.id
                    break
        run = self.runs.get(self.kept.get(here.name, ""))
        if run is not None and run.alone and run.state == "waiting" and may(run):
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
            # When D ends, those who wait for D may pass D's next run.
            for ended, following in next_ones.items():
                depends = any(dep.job == ended for dep in self.jobs[run.job].deps)
                passes = depends and following.rank < run.rank and self._first_of(run.job) is run
                if passes and self.may_start(run, ignoring=ended):
                    found.append(((float(following.rank[0]), following.rank[1] - 0.5), run, place))
        return sorted(found, key=lambda one: one[0])

    def _first_of(self, name: str) -> Run | None:
        """The run a job would start next, if it may: the first that has room and passes rules 1 and 4."""
        job, waiting = self.jobs[name], (run for run in self.waiting() if run.job == name)
        return next((run for run in waiting if self.has_room(job, run.key) and self.counts(run)), None)

    def hand_over(
        self, after: list[str], here: Worker | None, free: int, spare: Callable[[], int] | None = None
    ) -> tuple[list[str], list[str], int]:
        """Returns ids granted, ids started here, and how many of the offered slots are left.

        ``spare``: says how many more slots there are, when they are needed.
        """
        granted, started = [], []
        for _ in range(LIMIT):
            if self.closed or not self.global_room():
                break
            if free <= 0 and spare is not None:
                free, spare = free + spare(), None
            candidates = self.candidates(after, here, free)
            if not candidates:
                break
            _, run, place = candidates[0]
            run.judged = True
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
        """What is known of an arrival: an answer, or '' with the attempt before it, and whether that one runs."""
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
                if self.closed:
                    run.state, run.dest = "waiting", None
                    return "wait", None, False
                self.start(run, worker)
                return "start", None, False
            return "drop", None, False
        if run.state == "running":
            if run.behind is not None and run.behind.attempt >= attempt:
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
        """Whether the gate is closed for an arrival, the so many-th of its turn, as things stand."""
        key = arrival.key if self.jobs[arrival.job].keyed else ""
        run = replace(arrival, key=key, rank=(3 - priority, self.arrivals + number))
        return worker in self.kept or not (self.global_room() and self.may_start(run, copy=True))

    def admit(self, worker: str, arrival: Run, priority: int, granted: bool, after: list[str]) -> str:
        arrival.id = self.run_id(arrival.task, arrival.publication)
        answer, before, runs = self.known(arrival, granted, worker, after)
        if answer:
            return answer
        self.arrivals += 1
        key = arrival.key if self.jobs[arrival.job].keyed else ""
        run = replace(arrival, key=key, rank=(3 - priority, self.arrivals))
        if before is not None and before.job == run.job:
            run = replace(run, rank=before.rank, recoveries=before.recoveries, judged=before.started)
            run.scheduled, run.first = before.scheduled, before.first and not run.later and not runs
        if runs and before is not None:
            run.state = "behind"
            before.behind = run
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
        if worker not in self.kept and self.global_room() and self.may_start(run):
            self.start(run, worker)
            return "start"
        self.comes_first(run)
        return "wait"

    def fire(self, entry: str, run: Run, priority: int, overlap: str) -> str:
        """An entry is due: its run goes to the gate, unless its last one keeps it from that."""
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
        """A worker tells that it has this run, by the fence that `told` has."""
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
            told, rank=(told.rank[0], self.arrivals), state="running", worker=worker, judged=True, started=True,
            recoveries=0, dest=None, behind=None, alone=False, scheduled=False, first=False,
        )  # fmt: skip
        if run is not None:
            if run.state == "running":
                self.no_longer_kept(run)
            if run.behind is not None and run.behind.attempt > told.attempt:
                new.behind = run.behind
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
        """What was running there and is not. `has`: ids and publications."""
        gone = [run for run in self.runs.values() if run.worker == worker and (run.id, run.publication) not in has]
        for run in gone:
            if self.recover(run, counted="") == "dead":
                run.state, run.why = "ending", "crashed"
        return len(gone)
