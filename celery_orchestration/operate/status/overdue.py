"""Whether the last success of a job is older than it should be. Pure: times in ms, of Redis's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: A continuous job may take this much longer than its runs.
SLACK_MS = 60_000


def next_fire(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """The next due time of a job's entries, as ``read_status.lua`` lists them."""
    return min((entry["next"] for entry in entries if "next" in entry and not entry["paused"]), default=None)


def is_overdue(now: int, entries: Sequence[Mapping[str, Any]], succeeded: int | None, took: int | None) -> bool:
    return any(_is_late(now, entry, succeeded or 0, took or 0) for entry in entries if not entry["paused"])


def _is_late(now: int, entry: Mapping[str, Any], succeeded: int, took: int) -> bool:
    """Whether the run of the fire before the last one has not succeeded, though it had an interval and its duration."""
    if "gap" in entry:
        # The entry may have been resumed after its last fire.
        asked = max(entry.get("last", 0), entry.get("at", 0))
        return bool("at" in entry and now - max(succeeded, asked) > 2 * (entry["gap"] + took) + SLACK_MS)
    due = passed(now, entry)
    return len(due) >= 2 and succeeded < due[-2] - took


def passed(now: int, entry: Mapping[str, Any]) -> list[int]:
    """The last known due times of an entry. Those that no scheduler fired are computed from the interval."""
    fired = entry.get("last") if entry.get("last") == entry.get("at") else None
    due = [time for time in (entry.get("prev"), fired) if time is not None]
    following = entry.get("next")
    if following is not None and following <= now:
        due.append(following)
        gap = following - entry.get("last", following)
        due += range(following, now + 1, gap)[-2:] if gap > 0 else ()
    return sorted(set(due))
