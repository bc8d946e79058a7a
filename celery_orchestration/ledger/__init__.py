"""The ledger: the state of all jobs and runs in Redis, and the only code that talks to it.

One method per verb, with the name of the verb. The head of ``lua/verbs/<caller>/<verb>.lua`` is its contract. A
:class:`Ledger` is one connection and belongs to one thread: :meth:`Ledger.new_connection` makes another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from celery import Celery
from redis.connection import ConnectionPool
from redis.exceptions import NoScriptError

from celery_orchestration.errors import LedgerError, LedgerRefused, LedgerUnavailable, Superseded
from celery_orchestration.job.policy import Settings
from celery_orchestration.ledger import keys, packed
from celery_orchestration.ledger.connect import Address, connect, find, key_prefix
from celery_orchestration.ledger.pools import PoolVerbs
from celery_orchestration.ledger.scripts import script
from celery_orchestration.ledger.wire import Argument, Wire

#: The kind of a member that is a scheduler.
BEAT = "beat"
#: How many jobs, and entries of the schedule, are told in one call: Redis serves nobody else meanwhile.
JOBS_AT_ONCE, ENTRIES_AT_ONCE = 100, 200
#: Minutes or hours of statistics that are told in one call.
POINTS_AT_ONCE = 8_000
#: Jobs whose policies are put into force in one call.
INSTALLED_AT_ONCE = 200
#: What may have been lost when a new epoch began, for people.
FORGOTTEN = {
    "emptied": "was emptied: runs that waited in it are lost, and history, dead letters and audit",
    "moved": "was restarted or failed over: what it was told just before may be lost",
}

__all__ = [
    "FORGOTTEN",
    "Adopted",
    "Adoption",
    "Answer",
    "Arrival",
    "Changes",
    "Claim",
    "Claimed",
    "Discarded",
    "Dispatched",
    "Fire",
    "Grant",
    "Lead",
    "Ledger",
    "Member",
    "Members",
    "NewEpoch",
    "Outcome",
    "Over",
    "Presence",
    "Registered",
    "Start",
    "Stray",
    "Sweep",
    "Turn",
    "UnknownWorker",
    "Waiting",
]


class UnknownWorker(LedgerError):
    """The worker never registered, or its lease ran out: what it runs is void, and it has to register again."""


class NewEpoch(LedgerError):
    """The ledger may have forgotten something: the worker has to register again, and to claim what it runs."""

    def __init__(self, epoch: str) -> None:
        super().__init__(f"a new epoch has begun: {epoch}")
        self.epoch = epoch


@dataclass(slots=True)
class Outcome:
    """A run ended on this worker."""

    id: str
    fence: str
    outcome: str
    #: What failed, for people, and where.
    note: str = ""
    traceback: str = ""
    #: How long its code ran (None: not known), and when that ended, by the monotonic clock: the ledger may hear of it
    #: much later.
    ran_ms: int | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """The time of a run is over, and its code goes on."""

    id: str
    fence: str
    note: str
    #: Whether Celery knows that it failed; else its message goes back to the broker when its code returns.
    failed: bool


@dataclass(slots=True)
class Arrival:
    """A message arrived, and a slot is free for it; or it is not to start before a time, and needs none yet."""

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
    #: Which call it comes from; '' for a fire. See ``lua/lib/identity.lua``.
    publication: str = ""
    #: It was delivered before, and does not say which publication it is of.
    anonymous: bool = False
    #: How long it was in its queue, as far as it says when it was sent.
    queued_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A message that Celery discarded."""

    id: str
    attempt: int
    publication: str
    anonymous: bool = False


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
class Waiting:
    """A run that waits, for Celery's remote control."""

    id: str
    job: str
    #: waiting, later.
    state: str
    eta_ms: int | None
    #: The beginning of its message; empty if that is too large.
    message: bytes


@dataclass(slots=True)
class Claim:
    """A run that this worker has, in a new epoch."""

    run: Arrival
    fence: str
    #: Its id, if that is not the task's.
    id: str = ""


@dataclass(slots=True)
class Claimed:
    #: Of each claim: ok, void, unknown.
    answers: list[str]
    #: How many outcomes the ledger had forgotten, and how many runs go back to their queues.
    told_again: int
    returned: int
    disabled: list[Disabled] = field(default_factory=list)


@dataclass(slots=True)
class Registered:
    #: Releases of the live workers, and those the installed policies were merged from.
    live: str
    installed: str
    epoch: str
    #: What began the epoch: '' (the ledger was new), emptied, moved (restarted, or failed over).
    why: str
    closed_ms: int


@dataclass(slots=True)
class Answer:
    """What the gate says to an arrival: start (with a fence), wait, drop (why), unknown, full."""

    what: str
    fence: str = ""
    #: Id of the run that starts.
    run: str = ""
    detail: tuple[str, ...] = ()


