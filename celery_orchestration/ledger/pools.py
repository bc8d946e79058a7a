"""The verbs of pools: who holds which place, how many workers are wanted, what there is to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_orchestration.ledger import keys
from celery_orchestration.ledger.wire import Argument


@dataclass(frozen=True, slots=True)
class Place:
    """A numbered place of a pool that a supervisor holds."""

    pool: str
    number: int
    fence: str
    #: About its worker, as its supervisor wrote it down.
    info: str = field(default="", compare=False)
    #: The pool has shrunk: its worker is to stop.
    leaving: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Renewed:
    epoch: str
    #: Until a new epoch opens.
    closed_ms: int
    #: Of each place that was named: ok, leaving, void.
    answers: list[str]
    #: Places that the supervisor holds and did not name: its last process had them.
    found: list[Place]


@dataclass(frozen=True, slots=True)
class Claimed:
    #: claimed, enough, full, closed, unknown.
    what: str
    place: Place | None = None


class PoolVerbs:
    """The head of ``lua/verbs/supervisor/<verb>.lua`` is the contract of each."""

    def _call(self, verb: str, args: Sequence[Argument]) -> Any:
        raise NotImplementedError

    def renew_places(
        self,
        supervisor: str,
        session: str,
        takes_over: bool,
        lease_ms: int,
        interval_ms: int,
        epoch: str,
        about: Mapping[str, Any],
        places: Sequence[Place] = (),
    ) -> Renewed:
        """`about`: host, pid, tables (of pools: min and max at least), report. Raises
        :class:`~celery_orchestration.errors.Superseded`."""
        args: list[Argument] = [supervisor, session, int(takes_over), lease_ms, interval_ms, epoch, json.dumps(about)]
        for place in places:
            args += (place.pool, place.number, place.fence, place.info)
        epoch_now, closed_ms, answers, found = self._call("renew_places", args)
        return Renewed(
            _text(epoch_now),
            int(closed_ms),
            [_text(one) for one in answers],
            [
                Place(_text(pool), int(number), _text(fence), _text(info), bool(leaving))
                for pool, number, fence, info, leaving in found
            ],
        )

    def claim_place(self, supervisor: str, session: str, token: str, pool: str, lease_ms: int) -> Claimed:
        """Raises :class:`~celery_orchestration.errors.Superseded`."""
        what, *rest = self._call("claim_place", (supervisor, session, token, pool, lease_ms))
        if _text(what) != "claimed":
            return Claimed(_text(what))
        return Claimed("claimed", Place(pool, int(rest[0]), _text(rest[1])))

    def leave_place(self, supervisor: str, place: Place) -> bool:
        return bool(self._call("leave_place", (supervisor, place.pool, place.number, place.fence)))

    def holds_place(self, pool: str, number: int, fence: str) -> bool:
        """False if another claim has the place."""
        return bool(self._call("holds_place", (pool, number, fence)))

    def scale_pool(
        self,
        supervisor: str,
        pool: str,
        known: int | None,
        wanted: int,
        needed_ms: int,
        oldest_ms: int,
        reason: str,
        figures: Mapping[str, Any],
        may_go: Sequence[tuple[int, str]] = (),
    ) -> bool:
        """`may_go`: number and fence of places, the best ones to stop first. False if others have decided meanwhile."""
        args: list[Argument] = [supervisor, pool, "" if known is None else known, wanted, needed_ms, oldest_ms]
        args += (keys.note(reason), json.dumps(figures))
        for number, fence in may_go:
            args += (number, fence)
        return bool(self._call("scale_pool", args)[0])

    def read_pools(
        self, queues: Mapping[str, Sequence[str]], jobs: Sequence[str] = (), changes: int = 0
    ) -> dict[str, Any]:
        """`queues`: of each pool; `jobs`: encoded names of those whose duration is asked for."""
        asked: dict[str, Any] = {"pools": {pool: list(names) for pool, names in queues.items()}, "changes": changes}
        if jobs:
            asked["jobs"] = list(jobs)
        found: dict[str, Any] = json.loads(_text(self._call("read_pools", (json.dumps(asked),))))
        return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
