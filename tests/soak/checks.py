"""What must hold, derived only from the story that a soak recorded. Pure.

- I1: no two executions overlap that the gate forbids, and no run executes twice at once; the fences of a run rise; only
  the outcome of the latest start is accepted, and only one.
- I2: every run that was sent has ended in an allowed way. Messages that the broker lost are excused where plain Celery
  loses them, too.
- I3: one run for each fire; schedulers do not take part in the soak yet, see ``one_run_per_fire``.
- I4: a run that may start does start: nothing is left over at the end, and no run waited for long while nothing was in
  its way.
- I5: the ledger holds nothing but configuration.

An execution is *void* if its worker stood still (SIGSTOP) long enough to lose its lease: nobody can stop its code. It
may overlap others, but then its outcome must not have been accepted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from soak.plan import LEASE, SWEEP, Run
from soak.story import ACCEPTED, PLAIN, READY, Rule, Story
from support.history import Span

#: Seconds that a run may wait with nothing in its way. These checks are strict about order, but not about time: the
#: machine may be slow.
PATIENCE = 10.0
#: Seconds until a message that a dead worker had fetched is back in its queue and was taken, counted from the sweep.
REDELIVERY = 5.0


@dataclass(frozen=True)
class Violation:
    invariant: str
    what: str
    at: float
    runs: tuple[str, ...] = ()


Check = Callable[[Story], Iterable[Violation]]


def violations(story: Story) -> list[Violation]:
    return [found for check in CHECKS for found in check(story)]


# -- I1


def forbidden_overlaps(story: Story) -> Iterator[Violation]:
    running: list[Span] = []
    for span in story.spans:
        begin = span.start.monotonic
        running = [other for other in running if story.gone[other.start.execution] > begin]
        # An execution that is void itself does not violate the gate; nor do executions that are void when it starts.
        if story.void_since(span) > begin:
            holding = [other for other in running if story.void_since(other) > begin]
            for why, others in _forbidden(story, span, holding):
                if not _lost_for_want_of_time(story, others, begin):
                    yield Violation("I1", why, begin, (span.run, *(other.run for other in others)))
        running.append(span)


def _forbidden(story: Story, span: Span, holding: list[Span]) -> Iterator[tuple[str, list[Span]]]:
    if same := [other for other in holding if other.run == span.run]:
        yield f"run {span.run} of {span.job} is executed twice at once", same
    rule = story.rules.get(span.job)
    if rule is None:
        return
    peers = [
        other for other in holding if other.job == span.job and (not rule.keyed or other.start.note == span.start.note)
    ]
    if rule.cap is not None and len(peers) >= rule.cap:
        key = f" with key {span.start.note}" if rule.keyed else ""
        yield f"{len(peers) + 1} runs of {span.job}{key} together, {rule.cap} may", peers
    for other in holding:
        theirs = story.rules.get(other.job, Rule())
        if other.job in rule.blocks or span.job in theirs.blocks:
            yield f"{span.job} and {other.job} together, which block each other", [other]
    cap = story.plan.max_running
    jobs = [other for other in holding if other.job in story.rules]
    if cap is not None and len(jobs) >= cap:
        yield f"{len(jobs) + 1} runs together, {cap} may", jobs


def _lost_for_want_of_time(story: Story, others: list[Span], at: float) -> bool:
    """Whether one of them may have lost its lease because the machine stood still."""
    return any(not story.accepted(other) and story.stalled(other.start.monotonic, at) for other in others)


def fences(story: Story) -> Iterator[Violation]:
    for run, spans in story.by_run.items():
        sound = [span for span in spans if span.start.fence and story.void_since(span) > span.start.monotonic]
        for first, second in pairwise(sound):
            if first.start.fence >= second.start.fence:
                yield Violation("I1", f"the fence of run {run} does not rise", second.start.monotonic, (run,))


def accepted_outcomes(story: Story) -> Iterator[Violation]:
    """Only the latest start's outcome is accepted, and only one for each attempt."""
    accepted: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in story.kinds["settled"]:
        if entry["answer"] in ACCEPTED:
            accepted[entry["run"]].append(entry)
    for run, entries in accepted.items():
        counts: dict[int, int] = defaultdict(int)
        for entry in entries:
            counts[entry["attempt"]] += 1
            later = [
                span
                for span in story.by_run[run]
                if (span.start.fence or 0) > entry["fence"]
                and (entry["outcome"] not in ("retry", "requeued") or span.start.attempt <= entry["attempt"])
                and entry["outcome"] != "requeued"
            ]
            if later:
                what = f"run {run}: {entry['outcome']} was accepted with fence {entry['fence']}, a later one started"
                yield Violation("I1", what, entry["at"], (run,))
        for attempt, count in counts.items():
            if count > 1 and not any(e["outcome"] == "requeued" for e in entries):
                what = f"{count} outcomes of attempt {attempt} of run {run} were accepted"
                yield Violation("I1", what, entries[-1]["at"], (run,))


