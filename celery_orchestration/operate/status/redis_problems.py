"""Problems with Redis in sentences, from the answer of ``read_status.lua``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery_orchestration.ledger import FORGOTTEN
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.clock import when

FULL = "Redis is full: no new run is accepted, messages stay in their queues; running and waiting runs continue"
#: How many names a sentence lists.
_NAMED = 3
#: How long a status mentions a loss of data.
SHOW_MS = 24 * 3600 * 1000


def problems(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("full"):
        yield FULL
    policy, epoch = found.get("eviction") or "", found.get("epoch") or {}
    if policy.startswith("allkeys-"):
        yield f"Redis may drop parts of the ledger when it is full: its maxmemory-policy is {policy}"
    if epoch.get("why"):
        began = int(epoch["name"]) // 1000  # an epoch is named by the tick at which it began
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
            yield f"the record {key} could not be read (at {at:%Y-%m-%d %H:%M:%S} UTC) and was replaced: {bad['why']}"


def _restored(decisions: Mapping[str, Any]) -> str:
    """The decisions of people that workers and schedulers remembered."""
    jobs, entries = map(decode_job, decisions.get("jobs") or ()), decisions.get("entries") or ()
    found = ["the pause"] if decisions.get("pause") else []
    found += [f"disabled: {_listed(jobs)}"] if decisions.get("jobs") else []
    found += [f"entries: {_listed(entries)}"] if entries else []
    left_out = decisions.get("left_out") or 0
    lost = f"; {left_out} more disabled jobs or entries are lost" if left_out else ""
    return f"restored: {', '.join(found) or 'none was known'}{lost}"


def _listed(names: Iterable[str]) -> str:
    all_names = sorted(names)
    more = len(all_names) - _NAMED
    return ", ".join(all_names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
