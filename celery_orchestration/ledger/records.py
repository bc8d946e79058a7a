"""The records that go into the ledger and come out of it, and the names of its keys: declared once for Python.

``lua/schema.lua`` declares them for the verbs; ``tests/integration/test_ledger_schema.py`` compares the two. A record
that a verb takes is sent field by field, in the order in which its class declares them (:func:`arguments`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BaseModel, Field

Argument = bytes | str | int | float

# -- keys

#: Single keys, with their types.
KEY = {
    "ledger": "hash", "jobs": "set", "installed": "hash", "groups": "hash", "disabled_jobs": "set", "timers": "zset",
    "waiting_jobs": "set", "stale_jobs": "set", "unseen_jobs": "set", "jobs_with_unseen_dependents": "set",
    "bars": "zset", "open_sets": "set", "ready_sets": "set", "waiting": "zset", "later": "zset", "expiring": "zset",
    "released": "zset", "astray": "zset", "alone": "hash", "deadlines": "zset", "under_way": "hash",
    "dead_letters": "zset", "unknown_dead_letters": "zset", "leases": "zset", "live": "hash", "worker_names": "hash",
    "ordered_names": "zset", "dead_workers": "list", "slots": "hash", "releases": "hash", "release_order": "zset",
    "services": "hash", "stopped_releases": "hash", "entries": "zset", "added_entries": "set",
    "changed_entries": "zset", "paused_entries": "set", "leader": "hash", "led_services": "set", "decided": "hash",
    "audit": "list", "corrupt": "hash", "supervisors": "hash",
}  # fmt: skip
#: Families of keys: one key for each job, run, worker and so on.
KEYS_OF = {
    "job": "hash", "room": "hash", "unstarted": "zset", "history": "list", "observed": "hash",
    "job_dead_letters": "zset", "totals": "hash", "minutes": "hash", "hours": "hash", "lane": "zset",
    "lane_checked": "zset", "lane_heads": "zset", "lane_heads_checked": "zset", "group_bars": "zset",
    "group_holders": "set", "open": "zset", "run": "hash", "next_attempt": "hash", "done": "string",
    "task_runs": "set", "dead_letter": "hash", "worker": "hash", "worker_runs": "set", "release_slots": "hash",
    "release_jobs": "set", "entry": "hash", "service_leader": "hash", "pool": "hash", "places": "hash",
    "pool_changes": "list", "set_aside": "any",
}  # fmt: skip


def key_of(prefix: str, name: str, *parts: str | int) -> str:
    """The key of this name. For a family of keys, `parts` say which one: ``key_of(prefix, "run", id)``."""
    if name not in (KEYS_OF if parts else KEY):
        raise KeyError(f"no key is declared as {name}")
    return prefix + ":".join((name, *map(str, parts)))


# -- what verbs take


def _ago_ms(ended: float | None) -> int:
    return 0 if ended is None else max(0, int((time.monotonic() - ended) * 1000))


def _sent_as(name: str, convert: Callable[[Any], Argument]) -> dict[str, Any]:
    return {"name": name, "convert": convert}


@dataclass(slots=True)
class Outcome:
    """A run ended on this worker."""

    id: str
    fence: str
    outcome: str
    #: What failed and where, for people.
    note: str = ""
    traceback: str = ""
    #: How long its code ran (None: not known), and when it ended, by the monotonic clock: the outcome may reach the
    #: ledger much later.
    ran_ms: int | None = None
    ended: float | None = field(default=None, metadata=_sent_as("ended_ago_ms", _ago_ms))


@dataclass(slots=True)
class Arrival:
    """A message arrived and a slot is free for it; or it must not start before a time, and needs no slot yet."""

    id: str
    attempt: int
    job: str
    key: str
    priority: int
    grant: str
    expires_ms: int | None
    queue: str
    granted_queue: str
    message: bytes
    eta_ms: int | None = None
    #: The call that it comes from; '' for a fire. See ``lua/lib/identity.lua``.
    publication: str = ""
    #: It was delivered before, and does not say which publication it belongs to.
    anonymous: bool = False
    #: How long it was in its queue; None if it does not say when it was sent.
    queued_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stray:
    """A message that came to a worker without its job."""

    id: str
    attempt: int
    job: str
    priority: int
    grant: str
    expires_ms: int | None
    queue: str
    granted_queue: str
    message: bytes
    publication: str = ""
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class Discarded:
    """A message that Celery discarded."""

    id: str
    attempt: int
    publication: str
    anonymous: bool = False


@dataclass(frozen=True)
class Presence:
    """A worker process as it registers."""

    worker: str
    name: str
    host: str
    pid: int
    slots: int
    kind: str
    queues: tuple[str, ...] = field(metadata=_sent_as("queues", json.dumps))
    release: str
    mode: str
    lease_ms: int
    owner: str
    done_ms: int
    policies: str = field(repr=False)
    jobs: tuple[str, ...] = field(repr=False, metadata=_sent_as("jobs", json.dumps))
    #: How many ended runs and dead letters are kept for each job, and for how long the dead letters.
    history: int = 100
    dead_letters: int = 1000
    dead_letter_ms: int = 14 * 86_400_000


@dataclass(frozen=True, slots=True)
class Registration:
    """`epoch`: the last one in which the worker claimed its runs. `fence`: the highest one that it has seen."""

    schema: int
    oldest_schema: int
    epoch: str
    fence: str
    service: str


@dataclass(slots=True)
class Adoption:
    """An entry that the leader has. Only continuous entries have the last six fields."""

    entry: str
    name: str
    task: str
    job: str
    every: str
    source: str
    last_ms: int | None
    gap_ms: int | None = None
    message: bytes = b""
    queue: str = ""
    granted_queue: str = ""
    key: str = ""
    priority: int = 0


@dataclass(slots=True)
class Fire:
    """An entry is due. Without a job, the verb only says whether to send it; without a message, whether to make one."""

    entry: str
    generation: str
    due_ms: int
    next_ms: int
    missed: int
    job: str
    id: str
    late_ms: int
    overlap: str = "allow"
    key: str = ""
    priority: int = 0
    expires_ms: int | None = None
    queue: str = ""
    granted_queue: str = ""
    message: bytes = b""
    eta_ms: int | None = None
    #: Why it must not be sent; '' if it may.
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """A fire of a plain task is in the broker."""

    entry: str
    generation: str
    due_ms: int
    next_ms: int
    missed: int


@dataclass(slots=True)
class Grant:
    id: str
    number: str


@dataclass(frozen=True, slots=True)
class Place:
    """A numbered place of a pool that a supervisor holds."""

    pool: str
    number: int
    fence: str
    #: About its worker, as its supervisor recorded it.
    info: str = field(default="", compare=False)
    #: The pool has shrunk: its worker has to stop.
    leaving: bool = field(default=False, compare=False)


@dataclass(slots=True)
class Claim:
    """A run that this worker has, in a new epoch. It is sent as its arrival, with the id of the run, and a claim."""

    run: Arrival
    fence: str
    #: The id of the run, if it is not the task id.
    id: str = ""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time of a run is over, but its code still runs."""

    id: str
    fence: str
    note: str
    #: Whether Celery knows that it failed; else its message goes back to the broker when its code returns.
    failed: bool


