"""The leader's entries: read from the code and the ledger, adopted in the ledger, each with the time of its next look.

To adopt an entry is to tell the ledger that this leader fires it. The ledger answers with its generation and its last
due time, from which the next one follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError, LedgerError, LedgerUnavailable
from celery_orchestration.job.text import show
from celery_orchestration.ledger import Adopted, Adoption, Ledger
from celery_orchestration.scheduler.due_queue import DueQueue
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.entry_documents import from_document
from celery_orchestration.scheduler.fire_factory import FireFactory

if TYPE_CHECKING:
    from celery_orchestration.scheduler.runtime import SchedulerRuntime

T = TypeVar("T")
logger = get_logger(__name__)

#: How many entries one call of the ledger takes; how many messages are prepared between two looks.
MOST_ENTRIES, MOST_PREPARED = 200, 10
#: Seconds until an entry that cannot be fired is tried again.
RETRY_SECONDS = 30.0


class EntryTable:
    def __init__(
        self,
        runtime: SchedulerRuntime,
        ledger: Ledger,
        code: Mapping[str, Entry],
        fires: FireFactory,
        working: Callable[[], None],
    ) -> None:
        """`working()` is called before each step that may take long, as a sign of life of this thread."""
        self._runtime, self._ledger, self._fires, self._working = runtime, ledger, fires, working
        self._code = {entry.id: entry for entry in code.values()}
        self.queue = DueQueue(runtime.graph)
        #: Adopted entries whose message was not prepared yet.
        self._unprepared: deque[Entry] = deque()
        #: The last problem of each entry, so that each is logged once.
        self._reported: dict[str, str] = {}
        #: Number of the last change by people that was read.
        self._changes = 0

    def load(self, term: str) -> bool:
        """Read all entries and adopt them. False if another scheduler leads."""
        now = self._runtime.term.now()
        found = self._ledger.read_changes(None)
        entries = dict(self._code)
        for id, exists, text in found.entries:
            entry = self._read(id, text) if exists else None
            if entry is not None:
                entries[id] = entry
        self.queue.clear()
        self._unprepared.clear()
        # The last due times that this process remembers count only if no other scheduler led since.
        remembered = not self._runtime.term.others_led
        if not self.adopt(term, entries.values(), now, remembered) or not self._ledger.retire_entries(term):
            return False
        self._runtime.term.others_led = False
        self._changes = found.number
        self._log_first(now)
        return True

    def _log_first(self, now: int) -> None:
        logger.info("Scheduler: %d entries", len(self.queue))
        first = self.queue.first()
        if first is not None:
            at_ms, entry = first
            logger.info("Scheduler: %s is due first, in %.1f s", entry.shown, (at_ms - now) / 1000)

    @property
    def has_changes(self) -> bool:
        """Whether people changed entries since they were read."""
        return self._changes != self._runtime.term.changes

    def follow_changes(self, term: str) -> bool | None:
        """Adopt the entries that people changed. False if another scheduler leads; None if there were more changes than
        the ledger keeps: then all entries have to be loaded again."""
        found = self._ledger.read_changes(self._changes)
        if not found.complete:
            return None
        changed = []
        for id, exists, text in found.entries:
            self.queue.remove(id)
            self._reported.pop(id, None)
            entry = self._code.get(id) or (self._read(id, text) if exists else None)
            if entry is not None:
                changed.append(entry)
        leads = self.adopt(term, changed, self._runtime.term.now())
        self._changes = found.number
        return leads

    def _read(self, id: str, text: str) -> Entry | None:
        """An entry that people wrote. An entry of the same name in the code takes precedence."""
        if id in self._code:
            return None
        try:
            return from_document(self._runtime.app, id, text, self._runtime.jobs)
        except ConfigurationError as exc:
            self.report(id, f"{exc}: it is not fired")
            return None

    # -- adopting -----------------------------------------------------------------------------------

    def adopt(self, term: str, entries: Iterable[Entry], now: int, remembered: bool = False) -> bool:
        """False if another scheduler leads.

        `now`: the time from which new entries count. Entries that came together count from the same time, so that they
        stay in step. `remembered`: entries that the ledger lost continue from the last due time that we remember.
        """
        for part in in_parts(list(entries), MOST_ENTRIES):
            self._working()
            adoptions = self._adoptions(part, remembered)
            try:
                answers = self._ledger.adopt_entries(term, now, [adoption for _, adoption in adoptions])
            except LedgerUnavailable:
                raise
            except LedgerError as exc:
                if not self._adopt_one_by_one(term, part, now, remembered, exc):
                    return False
                continue
            if answers is None:
                return False
            times = []
            for (entry, _), answer in zip(adoptions, answers, strict=True):
                due = self._adopted(entry, answer)
                if due is not None:
                    times.append((entry.id, due))
            if times:
                self._ledger.record_next_due(term, times)
        return True

    def _adoptions(self, part: list[Entry], remembered: bool) -> list[tuple[Entry, Adoption]]:
        found = []
        for entry in part:
            try:
                last = entry.last_ms if remembered and entry.last_ms else None
                found.append((entry, self._fires.adoption(entry, last)))
            except Exception as exc:
                self.report(entry.id, f"entry {show(entry.name)} cannot be fired: {exc!r}")
        return found

    def _adopt_one_by_one(self, term: str, part: list[Entry], now: int, remembered: bool, exc: LedgerError) -> bool:
        """The ledger refuses one of these entries: adopt each alone to find it."""
        if len(part) == 1:
            self.report(part[0].id, f"entry {show(part[0].name)} is not fired, the ledger refuses it: {exc}")
            return True
        return all(self.adopt(term, [entry], now, remembered) for entry in part)

    def _adopted(self, entry: Entry, answer: Adopted) -> int | None:
        """Processes the ledger's answer. Returns when the entry is due next; None if it is not fired by time."""
        self.queue.remove(entry.id)
        if answer.problem:
            if answer.problem != "gone":
                self.report(entry.id, f"entry {show(entry.name)} is not fired, its record is {answer.problem}")
            return None
        entry.generation, entry.last_ms = answer.generation, answer.last_ms
        self.queue.add(entry)
        if answer.paused or entry.times is None:
            return None
        try:
            due = entry.times.next(entry.last_ms, self._runtime.term.now())
        except Exception as exc:
            self.cannot_fire(entry, exc)
            return None
        self.queue.look_at(entry, due)
        self._unprepared.append(entry)
        return due

    # -- between fires ------------------------------------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        return not self._unprepared

    def prepare(self) -> None:
        """Make the messages of a few entries while nothing is due: many entries may be due at once later."""
        for _ in range(min(len(self._unprepared), MOST_PREPARED)):
            with suppress(Exception):  # it is reported when the entry fires
                self._fires.prepare(self._unprepared.popleft())

    def cannot_fire(self, entry: Entry, exc: Exception) -> None:
        self.report(entry.id, f"entry {show(entry.name)} cannot be fired: {exc!r}")
        self.look_again(entry, RETRY_SECONDS)

    def look_again(self, entry: Entry, seconds: float) -> None:
        self.queue.look_at(entry, self._runtime.term.now() + round(seconds * 1000))

    def report(self, id: str, problem: str) -> None:
        if self._reported.get(id) != problem:
            self._reported[id] = problem
            logger.error("%s", problem)


def in_parts(things: list[T], most: int) -> Iterable[list[T]]:
    return (things[i : i + most] for i in range(0, len(things), most))
