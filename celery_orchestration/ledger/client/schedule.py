"""The verbs of schedulers. The head of ``lua/verbs/schedule/<verb>.lua`` is the contract of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_orchestration.ledger.client.base import Connection, grants_of, legible, text
from celery_orchestration.ledger.records import Adoption, Fire, Sent, arguments
from celery_orchestration.ledger.replies import Adopted, Changes, Dispatched, Lead


class ScheduleVerbs(Connection):
    def lead(self, scheduler: str, name: str, length_ms: int, term: str) -> Lead:
        term, now, leader, changes, epoch = self._call("lead", (scheduler, name, length_ms, term, self.service))
        return Lead(text(term), int(now), text(leader), int(changes), text(epoch))

    def resign(self, scheduler: str, term: str) -> bool:
        return bool(self._call("resign", (scheduler, term)))

    def adopt_entries(self, term: str, now_ms: int, entries: Sequence[Adoption]) -> list[Adopted] | None:
        """None if another one leads."""
        what, found = self._call("adopt_entries", [term, now_ms, *arguments(entries)])
        return [_adopted(one) for one in found] if text(what) == "ok" else None

    def retire_entries(self, term: str) -> bool:
        """False if another one leads."""
        return bool(self._call("retire_entries", (term,)))

    def record_next_due(self, term: str, times: Sequence[tuple[str, int]]) -> bool:
        return bool(self._call("record_next_due", [term, *(part for one in times for part in one)]))

    def dispatch(self, term: str, fires: Sequence[Fire]) -> Dispatched:
        self._check_epoch()
        return _dispatched(self._call("dispatch", [term, *arguments(fires)]))

    def confirm_sent(self, fires: Sequence[Fire]) -> int:
        sent = (Sent(f.entry, f.generation, f.due_ms, f.next_ms, f.missed) for f in fires)
        count: int = self._call("confirm_sent", arguments(sent))
        return count

    def continue_entries(self, term: str, entries: Sequence[str]) -> Dispatched:
        self._check_epoch()
        return _dispatched(self._call("continue_entries", (term, *entries)))

    def read_changes(self, known: int | None) -> Changes:
        number, complete, found = self._call("read_changes", ("" if known is None else known, self.service))
        return Changes(
            int(number), bool(complete), [(text(entry), bool(there), legible(doc)) for entry, there, doc in found]
        )


def _dispatched(reply: Any) -> Dispatched:
    what, answers, grants = reply
    return Dispatched(text(what), [tuple(text(part) for part in one) for one in answers], grants_of(grants))


def _adopted(parts: list[Any]) -> Adopted:
    first, *rest = (text(part) for part in parts)
    if first in ("corrupt", "gone"):
        return Adopted(problem=" ".join((first, *rest)))
    return Adopted(first, int(rest[0]), rest[1] == "1")