def stored_results(story: Story) -> Iterator[Violation]:
    """The result is that of the execution whose outcome was accepted, or of one that had ended before that one began:
    its worker died before it could report. (Celery keeps the first success that is stored.)"""
    for run, spans in story.by_run.items():
        result = story.results.get(run)
        accepted = [span for span in spans if span.end and story.accepted(span)]
        if not isinstance(result, int) or not accepted:
            continue
        last = accepted[-1]
        stored = [span for span in spans if span.start.fence == result and span.end]
        before = any(span is last or span.end.monotonic < last.start.monotonic for span in stored if span.end)
        if not before:
            what = f"the result of run {run} is of fence {result}, accepted was {last.start.fence}"
            yield Violation("I1", what, last.start.monotonic, (run,))


# -- I2


#: Seconds from the end of a task's code until Celery has stored how it ended.
STORING = 0.5


def written_over(story: Story) -> list[str]:
    """Runs that succeeded, and whose result another worker overwrote. Celery checks whether a success is stored, and
    then stores its own state: a worker that stands still in between, and loses its lease, stores its state when it
    continues."""
    found = []
    for run, spans in story.by_run.items():
        accepted = [entry["at"] for span in spans for entry in story.settled[run, span.start.fence or 0]
                    if entry["answer"] == "ok" and entry["outcome"] == "succeeded"]  # fmt: skip
        stopped = any(
            worker == span.start.worker and span.end.monotonic < begin < span.end.monotonic + STORING and at < end
            for span in spans
            if span.end and not story.accepted(span)
            for worker, begin, end in story.stops
            for at in accepted
        )
        if stopped and story.states.get(run, "PENDING") not in READY:
            found.append(run)
    return found


def ends(story: Story) -> Iterator[Violation]:
    """Every run that was sent has ended in an allowed way; a run that has not ended is found here or by ``stuck``."""
    sent = {run: entry["at"] for entry in story.kinds["sent"] for run in entry["runs"]}
    lost = set(written_over(story))
    for _, run in story.plan.runs():
        at, state = sent.get(run.id), story.states.get(run.id, "PENDING")
        if at is None:
            continue
        spans = story.by_run.get(run.id, [])
        if state in READY:
            if state not in _may_end(story, run, lost):
                yield Violation("I2", f"run {run.id} of {run.job} ended as {state}, not {run.ends}", at, (run.id,))
            if state == "SUCCESS" and not any(span.end and span.end.outcome == "returned" for span in spans):
                yield Violation("I2", f"run {run.id} of {run.job} succeeded and was never executed", at, (run.id,))
        elif run.id not in lost and run.id not in story.listed and run.id not in story.queued:
            yield Violation("I2", f"run {run.id} of {run.job} is {state} and nowhere to be found", at, (run.id,))


def _may_end(story: Story, run: Run, lost: set[str]) -> tuple[str, ...]:
    if run.job == PLAIN and _touched(story, run.id):
        return (*run.ends, "FAILURE")  # WorkerLostError
    return run.ends


