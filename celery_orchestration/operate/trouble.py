"""Trouble with Redis, in words for people: from what ``lua/status.lua`` tells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from celery_orchestration.ledger import FORGOTTEN
from celery_orchestration.operate.clock import when

FULL = "Redis is full: no new run is taken in, jobs stay in their queues; what runs and waits goes on"
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
        if epoch["left"] > 0:
            yield f"{what}; nothing starts for {epoch['left'] / 1000:.0f} s"
        elif found["now"] - began < SHOW_MS:
            yield what
    for key, text in sorted((found.get("bad") or {}).items()):
        bad = json.loads(text)
        if found["now"] - bad["at"] < SHOW_MS:
            at = when(bad["at"])
            yield f"the record {key} could not be read (at {at:%Y-%m-%d %H:%M:%S} UTC), and began anew: {bad['why']}"
