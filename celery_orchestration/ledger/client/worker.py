"""The verbs of workers; schedulers call some of them, too, and `worker` is then the id of a scheduler.

The head of ``lua/verbs/worker/<verb>.lua`` is the contract of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import NoScriptError

from celery_orchestration.errors import LedgerError
from celery_orchestration.ledger import keys
from celery_orchestration.ledger.client.base import (
    Connection,
    asked_twice,
    disabled_of,
    due_of,
    endings_of,
    grants_of,
    text,
)
from celery_orchestration.ledger.records import (
    Argument,
    Arrival,
    Claim,
    Discarded,
    Grant,
    Outcome,
    Presence,
    Registration,
    Stray,
    TimedOut,
    arguments,
)
from celery_orchestration.ledger.replies import (
    Answer,
    Claimed,
    Decisions,
    Ending,
    Registered,
    Start,
    Sweep,
    Turn,
    Waiting,
)
from celery_orchestration.ledger.scripts import script

#: How many policies one call installs.
INSTALLED_AT_ONCE = 200


class WorkerVerbs(Connection):
    def register(self, p: Presence, epoch: str = "", fence: str = "") -> Registered:
        """`epoch`: the last one in which this worker claimed its runs. `fence`: the highest one that it has seen."""
        registration = Registration(keys.SCHEMA, keys.OLDEST_SCHEMA, epoch, fence, self.service)
        live, installed, now, why, closed_ms = self._call("register", arguments((p, registration)))
        return Registered(text(live), text(installed), text(now), text(why), closed_ms)

    def claim_runs(self, worker: str, epoch: str, taken: Sequence[Outcome], runs: Sequence[Claim]) -> Claimed:
        """`taken`: outcomes that the ledger accepted lately and may have forgotten."""
        args: list[Argument] = [worker, epoch, len(taken), *arguments(taken), len(runs)]
        for one in runs:
            args += (*arguments((replace(one.run, id=one.id or one.run.id),)), one.fence, one.run.id)
        answers, told_again, returned, disabled = self._call("claim_runs", args)
        return Claimed([text(one) for one in answers], told_again, returned, disabled_of(disabled))

    def read_releases(self, names: str) -> list[str]:
        return [text(one) for one in self._call("read_releases", (names,))]

    def install_policies(self, releases: str, cap: int | None, jobs: Mapping[str, Any]) -> bool:
        """False if other releases are live now: merge again.

        Only changed policies are sent, some at a time, so that many jobs do not keep Redis busy. If this is
        interrupted, the next node completes it.
        """
        found = [text(one) for one in self._call("list_installed", ())]
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
            if text(answer) != "ok" or not todo:
                return text(answer) == "ok"

    def heartbeat(self, worker: str, lease_ms: int, runs: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the ids of runs that are void. Measures how far our clock is ahead of Redis's."""
        args: list[Argument] = [worker, lease_ms]
        for run in runs:
            args += run
        before = time.time()
        now, *void = self._call("heartbeat", args)
        self.ahead = (before + time.time()) / 2 - int(now) / 1000
        return [text(one) for one in void]

    def drain(self, worker: str, gone_ms: int | None = None) -> list[Grant]:
        return grants_of(self._call("drain", (worker, "" if gone_ms is None else gone_ms)))

    def leave(self, worker: str) -> list[Grant]:
        grants: list[Grant] = []
        more = True
        while more:
            more, granted = self._call("leave", (worker,))
            grants += grants_of(granted)
        return grants

    def find_gone_workers(self, lease_ms: int, workers: Iterable[str]) -> set[str]:
        """The workers of these that the ledger does not list. Empty as long as it cannot know."""
        return {text(one) for one in self._call("find_gone_workers", (lease_ms, *workers))}

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
        """The first half of :meth:`turn`, for callers that poll :attr:`socket`."""
        self._wire.send(script("turn"), self.prefix, _turn_args(worker, number, mode, free, outcomes, arrivals))

    def receive_turn(self) -> Turn | None:
        """The second half. None: call :meth:`turn` instead."""
        try:
            return _turn(self._wire.receive())
        except (LedgerError, NoScriptError):
            return None

    def has_answer(self, seconds: float) -> bool:
        """Whether an answer comes within this time."""
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
            grants_of(grants),
            endings_of(endings),
            [text(one) for one in dead],
            recovered,
            text(live),
            text(installed),
            [text(one) for one in served],
            disabled_of(disabled),
            [text(one) for one in retries],
            due_of(due),
            int(decisions),
            list(strays),
        )

    def accept_strays(self, worker: str, messages: Sequence[Stray]) -> tuple[list[str], list[Grant]]:
        """Hands in messages of jobs that this worker lacks. Returns for each: wait, drop, nobody, later or full."""
        answers, grants = self._call("accept_strays", [worker, *arguments(messages)])
        return [text(one) for one in answers], grants_of(grants)

    def read_decisions(self, most_jobs: int, most_entries: int) -> Decisions:
        number, epoch, document = self._call("read_decisions", (most_jobs, most_entries))
        return Decisions(int(number), text(epoch), document)

    def restore_decisions(self, who: str, epoch: str, known: Decisions) -> int:
        """After the ledger was emptied. Returns how many decisions changed."""
        return int(self._call("restore_decisions", (who, epoch, known.number, known.document)))

    def cancel(self, worker: str, number: int, why: str, ids: Sequence[str]) -> tuple[list[Ending], list[Grant]]:
        endings, grants = self._call("cancel", (worker, number, why, *ids))
        return endings_of(endings), grants_of(grants)

    def confirm_published(self, grants: Sequence[Grant]) -> int:
        count: int = self._call("confirm_published", arguments(grants))
        return count

    def confirm_end(self, runs: Sequence[tuple[str, int]]) -> list[Grant]:
        """Celery knows how these runs (id, attempt) ended without having run."""
        return grants_of(self._call("confirm_end", ["runs", *(part for run in runs for part in run)])[0])

    def confirm_end_of_messages(self, messages: Sequence[Discarded]) -> list[Grant]:
        """Celery knows how the runs of these messages ended without having run."""
        return grants_of(self._call("confirm_end", ["messages", *arguments(messages)])[0])

    def time_out(self, run: TimedOut) -> bool:
        """False if the run has ended meanwhile, or its fence is void."""
        return bool(self._call("time_out", (run.id, run.fence, run.note, int(run.failed))))

    def record_progress(self, reports: Iterable[tuple[str, str, str]]) -> int:
        """`reports`: for each run its id, its fence and a JSON text of at most :data:`keys.LONGEST_PROGRESS` bytes.
        Returns how many of the runs are current."""
        count: int = self._call("record_progress", [part for one in reports for part in one])
        return count

    def read_granted(self, grant: Grant) -> tuple[str, bytes] | None:
        """Queue and message of a granted run, or None if that grant is no longer the latest."""
        return self.read_all_granted([grant])[0]

    def read_all_granted(self, grants: Sequence[Grant]) -> list[tuple[str, bytes] | None]:
        found = self._call("read_granted", arguments(grants))
        return [(text(one[0]), one[1]) if one else None for one in found]

    def pending_end(self, id: str) -> tuple[str, int, bytes] | None:
        """Why a run ends, its attempt and its message; None if Celery knows already."""
        found = self._call("pending_end", (id,))
        return (text(found[0]), int(found[1]), found[2]) if found else None

    def read_retry(self, id: str) -> tuple[str, int, bytes] | None:
        """Queue, attempt and message of a run whose retry has not arrived; None if it has."""
        found = self._call("read_retry", (id,))
        return (text(found[0]), int(found[1]), found[2]) if found else None

    def inspect(
        self, worker: str, which: str, most: int, largest: int, beginning: int, ids: Sequence[str] = ()
    ) -> list[Waiting]:
        """What this worker reports to Celery's remote control."""
        found = self._call("inspect", (worker, which, most, largest, beginning, *ids))
        return [
            Waiting(text(id), keys.decode_job(text(job)), text(state), int(eta) if eta else None, message)
            for id, job, state, eta, message in found
        ]

    def holds_lease(self, id: str, fence: str) -> bool:
        return bool(asked_twice(lambda: self._call("holds_lease", (id, fence))))


def _turn_args(
    worker: str, number: int, mode: str, free: int, outcomes: Sequence[Outcome], arrivals: Sequence[Arrival]
) -> list[Argument]:
    return [worker, number, mode, free, len(outcomes), *arguments(outcomes), len(arrivals), *arguments(arrivals)]


def _turn(reply: Any) -> Turn:
    waiting, more, outcomes, answers, grants, starts, disabled, endings, due, traces = reply
    return Turn(
        waiting,
        more == 1,
        [text(one) for one in outcomes],
        [_answer(one) for one in answers],
        grants_of(grants),
        [Start(text(s[0]), text(s[1]), s[2]) for s in starts],
        disabled_of(disabled),
        endings_of(endings),
        due_of(due),
        {text(id): text(waits) for id, waits in traces},
    )


def _answer(parts: list[Any]) -> Answer:
    what = text(parts[0])
    if what == "start":
        return Answer(what, text(parts[1]), text(parts[2]), tuple(text(p) for p in parts[3:]))
    return Answer(what, detail=tuple(text(p) for p in parts[1:]))