@dataclass(slots=True)
class Grant:
    id: str
    number: str


@dataclass(slots=True)
class Start:
    """A run that was handed over to this very worker: it starts in a slot that was offered."""

    id: str
    fence: str
    message: bytes


@dataclass(slots=True)
class Disabled:
    """A job that failures have disabled."""

    job: str
    why: str


@dataclass(slots=True)
class Ending:
    """A run that ends without having run: Celery has to be told."""

    id: str
    why: str


@dataclass(slots=True)
class Turn:
    waiting: int
    more: bool
    outcomes: list[str]
    answers: list[Answer]
    grants: list[Grant]
    starts: list[Start]
    disabled: list[Disabled]
    endings: list[Ending]
    #: Seconds until something is due, or None.
    due: float | None
    #: Of runs that start, have waited and are traced: run id, and its waits as ``lua/verbs/worker/turn.lua`` says.
    waits: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Sweep:
    more: bool
    grants: list[Grant]
    endings: list[Ending]
    dead_workers: list[str]
    recovered: int
    live_releases: str
    installed_releases: str
    served: list[str]
    disabled: list[Disabled]
    #: Runs whose retry got lost.
    retries: list[str]
    due: float | None
    #: Number of the last decision.
    decisions: int
    #: Messages that came to workers without their job, for this worker to take in.
    strays: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What people and failures have decided, for members to remember."""

    number: int
    epoch: str
    #: The verb read_decisions makes it, and only the verb restore_decisions reads it.
    document: bytes


@dataclass(slots=True)
class Lead:
    """Who leads. `term` is '' if another scheduler does."""

    term: str
    #: Redis's time, ms.
    now: int
    leader: str
    #: Number of the last change that people made to the schedule.
    changes: int
    epoch: str


@dataclass(slots=True)
class Adoption:
    """An entry that the leader has. The last six: of a continuous one."""

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
class Adopted:
    """How far an entry is; or `problem`: corrupt (what is wrong), gone (people removed it)."""

    generation: str = ""
    last_ms: int = 0
    paused: bool = False
    problem: str = ""


@dataclass(slots=True)
class Fire:
    """An entry is due. Without a job, only whether to send it is asked; without a message, whether to make one."""

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
    #: Why it is not to be sent.
    refused: str = ""


@dataclass(slots=True)
class Dispatched:
    #: ok, term, full.
    what: str
    #: Of each fire; see ``lua/verbs/schedule/dispatch.lua``.
    answers: list[tuple[str, ...]]
    grants: list[Grant]


@dataclass(slots=True)
class Changes:
    number: int
    complete: bool
    #: Entry, whether it is there, what people wrote.
    entries: list[tuple[str, bool, str]]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker or a scheduler, as the ledger has it."""

    name: str
    kind: str
    release: str
    mode: str
    #: Redis's time, ms.
    since: int


@dataclass(frozen=True, slots=True)
class Members:
    #: Releases that they bring, the oldest first.
    releases: str
    #: Life of a done-marker.
    done_ms: int
    members: list[Member]


@dataclass(frozen=True)
class Presence:
    """What a worker process tells about itself."""

    worker: str
    name: str
    host: str
    pid: int
    slots: int
    kind: str
    queues: tuple[str, ...]
    release: str
    mode: str
    lease_ms: int
    owner: str
    done_ms: int
    policies: str = field(repr=False)
    jobs: tuple[str, ...] = field(repr=False)
    #: Kept for each job: runs that ended; dead letters, and how long these.
    history: int = 100
    letters: int = 1000
    letters_ms: int = 14 * 86_400_000


