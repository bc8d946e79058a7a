"""What Celery loses, with plain tasks as well: allowed for, counted, and not more than that. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from soak.story import READY, Story

#: Seconds that a message is in the broker, or fetched and not written down: a lost one was sent so shortly before.
TAKEN = 10.0


def lost_by_broker(story: Story) -> list[str]:
    """Runs whose message kombu's Redis transport lost: popped, and not written down before its connection, its process
    or Redis died. Plain Celery loses them as well. None of them reached a worker, nobody has them, and something broke
    at that time. The rest of a canvas is lost with them."""
    broken = list(harms(story))
    if not broken:
        return []
    got: dict[str, int] = defaultdict(lambda: -1)
    for entry in story.kinds["received"]:
        got[entry["run"]] = max(got[entry["run"]], entry["retries"])
    sent = {run: entry["at"] for entry in story.kinds["sent"] for run in entry["runs"]}
    lost: dict[str, None] = {}
    for _, run in story.plan.runs():
        if story.states.get(run.id, "PENDING") in READY or run.id in story.queued:
            continue
        ended = [story.gone[span.start.execution] for id in run.after for span in story.by_run.get(id, ())]
        published = max(ended, default=sent.get(run.id, math.inf))
        unseen = got[run.id] < 0 and run.id not in story.listed and run.id not in story.by_run
        harmed = any(begin - TAKEN < published < end for begin, end in broken)
        if any(id in lost for id in run.after) or (unseen and harmed):
            lost[run.id] = None
    return list(lost)


#: Seconds from the end of a task's code until Celery has stored how it ended.
STORING = 0.5


def written_over(story: Story) -> list[str]:
    """Runs that succeeded, and whose result a zombie wrote over. Celery looks whether a success is stored, then stores
    its own state: a worker that stands still in between, and loses its lease, stores it when it goes on."""
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


def harms(story: Story) -> Iterator[tuple[float, float]]:
    """When something happened that makes kombu's Redis transport lose messages."""
    if story.plan.topology == "rabbitmq":
        return
    harmful = {"kill_worker", "cut_broker"} | ({"kill_ledger"} if story.plan.topology == "together" else set())
    for entry in story.kinds["fault"]:
        if entry["what"] in harmful:
            yield entry["at"], entry["at"] + entry.get("seconds", 0.0) + 1.0
    for entry in (*story.kinds["dies"], *story.kinds["ended_by_celery"]):
        yield entry["at"], entry["at"] + 1.0
