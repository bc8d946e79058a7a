"""Entries of the schedule: they come from jobs' options, from ``beat_schedule``, and from people at run time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar

from celery_orchestration.job.app import service_of, settings_of
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.task import schedule_of
from celery_orchestration.job.text import printable, show
from celery_orchestration.ledger import keys
from celery_orchestration.scheduler.message import MARK, Call
from celery_orchestration.scheduler.times import Times, latest_is_late, times_of

#: An entry of a plain task fires no matter how late it is, as with Celery's beat.
_EVER_MS = 10**15


@dataclass(frozen=True, slots=True)
class Template:
    """The message of all fires of an entry: head and body. In the head, ``MARK`` stands for the id."""

    head: bytes
    body: bytes
    #: Queue, granted queue, room key and priority of its runs.
    place: tuple[str, str, str, int]

    def message(self, id: str) -> bytes:
        return self.head.replace(MARK.encode(), id.encode()) + self.body


@dataclass(slots=True, eq=False)
class Entry:
    name: str
    call: Call
    every: str
    #: None for a continuous job.
    times: Times | None
    source: str = "code"
    #: Celery's schedule object.
    when: BaseSchedule | None = field(default=None, kw_only=True)
    #: The policy of the job that it fires; None for a plain task.
    policy: Policy | None = None
    #: Ms between two runs of a continuous job; None for other entries.
    gap_ms: int | None = None
    #: How many ms after its due time it still fires.
    late_ms: int = _EVER_MS
    #: The service that it belongs to, if several share the ledger.
    service: str = field(default="", kw_only=True)
    #: Its name as part of Redis keys.
    id: str = field(init=False)
    generation: str = ""
    last_ms: int = 0
    #: The message of all its fires, if they differ only by the id.
    template: Template | None = None
    #: Its messages go to an exchange, so it is sent as a plain task.
    is_unroutable: bool = False

    def __post_init__(self) -> None:
        self.id = keys.entry(self.name, self.service)

    @property
    def shown(self) -> str:
        """Its name for logs."""
        return printable(self.name)

    def run_id(self, due_ms: int) -> str:
        """The same for every scheduler that fires this due time. ``lib/entries.lua`` computes it, too."""
        digest = hashlib.sha1(f"{self.id} {self.generation} {due_ms}".encode()).hexdigest()
        return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def from_code(
    app: Celery, jobs: Mapping[str, Policy], defaults: Mapping[str, Any]
) -> tuple[dict[str, Entry], list[str]]:
    """Returns the entries by name, and the problems of entries that cannot be used.

    A ``beat_schedule`` entry with a job's name replaces the entry from the job's options, unless the job is continuous.
    """
    found, problems = {}, []
    for name, policy in jobs.items():
        if policy.mode == "continuous":
            # The ledger keeps one message for all its runs, so there is no time from which it could expire.
            call = Call(name, (), {}, {"expires": None})
            gap = round((policy.interval_seconds or 0) * 1000)
            every = "continuously" + (f", {gap / 1000:g} s after the last" if gap else "")
            found[name] = Entry(name, call, every, None, policy=policy, gap_ms=gap, service=service_of(app))
    for name, written in {**schedule_of(app), **defaults, **app.conf.beat_schedule}.items():
        try:
            one = _entry_of_code(app, name, written, jobs)
        except Exception as exc:
            problems.append(f"entry {show(name)}: {exc!r}")
        else:
            if name in jobs and jobs[name].mode == "continuous":
                problems.append(f"entry {show(name)} of beat_schedule: the job of this name is continuous")
            else:
                found[name] = one
    return found, problems


def _entry_of_code(app: Celery, name: str, written: Mapping[str, Any], jobs: Mapping[str, Policy]) -> Entry:
    given = dict(written)
    task = given["task"]
    call = Call(task, given.get("args") or (), given.get("kwargs") or {}, given.get("options") or {})
    return entry_of(app, name, call, given["schedule"], jobs.get(task), bool(given.get("relative")))


def entry_of(
    app: Celery, name: str, call: Call, when: Any, policy: Policy | None, relative: bool = False, source: str = "code"
) -> Entry:
    when = maybe_schedule(when, relative, app=app)
    late = _EVER_MS
    if policy is not None:
        late = latest_is_late(policy.catch_up, policy.catch_up_seconds, settings_of(app).term_seconds)
    elif isinstance(when, crontab) and app.conf.beat_cron_starting_deadline is not None:
        late = round(app.conf.beat_cron_starting_deadline * 1000)
    times, service = times_of(when, app), service_of(app)
    return Entry(name, call, in_words(when), times, source, policy, late_ms=late, when=when, service=service)


def in_words(when: BaseSchedule) -> str:
    if isinstance(when, crontab):
        fields = (when._orig_minute, when._orig_hour, when._orig_day_of_month, when._orig_month_of_year)
        return "cron " + " ".join(_cron(one) for one in (*fields, when._orig_day_of_week))
    if isinstance(when, schedule):
        return f"every {when.run_every.total_seconds():g} s"
    if isinstance(when, solar):
        return f"{when.event} at {when.lat:g}, {when.lon:g}"
    return f"{type(when).__module__}.{type(when).__qualname__}"


def _cron(part: Any) -> str:
    parts = [part] if isinstance(part, (int, str)) else sorted(part)
    return ",".join(str(one).replace(" ", "") for one in parts)
