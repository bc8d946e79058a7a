"""The verbs of supervisors of pools. The head of ``lua/verbs/supervisor/<verb>.lua`` is the contract of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celery_orchestration.ledger import keys
from celery_orchestration.ledger.client.base import Connection, text
from celery_orchestration.ledger.records import Argument, Place, arguments
from celery_orchestration.ledger.replies import ClaimedPlace, RenewedPlaces


class SupervisorVerbs(Connection):
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
    ) -> RenewedPlaces:
        """`about`: host, pid, tables (each pool with min and max at least), report. Raises
        :class:`~celery_orchestration.errors.Superseded`."""
        args: list[Argument] = [supervisor, session, int(takes_over), lease_ms, interval_ms, epoch, json.dumps(about)]
        args += arguments(places)
        epoch_now, closed_ms, answers, found = self._call("renew_places", args)
        return RenewedPlaces(
            text(epoch_now),
            int(closed_ms),
            [text(one) for one in answers],
            [
                Place(text(pool), int(number), text(fence), text(info), bool(leaving))
                for pool, number, fence, info, leaving in found
            ],
        )

    def claim_place(self, supervisor: str, session: str, token: str, pool: str, lease_ms: int) -> ClaimedPlace:
        """Raises :class:`~celery_orchestration.errors.Superseded`."""
        what, *rest = self._call("claim_place", (supervisor, session, token, pool, lease_ms))
        if text(what) != "claimed":
            return ClaimedPlace(text(what))
        return ClaimedPlace("claimed", Place(pool, int(rest[0]), text(rest[1])))

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
