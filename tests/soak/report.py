"""What a soak did and what it found, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from soak.checks import Violation, written_over
from soak.story import PLAIN, Story

#: Seconds before and after a violation whose events are shown, and the maximum number of them.
AROUND, MOST = 6.0, 40


def summary(story: Story) -> Iterator[str]:
    states = Counter(story.states.get(run.id, "PENDING") for _, run in story.plan.runs())
    faults = Counter(entry["what"] for entry in story.kinds["fault"])
    yield f"runs: {_counted(states)}; executions: {len(story.spans)}"
    yield f"faults: {_counted(faults) or 'none'}"
    refused = sum(entry["answer"] == "refused" for entry in story.kinds["settled"])
    if refused:
        yield f"outcomes refused because a lease was lost: {refused}"
    if again := sorted(_recoveries(story)):
        middle, worst = again[len(again) // 2], again[-1]
        yield f"killed executions that went again: {len(again)}, after {middle:.1f} s (at most {worst:.1f} s)"
    if zombies := written_over(story):
        yield f"results that a worker wrote over which stood still while it stored another: {', '.join(zombies)}"
    if ended := story.kinds["ended_by_celery"]:
        yield f"workers that Celery ended when the broker's Redis died, as it does with plain tasks: {len(ended)}"
    if unsent := story.kinds["unsent"]:
        yield f"calls that could not be sent: {len(unsent)}"
    rest = next((entry["seconds"] for entry in story.kinds["rested"]), 0.0)
    yield f"at rest {rest:.1f} s after the last call"
    if stalls := story.kinds["stall"]:
        yield f"the machine stood still {len(stalls)} times: what lost its lease then is not held against anybody"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def _recoveries(story: Story) -> Iterator[float]:
    """Seconds between the death of an execution and the next start of its run."""
    for spans in story.by_run.values():
        for first, second in pairwise(spans):
            if first.end is None and first.job != PLAIN:
                yield max(0.0, second.start.monotonic - story.gone[first.start.execution])


def around(story: Story, violation: Violation) -> Iterator[str]:
    """The events of its runs, and the faults at that time."""
    begin = next((entry["at"] for entry in story.kinds["begin"]), 0.0)
    runs = set(violation.runs)
    events: list[tuple[float, str]] = []
    for span in story.spans:
        if span.run in runs:
            for event in (span.start, span.end):
                if event is not None:
                    said = f"{event.kind} {event.job} {event.run} attempt {event.attempt} fence {event.fence}"
                    ended = f" {event.outcome}" if event.outcome else ""
                    events.append((event.monotonic, f"{said}{ended} on {event.worker} pid {event.pid}"))
    for entry in story.journal:
        near = entry["kind"] in _FAULTS and abs(entry["at"] - violation.at) < AROUND
        if near or _belongs(entry, runs):
            events.append((entry["at"], _told(entry)))
    events.sort()
    for at, said in events[:MOST]:
        yield f"  {at - begin:8.3f}  {said}"
    if len(events) > MOST:
        yield f"  … and {len(events) - MOST} more"


_FAULTS = ("fault", "death", "dies", "stopped", "continued", "started", "ledger_is_back", "stall", "struck")


def _belongs(entry: dict[str, Any], runs: set[str]) -> bool:
    return entry.get("run") in runs or bool(runs & set(entry.get("runs", ())))


def _told(entry: dict[str, Any]) -> str:
    rest = {key: value for key, value in entry.items() if key not in ("kind", "at") and value not in (None, "")}
    if len(rest.get("runs", ())) > 6:
        rest["runs"] = f"{len(rest['runs'])} runs"
    return f"{entry['kind']} {' '.join(f'{key}={value}' for key, value in rest.items())}"


def findings(story: Story, found: list[Violation]) -> Iterator[str]:
    for number, violation in enumerate(found, 1):
        yield f"{number}. {violation.invariant} violated: {violation.what}"
        yield from around(story, violation)