def _touched(story: Story, run: str) -> bool:
    """Whether a fault happened to a worker that had it."""
    workers = {entry["worker"] for entry in story.kinds["received"] if entry["run"] == run}
    pids = {span.start.pid for span in story.by_run.get(run, [])}
    return any(entry["worker"] in workers for entry in story.kinds["struck"]) or any(story._deaths[pid] for pid in pids)


def repeats(story: Story) -> Iterator[Violation]:
    """A run that was executed to its end is not executed again, unless its worker or the connection to the ledger
    failed."""
    for run, spans in story.by_run.items():
        for first, second in pairwise(spans):
            if first.start.attempt != second.start.attempt or first.end is None or first.job not in story.rules:
                continue
            # A worker that is stopping may be so busy that it reports its outcomes too late.
            begin, end = first.start.monotonic - LEASE, second.start.monotonic
            struck = any(
                begin < entry["at"] < end
                and entry["worker"] == first.start.worker
                and entry.get("pid") in (None, first.start.pid)
                for entry in story.kinds["struck"]
            )
            still = any(w == first.start.worker and a < end and b > begin for w, a, b in story.stops)
            if not struck and not still and not story.stalled(begin, end):
                what = f"run {run} of {first.job} had ended ({first.end.outcome}) and was executed again"
                yield Violation("I2", what, second.start.monotonic, (run,))


def gathered(story: Story) -> Iterator[Violation]:
    """The body of a chord gets the results of all members of its header."""
    for _, run in story.plan.runs():
        for span in story.by_run.get(run.id, []) if run.job == "gather" else ():
            if span.start.note != run.kwargs["expected"]:
                what = f"the chord's body {run.id} got {span.start.note} results of {run.kwargs['expected']}"
                yield Violation("I2", what, span.start.monotonic, (run.id,))


# -- I3


def one_run_per_fire(story: Story) -> Iterator[Violation]:
    """For a soak with schedulers: the journal has the fires, and each (entry, due time) must have one run."""
    runs: dict[tuple[str, float], set[str]] = defaultdict(set)
    for entry in story.kinds["fire"]:
        runs[entry["entry"], entry["due"]].add(entry["run"])
    for (name, due), ids in runs.items():
        if len(ids) > 1:
            yield Violation("I3", f"{len(ids)} runs of {name}, due at {due}", 0.0, tuple(sorted(ids)))


# -- I4


def stuck(story: Story) -> Iterator[Violation]:
    """Every run has ended when the soak is at rest: there was time enough."""
    last = max((entry["at"] for entry in story.journal), default=0.0)
    for _, run in story.plan.runs():
        state = story.states.get(run.id, "PENDING")
        where = story.listed.get(run.id) or ("in the broker" if run.id in story.queued else "")
        if where and state not in READY:
            yield Violation("I4", f"run {run.id} of {run.job} has not ended: {where}", last, (run.id,))


def waited_for_nobody(story: Story) -> Iterator[Violation]:
    """No run waits for long while no earlier run is in its way and nothing is broken."""
    sent = {run: entry["at"] for entry in story.kinds["sent"] for run in entry["runs"]}
    broken = list(_broken(story))
    singles = [call.runs[0] for call in story.plan.calls if call.shape == "single" and call.runs[0].id in sent]
    lives = [(run, sent[run.id], _last_end(story, run.id)) for run in singles if run.job in story.rules]
    for run, begin, _ in lives:
        starts = story.by_run.get(run.id)
        if not starts or run.options or run.job in _DEPENDENT or "REVOKED" in run.ends:
            continue
        end = starts[0].start.monotonic
        if end - begin <= PATIENCE:
            continue
        in_the_way = [
            (max(a, begin), b)
            for other, a, b in lives
            if other is not run and a <= end and _conflict(story, run, other)
        ]
        waited = _longest_gap(begin, end, [*broken, *in_the_way])
        if waited > PATIENCE:
            what = f"run {run.id} of {run.job} waited {waited:.1f} s with nobody in its way"
            yield Violation("I4", what, end, (run.id,))


