"""Why a run waits, in a sentence: from the words that the gate gives (``closed`` in ``lua/lib/gate.lua``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_DEPENDENCY = {
    "unknown": "no worker has brought that job yet",
    "never": "it has never ended",
    "failed": "its last run failed",
    "old": "its last run is too long ago",
    "stale": "it has not ended since this job's last start",
}


def sentence(words: Sequence[str], holder: Callable[[str], str]) -> str:
    """`holder(job)` tells who holds room of a job: 'running on w1@host for 12 s', or ''."""
    rule, *rest = words
    name = rest[0] if rest else ""
    if rule == "paused":
        return "everything is paused"
    if rule == "disabled":
        return f"the job is disabled: {name}"
    if rule == "room":
        what = f"{name} with key {rest[1]!r}" if len(rest) > 1 and rest[1] else name
        return _with(f"waiting for room: as many runs of {what} as allowed", holder(name))
    if rule == "global":
        return "waiting for room: as many runs of all jobs as allowed"
    if rule == "blocked":
        return _with(f"waiting for {name}", holder(name))
    if rule == "depends":
        how = rest[1]
        return _with(f"waiting for {name}", holder(name) or "busy" if how == "busy" else _DEPENDENCY[how])
    if rule == "behind":
        return f"waiting behind a run of {name} that came first"
    if rule == "attempt":
        return "waiting for the attempt before it to end"
    if rule == "slot":
        return f"waiting for a free slot on queue {name}"
    return " ".join(words)


def _with(what: str, detail: str) -> str:
    return f"{what}: {detail}" if detail else what