#: The classes of records in arguments, by their names in ``lua/schema.lua``.
ARGUMENTS: dict[str, type] = {
    "outcome": Outcome, "arrival": Arrival, "stray": Stray, "discarded": Discarded, "presence": Presence,
    "registration": Registration, "adoption": Adoption, "fire": Fire, "sent": Sent, "grant": Grant, "place": Place,
}  # fmt: skip
#: Records that are plain tuples here.
TUPLES: dict[str, tuple[str, ...]] = {
    "claim": ("fence", "task_id"), "end_of_run": ("id", "attempt"), "held_run": ("id", "fence"),
    "progress": ("id", "fence", "text"), "next_due": ("entry", "due_ms"),
}  # fmt: skip


def argument_names(of: type) -> list[str]:
    return [one.metadata.get("name", one.name) for one in fields(of)]


def arguments(records: Iterable[Any]) -> list[Argument]:
    """All fields of all records, as verbs take them: None is '', and a truth value is 1 or ''."""
    found: list[Argument] = []
    for record in records:
        read, converted = _reader(type(record))  # type: ignore[arg-type]
        raw = read(record)
        values = ["" if one is None else one for one in raw]
        for at, convert in converted:
            values[at] = convert(raw[at])
        found += values
    return found


@cache
def _reader(of: Hashable) -> tuple[Callable[[Any], tuple[Any, ...]], list[tuple[int, Callable[[Any], Argument]]]]:
    """Returns what reads all fields of a record, and how to convert some of them."""
    declared = fields(of)  # type: ignore[arg-type]
    converters = {at: one.metadata["convert"] for at, one in enumerate(declared) if "convert" in one.metadata}
    converters |= {at: _truth for at, one in enumerate(declared) if one.type == "bool"}
    return attrgetter(*(one.name for one in declared)), list(converters.items())


def _truth(value: bool) -> Argument:
    return 1 if value else ""


# -- what verbs return


@dataclass(frozen=True)
class Noun:
    """The name of a figure: ``1 recovery``, ``2 recoveries``."""

    one: str
    many: str


class Figures(BaseModel):
    """What the ledger counts of each run. Every record and model of a run has these fields."""

    recoveries: Annotated[int, Noun("recovery", "recoveries")] = Field(
        default=0, description="how often its process or worker died"
    )

    def figures(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in FIGURES}


FIGURES: dict[str, Noun] = {
    name: mark for name, field in Figures.model_fields.items() for mark in field.metadata if isinstance(mark, Noun)
}


def figures_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The figures of a run in a record of the ledger. One that is missing is 0."""
    return {name: record.get(name, 0) for name in FIGURES}


class HistoryLine(Figures):
    """A run that ended. Times in ms. Fields that this version does not know are left out."""

    id: str = ""
    attempt: int = 0
    outcome: str = ""
    arrived: int = 0
    started: int | None = None
    ended: int = 0
    worker: str | None = None
    fence: str | None = None
    #: What it waited for first, in the words of the gate.
    waited_for: str | None = None
    error: str | None = None
    key: str = ""
    #: The entry that fired it, and the due time.
    entry: str | None = None
    due: int | None = None
    #: How many fires this line stands for, if they made no run.
    fires: int | None = None

    @classmethod
    def read(cls, text: str) -> HistoryLine:
        return cls.model_validate_json(text)


HISTORY = tuple(name for name in HistoryLine.model_fields if name not in FIGURES)
