"""Trouble with Redis, in words for people: from what ``lua/verbs/operator/read_status.lua`` tells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery_orchestration.ledger import FORGOTTEN
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.clock import when

FULL = "Redis is full: no new run is taken in, jobs stay in their queues; what runs and waits goes on"
#: How many of a kind are named.
_NAMED = 3
#: How long a status mentions that the ledger may have forgotten something.
SHOW_MS = 24 * 3600 * 1000


def with_redis(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("full"):
        yield FULL
    policy, epoch = found.get("eviction") or "", found.get("epoch") or {}
    if policy.startswith("allkeys-"):
        yield f"Redis may drop parts of the ledger when it is full: its maxmemory-policy is {policy}"
    if epoch.get("why"):
        began = int(epoch["name"]) // 1000  # named by the tick at which it began
        at = when(began)
        what = f"the ledger {FORGOTTEN[epoch['why']]} (at {at:%Y-%m-%d %H:%M:%S} UTC)"
        restored = found.get("restored") or {}
        if epoch["why"] == "emptied" or any(restored.get(kind) for kind in ("pause", "jobs", "entries")):
            what += f"; {_restored(restored)}"
        if epoch["left"] > 0:
            yield f"{what}; nothing starts for {epoch['left'] / 1000:.0f} s"
        elif found["now"] - began < SHOW_MS:
            yield what
    for key, text in sorted((found.get("bad") or {}).items()):
        bad = json.loads(text)
        if found["now"] - bad["at"] < SHOW_MS:
            at = when(bad["at"])
            yield f"the record {key} could not be read (at {at:%Y-%m-%d %H:%M:%S} UTC), and began anew: {bad['why']}"


def _restored(told: Mapping[str, Any]) -> str:
    """What members knew of people's decisions."""
    jobs, entries = map(decode_job, told.get("jobs") or ()), told.get("entries") or ()
    found = ["the pause"] if told.get("pause") else []
    found += [f"disabled: {_listed(jobs)}"] if told.get("jobs") else []
    found += [f"entries: {_listed(entries)}"] if entries else []
    left_out = told.get("left_out") or 0
    lost = f"; {left_out} more disabled jobs or entries are lost" if left_out else ""
    return f"restored: {', '.join(found) or 'no decision of people was known'}{lost}"


def _listed(names: Iterable[str]) -> str:
    all_names = sorted(names)
    more = len(all_names) - _NAMED
    return ", ".join(all_names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