class Ledger(PoolVerbs):
    def __init__(self, pool: ConnectionPool, prefix: str, address: Address | None = None, service: str = "") -> None:
        """`service`: which of those that share the ledger, see :func:`keys.service`."""
        self.prefix = prefix
        self.address = address
        self.service = service
        self._pool = pool
        self._wire = Wire(pool)
        #: Seconds by which this machine's clock was ahead of Redis's at the last heartbeat.
        self.ahead: float | None = None

    @classmethod
    def of(cls, app: Celery, settings: Settings) -> Ledger:
        """The ledger of an app. Does not connect yet."""
        address = find(app, settings)
        prefix = keys.prefix(settings.namespace, key_prefix(app))
        return cls(connect(address), prefix, address, keys.service(app.main, settings.namespace))

    def new_connection(self) -> Ledger:
        """Another connection to the same ledger, for another thread."""
        return Ledger(self._pool, self.prefix, self.address, self.service)

    def close(self) -> None:
        self._wire.close()

    # ---------------------------------------------------------------- workers

    def check(self, owner: str) -> None:
        """Raises :class:`LedgerRefused` if the ledger is another app's, or of a version we do not know."""
        ask = partial(self._wire.command, "HMGET", f"{self.prefix}g", "owner", "schema")
        found, schema = self._quick(ask)
        self._refuse(None if found is None else _text(found), None if schema is None else int(schema), owner)

    def _refuse(self, found: str | None, schema: int | None, owner: str) -> None:
        if found is not None and found != owner:
            _typed(LedgerError(f"FOREIGN {found}"), self)
        if schema is not None and not keys.OLDEST_SCHEMA <= schema <= keys.SCHEMA + 1:
            _typed(LedgerError(f"SCHEMA {schema}"), self)

    def read_health(self, owner: str, worker: str = "") -> dict[str, Any]:
        """In one round trip. Raises :class:`LedgerRefused` as :meth:`check` does."""
        found: dict[str, Any] = self._quick(partial(self._tell, "read_health", (worker, self.service)))
        self._refuse(found.get("owner") or None, found.get("schema"), owner)
        return found

    def _quick(self, ask: Callable[[], Any]) -> Any:
        """A connection that was there may have died since; if none can be made, a second try is only time."""
        return ask() if self._wire.socket is None else _read(ask)

    def eviction(self) -> str:
        """Redis's ``maxmemory-policy``, or '' if it may not be asked."""
        return self.info("memory").get("maxmemory_policy", "")

    def info(self, *section: str) -> dict[str, str]:
        """What Redis tells about itself, all of it or one section; nothing if it may not be asked."""
        try:
            found = _legible(self._wire.command("INFO", *section))
        except LedgerUnavailable:
            raise
        except LedgerError:
            return {}
        return dict(line.partition(":")[::2] for line in found.splitlines() if ":" in line)

    def setting(self, name: str) -> str | None:
        """Of Redis's configuration; None if it may not be asked, or there is none of that name."""
        try:
            found = self._wire.command("CONFIG", "GET", name)
        except LedgerUnavailable:
            raise
        except LedgerError:
            return None
        values = [*found.values()] if isinstance(found, dict) else found[1::2]
        return _text(values[0]) if values else None

    def time(self) -> float:
        """Redis's clock, in seconds."""
        seconds, micros = self._wire.command("TIME")
        return int(seconds) + int(micros) / 1e6

    def register(self, p: Presence, epoch: str = "", fence: str = "") -> Registered:
        """`epoch`, `fence`: the last in which this worker claimed its runs, and the highest it has seen."""
        live, installed, now, why, closed_ms = self._call(
            "register",
            [
                *(p.worker, p.name, p.host, p.pid, p.slots, p.kind, json.dumps(p.queues), p.release, p.mode),
                *(p.lease_ms, p.owner, keys.SCHEMA, keys.OLDEST_SCHEMA, p.done_ms, p.policies, json.dumps(p.jobs)),
                *(p.history, p.letters, p.letters_ms, epoch, fence, self.service),
            ],
        )
        return Registered(_text(live), _text(installed), _text(now), _text(why), closed_ms)

    def claim_runs(self, worker: str, epoch: str, taken: Sequence[Outcome], runs: Sequence[Claim]) -> Claimed:
        """`taken`: outcomes that the ledger accepted lately and may have forgotten."""
        args: list[Argument] = [worker, epoch, len(taken)]
        for o in taken:
            args += _outcome_args(o)
        args.append(len(runs))
        for one in runs:
            args += (*_arrival_args(replace(one.run, id=one.id or one.run.id)), one.fence, one.run.id)
        answers, told_again, returned, disabled = self._call("claim_runs", args)
        return Claimed([_text(one) for one in answers], told_again, returned, _disabled(disabled))

    def list_nodes(self) -> Members:
        releases, done_ms, found = self._call("list_nodes", ())
        texts = [[_text(part) for part in one] for one in found]
        members = [Member(name, kind, release, mode, int(since or 0)) for name, kind, release, mode, since in texts]
        return Members(_text(releases), int(done_ms), members)

    def read_releases(self, names: str) -> list[str]:
        return [_text(one) for one in self._call("read_releases", (names,))]

    def install_policies(self, releases: str, cap: int | None, jobs: Mapping[str, Any]) -> bool:
        """False if other releases are live now: merge again.

        Only what is another than before, a part at a time: so many jobs as a large installation has would keep Redis
        busy. What was interrupted is completed by who comes next.
        """
        found = [_text(one) for one in self._call("list_installed", ())]
        before = dict(zip(found[::2], found[1::2], strict=True))
        changed = [name for name, job in jobs.items() if before.get(name) != job["hash"]]
        gone = [name for name in before if name not in jobs]
        todo = [*((name, True) for name in changed), *((name, False) for name in gone)]
        while True:
            part, todo = todo[:INSTALLED_AT_ONCE], todo[INSTALLED_AT_ONCE:]
            wanted = {name: jobs[name] for name, kept in part if kept}
            unwanted = [name for name, kept in part if not kept]
            arguments = (json.dumps(wanted, sort_keys=True), json.dumps(unwanted))
            answer = self._call(
                "install_policies", (releases, "" if cap is None else cap, "" if todo else 1, *arguments)
            )
            if _text(answer) != "ok" or not todo:
                return _text(answer) == "ok"

    def heartbeat(self, worker: str, lease_ms: int, runs: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the ids of runs that are void; notes how far our clock is ahead of Redis's."""
        args: list[Argument] = [worker, lease_ms]
        for run in runs:
            args += run
        before = time.time()
        now, *void = self._call("heartbeat", args)
        self.ahead = (before + time.time()) / 2 - int(now) / 1000
        return [_text(one) for one in void]

    def drain(self, worker: str, gone_ms: int | None = None) -> list[Grant]:
        return _grants(self._call("drain", (worker, "" if gone_ms is None else gone_ms)))

    def leave(self, worker: str) -> list[Grant]:
        grants: list[Grant] = []
        more = True
        while more:
            more, granted = self._call("leave", (worker,))
            grants += _grants(granted)
        return grants

    def find_gone_workers(self, lease_ms: int, workers: Iterable[str]) -> set[str]:
        """Those of these workers that the ledger does not list, if it can know by now."""
        return {_text(one) for one in self._call("find_gone_workers", (lease_ms, *workers))}

    # ------------------------------------------------------------------- runs

    def turn(
        self,
        worker: str,
        number: int,
        mode: str,
        free: int,
        outcomes: Sequence[Outcome],
        arrivals: Sequence[Arrival],
    ) -> Turn:
        self._check_epoch()
        return _turn(self._call("turn", _turn_args(worker, number, mode, free, outcomes, arrivals)))

    def send_turn(
        self,
        worker: str,
        number: int,
        mode: str,
        free: int,
        outcomes: Sequence[Outcome],
        arrivals: Sequence[Arrival],
    ) -> None:
        """The first half of :meth:`turn`, for who waits for :attr:`socket` himself."""
        self._wire.send(script("turn"), self.prefix, _turn_args(worker, number, mode, free, outcomes, arrivals))

    def receive_turn(self) -> Turn | None:
        """The second half; None if it has to be made again, in one piece."""
        try:
            return _turn(self._wire.receive())
        except (LedgerError, NoScriptError):
            return None

    def has_answer(self, seconds: float) -> bool:
        """Waits so long at most."""
        return self._wire.readable(seconds)

    @property
    def socket(self) -> Any:
        return self._wire.socket

    def sweep(self, worker: str, number: int, interval_ms: int, limit: int = 64) -> Sweep:
        found = self._call("sweep", (worker, number, interval_ms, limit))
        more, grants, endings, dead, recovered, live, installed, served, disabled, retries, *rest = found
        due, decisions, strays = rest
        return Sweep(
            more == 1,
            _grants(grants),
            _endings(endings),
            [_text(one) for one in dead],
            recovered,
            _text(live),
            _text(installed),
            [_text(one) for one in served],
            _disabled(disabled),
            [_text(one) for one in retries],
            _due(due),
            int(decisions),
            list(strays),
        )

    def accept_strays(self, worker: str, messages: Sequence[Stray]) -> tuple[list[str], list[Grant]]:
        """Messages of jobs that this worker lacks. Returns for each: wait, drop, nobody, later or full."""
        args: list[Argument] = [worker]
        for one in messages:
            args += (one.id, one.attempt, one.job, one.priority, one.grant, _or_none(one.expires_ms))
            args += (one.queue, one.granted_queue, one.message, _publication(one))
        answers, grants = self._call("accept_strays", args)
        return [_text(one) for one in answers], _grants(grants)

    def read_decisions(self, most_jobs: int, most_entries: int) -> Decisions:
        number, epoch, document = self._call("read_decisions", (most_jobs, most_entries))
        return Decisions(int(number), _text(epoch), document)

    def restore_decisions(self, who: str, epoch: str, known: Decisions) -> int:
        """After the ledger was emptied. Returns how many decisions changed."""
        return int(self._call("restore_decisions", (who, epoch, known.number, known.document)))

    def cancel(self, worker: str, number: int, why: str, ids: Sequence[str]) -> tuple[list[Ending], list[Grant]]:
        endings, grants = self._call("cancel", (worker, number, why, *ids))
        return _endings(endings), _grants(grants)

    def confirm_published(self, grants: Sequence[Grant]) -> int:
        count: int = self._call("confirm_published", [part for g in grants for part in (g.id, g.number)])
        return count

    def confirm_end(self, runs: Sequence[tuple[str, int]]) -> list[Grant]:
        """Celery knows how these runs (id, attempt) ended without having run."""
        return _grants(self._call("confirm_end", ["", *(part for run in runs for part in (*run, "run"))])[0])

    def confirm_end_of_messages(self, messages: Sequence[Discarded]) -> list[Grant]:
        """Celery knows how the runs of these messages ended without having run."""
        args = [part for one in messages for part in (one.id, one.attempt, _publication(one))]
        return _grants(self._call("confirm_end", ["", *args])[0])

    def time_out(self, run: Over) -> bool:
        """False if the run has ended meanwhile, or its fence is void."""
        return bool(self._call("time_out", (run.id, run.fence, run.note, int(run.failed))))

    def record_progress(self, said: Iterable[tuple[str, str, str]]) -> int:
        """Of each run id, fence and a JSON text of at most :data:`keys.LONGEST_PROGRESS` bytes. Returns how many of
        them are current."""
        count: int = self._call("record_progress", [part for one in said for part in one])
        return count

    # --------------------------------------------------------------- schedule

    def lead(self, scheduler: str, name: str, length_ms: int, term: str) -> Lead:
        term, now, leader, changes, epoch = self._call("lead", (scheduler, name, length_ms, term, self.service))
        return Lead(_text(term), int(now), _text(leader), int(changes), _text(epoch))

    def resign(self, scheduler: str, term: str) -> bool:
        return bool(self._call("resign", (scheduler, term)))

    def adopt_entries(self, term: str, now_ms: int, entries: Sequence[Adoption]) -> list[Adopted] | None:
        """None if another one leads."""
        args: list[Argument] = [term, now_ms]
        for e in entries:
            args += (e.entry, e.name, e.task, e.job, e.every, e.source, _or_none(e.last_ms), _or_none(e.gap_ms))
            args += (e.message, e.queue, e.granted_queue, e.key, e.priority)
        what, found = self._call("adopt_entries", args)
        return [_adopted(one) for one in found] if _text(what) == "ok" else None

    def retire_entries(self, term: str) -> bool:
        """False if another one leads."""
        return bool(self._call("retire_entries", (term,)))

    def record_next_due(self, term: str, times: Sequence[tuple[str, int]]) -> bool:
        return bool(self._call("record_next_due", [term, *(part for one in times for part in one)]))

    def dispatch(self, term: str, fires: Sequence[Fire]) -> Dispatched:
        args: list[Argument] = [term]
        for f in fires:
            args += (f.entry, f.generation, f.due_ms, f.next_ms, f.missed, f.job, f.id, f.key, f.priority)
            args += (_or_none(f.expires_ms), f.queue, f.granted_queue, f.message, _or_none(f.eta_ms), f.overlap)
            args += (f.late_ms, f.refused)
        self._check_epoch()
        return _dispatched(self._call("dispatch", args))

    def confirm_sent(self, fires: Sequence[Fire]) -> int:
        args: list[Argument] = []
        for f in fires:
            args += (f.entry, f.generation, f.due_ms, f.next_ms, f.missed)
        count: int = self._call("confirm_sent", args)
        return count

    def continue_entries(self, term: str, entries: Sequence[str]) -> Dispatched:
        self._check_epoch()
        return _dispatched(self._call("continue_entries", (term, *entries)))

    def read_changes(self, known: int | None) -> Changes:
        number, complete, found = self._call("read_changes", (_or_none(known), self.service))
        return Changes(
            int(number), bool(complete), [(_text(entry), bool(there), _legible(doc)) for entry, there, doc in found]
        )

    # ---------------------------------------------------------------- reading

    def read_granted(self, grant: Grant) -> tuple[str, bytes] | None:
        """Queue and message of a granted run, or None if that grant is no longer the latest."""
        return self.read_all_granted([grant])[0]

    def read_all_granted(self, grants: Sequence[Grant]) -> list[tuple[str, bytes] | None]:
        found = self._call("read_granted", [part for g in grants for part in (g.id, g.number)])
        return [(_text(one[0]), one[1]) if one else None for one in found]

    def pending_end(self, id: str) -> tuple[str, int, bytes] | None:
        """Why a run ends, its attempt and its message, or None if that was carried out."""
        found = self._call("pending_end", (id,))
        return (_text(found[0]), int(found[1]), found[2]) if found else None

    def read_retry(self, id: str) -> tuple[str, int, bytes] | None:
        """Queue, attempt and message of a run whose retry has not arrived."""
        found = self._call("read_retry", (id,))
        return (_text(found[0]), int(found[1]), found[2]) if found else None

    def read_status(self, most_running: int, most_waiting: int) -> dict[str, Any]:
        """With all jobs and, in fires, the entries of each job that has some."""
        found = self._tell("read_status", (most_running, most_waiting, JOBS_AT_ONCE, ENTRIES_AT_ONCE, self.service))
        more = found.pop("more") or []
        rest = [self.read_jobs(more[at : at + JOBS_AT_ONCE]) for at in range(0, len(more), JOBS_AT_ONCE)]
        found["jobs"] = [*(found["jobs"] or ()), *(job for part in rest for job in part)]
        return self._with_entries(found)

    def read_jobs(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        """Those that are there, as a status has them."""
        return self._tell("read_jobs", encoded) or []

    def job_names(self) -> list[str]:
        """Of all jobs, encoded, in order."""
        return sorted(_text(one) for one in self._call("list_installed", ())[::2])

    def read_statistics(
        self, what: str, encoded: Sequence[str], not_before_ms: int = 0, points: int = 1
    ) -> dict[str, Any]:
        """`what`: all, minutes or hours. `points`: how many minutes or hours at most of each job.

        Returns now, limits (ms) and jobs: name, and sums in order of time, as :meth:`packed.Names.named` has them.
        """
        at_once = max(1, min(JOBS_AT_ONCE, POINTS_AT_ONCE // max(1, points)))
        found: dict[str, Any] = {"now": 0, "limits": [], "jobs": []}
        for at in range(0, len(encoded), at_once):
            part = encoded[at : at + at_once]
            now, head, jobs = self._call("read_statistics", (what, not_before_ms, *part))
            told = json.loads(_text(head))
            names = packed.Names(told)
            found |= {"now": now, "limits": told["limits"]}
            unit = {"all": 0, "minutes": 60_000, "hours": 3_600_000}[what]
            for name, job in zip(part, jobs, strict=True):
                sums = _sums(job, unit)
                told_sums = [names.named(begun, sums[begun]) for begun in sorted(sums) if begun >= not_before_ms]
                found["jobs"].append({"name": name, "sums": told_sums})
        return found

    def list_entries(self, skip: int, count: int) -> list[dict[str, Any]]:
        """Entries of the schedule that fire jobs, as a status has them."""
        return self._tell("list_entries", (skip, count)) or []

    def explain(self, kind: str, name: str, exists: bool = False, priority: int = 1) -> dict[str, Any] | None:
        """Of a 'job' or a 'run', with all entries as a status has them. None if there is none that has not ended."""
        about = keys.encode_job(name) if kind == "job" else name
        found = self._call("explain", (kind, about, int(exists), priority, ENTRIES_AT_ONCE, self.service))
        return None if found is None else self._with_entries(json.loads(_text(found)))

    def _with_entries(self, found: dict[str, Any]) -> dict[str, Any]:
        told = {entry["id"]: entry for entry in found["fires"] or ()}
        for skip in range(ENTRIES_AT_ONCE, found["entries"], ENTRIES_AT_ONCE):
            told |= {entry["id"]: entry for entry in self.list_entries(skip, ENTRIES_AT_ONCE)}
        by_job: dict[str, list[dict[str, Any]]] = {}
        for entry in told.values():
            by_job.setdefault(entry["job"], []).append(entry)
        return {**found, "fires": by_job}

    def find_ids(self, word: str, letters: bool, least: int, most_running: int, most: int) -> list[str]:
        """Ids of runs, or of dead letters, that are this or, at `least` so long, begin with it."""
        return [_text(one) for one in self._call("find_ids", (word, int(letters), least, most_running, most))]

    def inspect(
        self, worker: str, which: str, most: int, largest: int, beginning: int, ids: Sequence[str] = ()
    ) -> list[Waiting]:
        """What this worker reports to Celery's remote control."""
        found = self._call("inspect", (worker, which, most, largest, beginning, *ids))
        return [
            Waiting(_text(id), keys.decode_job(_text(job)), _text(state), int(eta) if eta else None, message)
            for id, job, state, eta, message in found
        ]

    def read_graph(self) -> dict[str, Any]:
        """What each job depends on and conflicts with, and how it is."""
        found = part = self._tell("read_graph", (JOBS_AT_ONCE,))
        jobs, more = list(part["jobs"] or ()), part["more"] or []
        for at in range(0, len(more), JOBS_AT_ONCE):
            part = self._tell("read_graph", (JOBS_AT_ONCE, *more[at : at + JOBS_AT_ONCE]))
            jobs += part["jobs"] or ()
        return {**found, "jobs": jobs}

    def holds_lease(self, id: str, fence: str) -> bool:
        return bool(_read(lambda: self._call("holds_lease", (id, fence))))

    # ----------------------------------------------------------------- people

    def enable_or_disable(self, job: str, on: bool, who: str, why: str) -> list[Grant] | None:
        """None if the ledger does not know the job."""
        found, grants = self._call(
            "enable_or_disable", (keys.encode_job(job), "on" if on else "off", who, keys.note(why))
        )
        return _grants(grants) if _text(found) == "ok" else None

    def pause_or_resume(self, paused: bool, who: str, why: str) -> list[Grant]:
        return _grants(self._call("pause_or_resume", (int(paused), who, keys.note(why))))

    def list_unstarted(self, job: str, where: str, skip: int, count: int) -> tuple[int, list[str]]:
        """How many runs were looked at, and the ids of those of this job."""
        looked, found = self._call("list_unstarted", (keys.encode_job(job), where, skip, count))
        return looked, [_text(one) for one in found]

    def cancel_all_by_hand(self, who: str, ids: Sequence[str]) -> tuple[int, list[Grant]]:
        """Returns how many were called off."""
        endings, grants, _ = self._call("cancel", (who, "", "revoked", *ids))
        return len(endings), _grants(grants)

    def cancel_by_hand(self, who: str, id: str) -> tuple[str, list[Grant]]:
        """Returns the state in which it was found, '' if there is no such run."""
        _, grants, found = self._call("cancel", (who, "", "revoked", id))
        return _text(found[0]), _grants(grants)

    def read_history(self, job: str, count: int) -> list[str] | None:
        """None if the ledger does not know the job."""
        found = self._call("read_history", (keys.encode_job(job), count))
        return None if found is None else [_text(one) for one in found]

    def list_dead_letters(self, job: str | None, skip: int, count: int) -> list[tuple[str, bool]] | None:
        """Of all jobs if none is named; None if the ledger does not know the job."""
        found = self._call(
            "list_dead_letters", (int(job is None), "" if job is None else keys.encode_job(job), skip, count)
        )
        return None if found is None else [(_text(info), bool(revoked)) for info, revoked in found]

    def read_dead_letter(self, id: str, or_run: bool = False) -> tuple[str, bool, bytes] | None:
        """`or_run`: also the message of a run that waits; then '{}' in place of what happened."""
        found = self._call("read_dead_letter", (id, int(or_run)))
        return (_text(found[0]), bool(found[1]), found[2]) if found else None

    def requeue(
        self, who: str, id: str, new_id: str, attempt: int, message: bytes, other: tuple[str, str, str] | None = None
    ) -> tuple[str, list[Grant]]:
        """`other`: another job that it becomes a run of, its own queue and its granted queue."""
        other_args = (keys.encode_job(other[0]), *other[1:]) if other else ()
        what, grants = self._call("requeue", (who, id, new_id, attempt, message, *other_args))
        return _text(what), _grants(grants)

    def purge_dead_letters(self, who: str, ids: Sequence[str]) -> int:
        count: int = self._call("purge_dead_letters", (who, *ids))
        return count

    def change_schedule(self, who: str, what: str, name: str, why: str, written: Sequence[str] = ()) -> str:
        """Returns ok, exists, none, code, changed or corrupt. `written`, where something was: task, job, when, all of
        it, and for an update the generation that it changes."""
        args = (who, what, self.entry_id(name), keys.note(name), keys.note(why), *written)
        return _text(self._call("change_schedule", args))

    def read_entries(self, skip: int, count: int) -> list[tuple[str, dict[str, str]]]:
        """Entries of the schedule, with nothing but their key if they are corrupt."""
        return [_fields(one) for one in self._call("read_entries", (skip, count))]

    def entry_id(self, name: str) -> str:
        """Of an entry of this service."""
        return keys.entry(name, self.service)

    def read_entry(self, name: str) -> dict[str, str] | None:
        """An entry by its name; None if there is none."""
        found = self._call("read_entries", ("", "", self.entry_id(name)))
        return _fields(found[0])[1] if found else None

    def release_waiting(self, who: str, most: int, which: str = "") -> tuple[str, list[tuple[str, str, bytes]]]:
        """Returns what to pass as `which` the next time, and id, queue and message of each."""
        which, found = self._call("release_waiting", (who, most, which))
        return _text(which), [(_text(id), _text(queue), message) for id, queue, message in found]

    def confirm_released(self, ids: Sequence[str]) -> int:
        count: int = self._call("confirm_released", ids)
        return count

    def record_audit(self, who: str, what: str, about: str, why: str) -> None:
        self._call("record_audit", (who, what, about, why))

    def read_audit(self, count: int) -> list[str]:
        return [_text(one) for one in self._call("read_audit", (count,))]

    # ------------------------------------------------------------------ inside

    def _check_epoch(self) -> None:
        """A Redis that forgot something must not be asked to start runs before that was noticed."""
        if self._wire.fresh:
            self._call("check_epoch", ())
            self._wire.fresh = False

    def _tell(self, verb: str, args: Sequence[Argument]) -> Any:
        """Of verbs that answer in JSON."""
        return json.loads(_text(self._call(verb, args)))

    def _call(self, verb: str, args: Sequence[Argument]) -> Any:
        try:
            return self._wire.call(script(verb), self.prefix, args)
        except LedgerError as exc:
            _typed(exc, self)


def _read(ask: Callable[[], Any]) -> Any:
    """Asks again on a new connection: the one at hand may have died since the last question, maybe long ago."""
    try:
        return ask()
    except LedgerUnavailable:
        return ask()


def _turn_args(
    worker: str, number: int, mode: str, free: int, outcomes: Sequence[Outcome], arrivals: Sequence[Arrival]
) -> list[Argument]:
    args: list[Argument] = [worker, number, mode, free, len(outcomes)]
    for o in outcomes:
        args += _outcome_args(o)
    args.append(len(arrivals))
    for a in arrivals:
        args += _arrival_args(a)
    return args


def _outcome_args(o: Outcome) -> tuple[Argument, ...]:
    ago = 0 if o.ended is None else max(0, int((time.monotonic() - o.ended) * 1000))
    return o.id, o.fence, o.outcome, o.note, o.traceback, "" if o.ran_ms is None else o.ran_ms, ago


def _arrival_args(a: Arrival) -> tuple[Argument, ...]:
    expires, eta = _or_none(a.expires_ms), _or_none(a.eta_ms)
    place = a.queue, a.granted_queue
    queued = _or_none(a.queued_ms)
    return a.id, a.attempt, a.job, a.key, a.priority, a.grant, expires, *place, a.message, eta, _publication(a), queued


def _publication(of: Arrival | Discarded | Stray) -> str:
    return f"{'*' if of.anonymous else '='}{of.publication}"


def _or_none(value: int | None) -> int | str:
    return "" if value is None else value


def _dispatched(reply: Any) -> Dispatched:
    what, answers, grants = reply
    return Dispatched(_text(what), [tuple(_text(part) for part in one) for one in answers], _grants(grants))


def _adopted(parts: list[Any]) -> Adopted:
    first, *rest = (_text(part) for part in parts)
    if first in ("corrupt", "gone"):
        return Adopted(problem=" ".join((first, *rest)))
    return Adopted(first, int(rest[0]), rest[1] == "1")


def _turn(reply: Any) -> Turn:
    waiting, more, outcomes, answers, grants, starts, disabled, endings, due, told = reply
    return Turn(
        waiting,
        more == 1,
        [_text(one) for one in outcomes],
        [_answer(one) for one in answers],
        _grants(grants),
        [Start(_text(s[0]), _text(s[1]), s[2]) for s in starts],
        _disabled(disabled),
        _endings(endings),
        _due(due),
        {_text(id): _text(waits) for id, waits in told},
    )


def _typed(exc: LedgerError, ledger: Ledger) -> NoReturn:
    """Error codes of the verbs become typed errors here, and nowhere else."""
    code, _, detail = str(exc).partition(" ")
    if code == "UNKNOWNWORKER":
        raise UnknownWorker(detail) from exc
    if code == "NEWEPOCH":
        raise NewEpoch(detail) from exc
    if code == "SUPERSEDED":
        raise Superseded(detail) from exc
    if code == "FOREIGN":
        raise LedgerRefused(
            f"the ledger {ledger.prefix!r} at {ledger.address} belongs to the app {detail!r}: "
            "give each app its own app.conf.orchestration_namespace"
        ) from exc
    if code == "SCHEMA":
        raise LedgerRefused(
            f"the ledger {ledger.prefix!r} at {ledger.address} has data layout {detail}, this version of "
            f"celery_orchestration knows {keys.OLDEST_SCHEMA} to {keys.SCHEMA + 1}: upgrade it"
        ) from exc
    raise exc


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _legible(value: Any) -> str:
    """Of what may be corrupt."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _fields(parts: list[Any]) -> tuple[str, dict[str, str]]:
    """Of an entry."""
    key, *rest = (_legible(part) for part in parts)
    return key, dict(zip(rest[::2], rest[1::2], strict=True))


def _sums(job: list[Any], unit: int) -> dict[int, packed.Sum]:
    """By when they began. `unit`: of the times, in ms; 0: all are one."""
    open_minute, *rest = job
    sums: dict[int, packed.Sum] = {} if unit else {0: {}}
    for begun, data in zip(rest[::2], rest[1::2], strict=True):
        packed.add(sums, int(begun), packed.unpack_sum(data))
    if (current := packed.unpack_open(open_minute)) is not None:
        packed.add(sums, current[0] * 60_000 // unit * unit if unit else 0, current[1])
    return sums


def _answer(parts: list[Any]) -> Answer:
    what = _text(parts[0])
    if what == "start":
        return Answer(what, _text(parts[1]), _text(parts[2]), tuple(_text(p) for p in parts[3:]))
    return Answer(what, detail=tuple(_text(p) for p in parts[1:]))


def _grants(parts: list[Any]) -> list[Grant]:
    return [Grant(_text(p[0]), _text(p[1])) for p in parts]


def _endings(parts: list[Any]) -> list[Ending]:
    return [Ending(_text(p[0]), _text(p[1])) for p in parts]


def _disabled(parts: list[Any]) -> list[Disabled]:
    return [Disabled(keys.decode_job(_text(p[0])), _text(p[1])) for p in parts]


def _due(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000