def recovered(story: Story) -> Iterator[Violation]:
    """A run whose process or worker died is started again: at once, or within a lease and a sweep. Runs with another
    fault in between are not checked: it may have interrupted the run a second time."""
    children = {entry["pid"] for entry in story.kinds["struck"] if entry.get("pid")}
    breaks = [entry["at"] for kind in ("fault", "dies", "act", "stall") for entry in story.kinds[kind]]
    for run, spans in story.by_run.items():
        for first, second in pairwise(spans):
            died, again = story.gone[first.start.execution], second.start.monotonic
            if first.end is not None or first.job not in story.rules or not story.killed(first):
                continue
            limit = PATIENCE + (0.0 if first.start.pid in children else LEASE + 2 * SWEEP)
            # The fault that killed it was recorded just before.
            if again - died > limit and not any(died + 0.1 < at < again for at in breaks):
                what = f"run {run} of {first.job} was killed and went again after {again - died:.1f} s"
                yield Violation("I4", what, again, (run,))


#: Shapes of runs whose dependencies may be in the way.
_DEPENDENT = ("process", "publish", "report")


def _conflict(story: Story, run: Run, other: Run) -> bool:
    mine, theirs = story.rules[run.job], story.rules[other.job]
    if story.plan.max_running is not None:
        return True
    if run.job == other.job:
        return mine.cap is not None and (not mine.keyed or run.kwargs.get("key") == other.kwargs.get("key"))
    return other.job in mine.blocks or run.job in theirs.blocks


def _last_end(story: Story, run: str) -> float:
    if story.states.get(run) not in READY:
        return math.inf
    return max((story.gone[span.start.execution] for span in story.by_run.get(run, [])), default=math.inf)


def _broken(story: Story) -> Iterator[tuple[float, float]]:
    """The times at which something was broken, including the time to repair it."""
    recovery = LEASE + 2 * SWEEP
    for entry in story.kinds["fault"]:
        yield entry["at"], entry["at"] + entry.get("seconds", 0.0) + recovery + REDELIVERY
    for entry in (*story.kinds["dies"], *story.kinds["death"]):
        yield entry["at"], entry["at"] + recovery + REDELIVERY
    for entry in story.kinds["act"]:
        yield entry["at"], entry["at"] + entry.get("seconds", 0.0)
    for entry in story.kinds["stall"]:
        yield entry["since"], entry["at"] + recovery


def _longest_gap(begin: float, end: float, covered: Iterable[tuple[float, float]]) -> float:
    """The longest part of the time between the two that no interval covers."""
    longest, at = 0.0, begin
    for a, b in sorted(covered):
        if a > end:
            break
        longest = max(longest, a - at)
        at = max(at, b)
    return max(longest, end - at)


# -- I5, and the processes themselves


def leftovers(story: Story) -> Iterator[Violation]:
    last = max((entry["at"] for entry in story.journal), default=0.0)
    for key, value in story.leftovers.items():
        yield Violation("I5", f"left in the ledger: {key}: {value}", last)


def workers(story: Story) -> Iterator[Violation]:
    """A worker ends only if we end it, and every worker ends when it is stopped."""
    for entry in story.kinds["ended_by_itself"]:
        yield Violation("I4", f"worker {entry['worker']} ended by itself: {entry['code']}", entry["at"])
    for entry in story.kinds["did_not_end"]:
        yield Violation("I4", f"worker {entry['worker']} was asked to end and did not", entry["at"])


CHECKS: tuple[Check, ...] = (
    forbidden_overlaps,
    fences,
    accepted_outcomes,
    stored_results,
    ends,
    repeats,
    gathered,
    one_run_per_fire,
    stuck,
    waited_for_nobody,
    recovered,
    leftovers,
    workers,
)
