"""The facts from which root causes follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.broker import Stranger
from celery_orchestration.operate.clock import lasting, when
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.status import overdue


@dataclass(frozen=True)
class Surroundings:
    """Facts that the ledger does not know."""

    #: The queues of this app's jobs.
    queue_of: Mapping[str, str] = field(default_factory=dict)
    #: Jobs with a schedule in the code: those that this extension's scheduler fires, and those that another beat fires.
    scheduled: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    #: The command that starts this extension's scheduler.
    beat: str = command(program="beat")
    #: Dependency cycles in the code.
    cycles: Sequence[Sequence[str]] = ()
    #: The address of the ledger.
    address: str = ""
    #: Whether workers start although Redis may evict keys.
    allow_eviction: bool = False
    #: Workers on a queue that the ledger does not know. To ask them takes a second.
    strangers: Callable[[str], Sequence[Stranger]] = lambda queue: ()
    #: The pool of a queue, and how many workers it should have, if a live supervisor runs that pool.
    supervised: Callable[[str], tuple[str, int] | None] = lambda queue: None


@dataclass(frozen=True)
class Facts:
    """`found`: the answer of ``explain.lua``."""

    found: Mapping[str, Any]
    around: Surroundings = Surroundings()

    def job_record(self, job: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _by_job(self.found["jobs"], job, {})
        return found

    def next_fire(self, job: str) -> datetime | None:
        ms = overdue.next_fire(self.entries(job))
        return None if ms is None else when(ms)

    def entries(self, job: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = _by_job(self.found["fires"], job, [])
        return found

    def ago(self, at: float) -> str:
        return f"{lasting(max(0.0, self.found['now'] / 1000 - at))} ago"


def _by_job(records: Mapping[str, Any] | None, job: str, none: Any) -> Any:
    return next((one for name, one in (records or {}).items() if decode_job(name) == job), none)
