"""The dispatcher: while this scheduler leads, it looks which entries are due and dispatches them.

What is due goes to the ledger in parts, whose answer says what to publish. A part whose answer was lost is asked for
again as it was, and answered the same way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar

from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError, LedgerError, LedgerUnavailable
from celery_orchestration.job.policy import show
from celery_orchestration.ledger import Adopted, Fire
from celery_orchestration.node.backoff import Backoff
from celery_orchestration.scheduler.agenda import Agenda
from celery_orchestration.scheduler.documents import from_document
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.fire_factory import FireFactory
from celery_orchestration.scheduler.plain_sender import Sender
from celery_orchestration.scheduler.times import Due

if TYPE_CHECKING:
    from celery_orchestration.scheduler.runtime import SchedulerRuntime

T = TypeVar("T")
logger = get_logger(__name__)

#: How many fires, or entries, are told to the ledger at a time; and how many are prepared.
MOST_FIRES, MOST_ENTRIES, MOST_PREPARED = 64, 200, 10
#: Seconds: of a look at nothing; between two looks whether continuous jobs go on; until the ledger has seen all entries
#: again, those that vanished with them; until an entry that cannot be fired is tried again.
IDLE, CONTINUE_EVERY, ADOPT_EVERY, AGAIN = 1.0, 1.0, 3600.0, 30.0
#: Seconds between two looks whether the heartbeat is registered in the epoch at hand.
EPOCH_WAIT = 0.1
#: Seconds that fires at hand of plain tasks may take when the scheduler stops.
STOP_SECONDS = 0.5


class Dispatcher(threading.Thread):
    def __init__(self, runtime: SchedulerRuntime, code: Mapping[str, Entry]) -> None:
        super().__init__(name="orchestration-dispatcher", daemon=True)
        self._runtime = runtime
        self._ledger = runtime.ledger.new_connection()
        self._code = {entry.id: entry for entry in code.values()}
        self._agenda = Agenda(runtime.graph)
        self._fires = FireFactory(runtime, runtime.applier)
        self._sender = Sender(runtime.app, runtime.applier, self._leads, self.wake)
        #: What is due and was not asked for yet; the part that was, and got no answer.
        self._due: deque[tuple[Entry, Due]] = deque()
        self._unanswered: list[tuple[Entry, Fire]] = []
        #: Adopted, and not prepared yet.
        self._unprepared: deque[Entry] = deque()
        #: The term in which the agenda was made; '' if there is none.
        self._term = ""
        self._changes = self._jumps = 0
        self._alive_at = monotonic()
        self._adopt_at = self._continue_at = 0.0
        self._reported: dict[str, str] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._backoff = Backoff(self._wake.wait, 1.0)

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """When the part at hand is done."""
        self._stopped = True
        self._wake.set()

    def silent_for(self) -> float:
        """Seconds since it last got something done; without end, if it died."""
        if self.ident is None or self._stopped:
            return 0.0
        return monotonic() - self._alive_at if self.is_alive() else inf

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        self._sender.start()
        try:
            self._go()
            self._sender.stop()
            self._sender.join(STOP_SECONDS)
            self._tell_sent()
        except LedgerError as exc:
            logger.warning("What was sent last may be sent again: %s", exc)
        finally:
            self._ledger.close()

    def _go(self) -> None:
        while not self._stopped:
            self._alive_at = monotonic()
            self._wake.clear()
            try:
                wait = self._round()
            except LedgerError as exc:
                self._backoff.failed(lambda _, exc=exc: logger.error("Cannot dispatch: %s", exc))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("The dispatcher met an unexpected error and begins anew")
                self._term = ""
                self._wake.wait(1.0)
                continue
            self._backoff.succeeded()
            self._wake.wait(wait)

    def _round(self) -> float:
        """Returns how many seconds nothing is to be done."""
        term = self._runtime.term.number
        self._tell_sent()
        if not term:
            self._term = ""
            return IDLE
        if self._runtime.heartbeat.epoch != self._runtime.term.epoch:
            # The ledger may have forgotten which entries people had paused: the heartbeat restores that first.
            self._runtime.heartbeat.register_soon()
            self._term = ""
            return EPOCH_WAIT
        if term != self._term or monotonic() >= self._adopt_at or self._jumps != self._runtime.term.jumps:
            self._take_over(term)
        if self._term and self._changes != self._runtime.term.changes:
            self._follow_changes()
        if self._term and monotonic() >= self._continue_at:
            self._continue()
        if self._term:
            self._dispatch()
        if self._due or not self._term:
            return 0.0
        first = self._agenda.first()
        wait = IDLE if first is None else max(0.0, min((first[0] - self._runtime.term.now()) / 1000, IDLE))
        if wait and self._unprepared:
            self._prepare()
            return 0.0
        return wait

    def _prepare(self) -> None:
        """A few entries at a time, while nothing is due: many may be due at once later."""
        for _ in range(min(len(self._unprepared), MOST_PREPARED)):
            with suppress(Exception):  # that is said when it fires
                self._fires.prepare(self._unprepared.popleft())

    def _leads(self) -> bool:
        return bool(self._term) and self._runtime.term.number == self._term

    def _no_longer(self, term: str) -> None:
        """The ledger says that another one leads."""
        self._runtime.term.lost(term)
        self._term = ""

    # -- entries ------------------------------------------------------------------------------------

    def _take_over(self, term: str) -> None:
        now = self._runtime.term.now()
        found = self._ledger.read_changes(None)
        entries = dict(self._code)
        for id, there, text in found.entries:
            entry = self._read(id, text) if there else None
            if entry is not None:
                entries[id] = entry
        self._agenda.clear()
        self._due.clear()
        self._unprepared.clear()
        self._unanswered = []
        jumps = self._runtime.term.jumps
        # What it knows of last fires counts only if nobody else led since.
        known = not self._runtime.term.others_led
        if self._adopt(term, entries.values(), now, known=known) and self._ledger.retire_entries(term):
            self._runtime.term.others_led = False
            self._term, self._changes, self._jumps = term, found.number, jumps
            self._adopt_at = monotonic() + ADOPT_EVERY
            self._continue_at = 0.0
            self._tell(now)

    def _tell(self, now: int) -> None:
        logger.info("Scheduler: %d entries", len(self._agenda))
        first = self._agenda.first()
        if first is not None:
            at_ms, entry = first
            logger.info("Scheduler: %s is due first, in %.1f s", entry.shown, (at_ms - now) / 1000)

    def _follow_changes(self) -> None:
        found = self._ledger.read_changes(self._changes)
        if not found.complete:
            return self._take_over(self._term)
        changed = []
        for id, there, text in found.entries:
            self._agenda.remove(id)
            self._reported.pop(id, None)
            entry = self._code.get(id) or (self._read(id, text) if there else None)
            if entry is not None:
                changed.append(entry)
        self._adopt(self._term, changed, self._runtime.term.now())
        self._changes = found.number
        self._continue_at = 0.0
        return None

    def _read(self, id: str, text: str) -> Entry | None:
        """What people wrote. Code that has an entry of that name now comes before it."""
        if id in self._code:
            return None
        try:
            return from_document(self._runtime.app, id, text, self._runtime.jobs)
        except ConfigurationError as exc:
            self._report(id, f"{exc}: it is not fired")
            return None

    def _report(self, id: str, problem: str) -> None:
        if self._reported.get(id) != problem:
            self._reported[id] = problem
            logger.error("%s", problem)

    def _adopt(self, term: str, entries: Iterable[Entry], now: int, known: bool = False) -> bool:
        """`now`: when those begin that are new. All that came together begin together, so that they stay in step.
        `known`: those that vanished go on from the last fire that we know of. False if another one leads."""
        for part in _parts(list(entries), MOST_ENTRIES):
            self._alive_at = monotonic()
            adoptions = []
            for entry in part:
                try:
                    last = entry.last_ms if known and entry.last_ms else None
                    adoptions.append((entry, self._fires.adoption(entry, last)))
                except Exception as exc:
                    self._report(entry.id, f"entry {show(entry.name)} cannot be fired: {exc!r}")
            try:
                answers = self._ledger.adopt_entries(term, now, [adoption for _, adoption in adoptions])
            except LedgerUnavailable:
                raise
            except LedgerError as exc:
                if not self._adopt_one_by_one(term, part, now, known, exc):
                    return False
                continue
            if answers is None:
                self._no_longer(term)
                return False
            times = []
            for (entry, _), answer in zip(adoptions, answers, strict=True):
                due = self._adopted(entry, answer)
                if due is not None:
                    times.append((entry.id, due))
            if times:
                self._ledger.record_next_due(term, times)
        return True

    def _adopt_one_by_one(self, term: str, part: list[Entry], now: int, known: bool, exc: LedgerError) -> bool:
        """The ledger takes offence at one of them."""
        if len(part) == 1:
            self._report(part[0].id, f"entry {show(part[0].name)} is not fired, the ledger refuses it: {exc}")
            return True
        return all(self._adopt(term, [entry], now, known) for entry in part)

    def _adopted(self, entry: Entry, answer: Adopted) -> int | None:
        """Returns when it is due next."""
        self._agenda.remove(entry.id)
        if answer.problem:
            if answer.problem != "gone":
                self._report(entry.id, f"entry {show(entry.name)} is not fired, its record is {answer.problem}")
            return None
        entry.generation, entry.last_ms = answer.generation, answer.last_ms
        self._agenda.add(entry)
        if answer.paused or entry.times is None:
            return None
        try:
            due = entry.times.next(entry.last_ms, self._runtime.term.now())
        except Exception as exc:
            self._cannot(entry, exc)
            return None
        self._agenda.look(entry, due)
        self._unprepared.append(entry)
        return due

    # -- fires --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._unanswered:
            self._ask()
        if not self._due:
            self._due.extend(self._agenda.in_order(self._what_is_due()))
        while self._due and not self._stopped and self._leads():
            self._alive_at = monotonic()
            part = [self._due.popleft() for _ in range(min(len(self._due), MOST_FIRES))]
            self._unanswered = [(entry, fire) for entry, due in part if (fire := self._fire(entry, due)) is not None]
            if self._unanswered:
                self._ask()
            while self._runtime.publisher.is_behind and not self._stopped:
                sleep(0.005)

    def _what_is_due(self) -> Iterable[tuple[Entry, Due]]:
        now = self._runtime.term.now()
        for entry in self._agenda.take(now):
            if entry.times is None:
                continue
            try:
                due = entry.times.due(entry.last_ms, now)
                if due is None:
                    self._agenda.look(entry, max(now + 1, entry.times.next(entry.last_ms, now)))
                else:
                    yield entry, due
            except Exception as exc:
                self._cannot(entry, exc)

    def _fire(self, entry: Entry, due: Due) -> Fire | None:
        if entry not in self._agenda:
            return None  # it was changed meanwhile
        try:
            return self._fires.fire(entry, due)
        except Exception as exc:
            self._cannot(entry, exc)
            return None

    def _cannot(self, entry: Entry, exc: Exception) -> None:
        self._report(entry.id, f"entry {show(entry.name)} cannot be fired: {exc!r}")
        self._again(entry, AGAIN)

    def _again(self, entry: Entry, seconds: float) -> None:
        self._agenda.look(entry, self._runtime.term.now() + round(seconds * 1000))

    def _ask(self) -> None:
        """What becomes of the part at hand."""
        part = self._unanswered
        try:
            found = self._ledger.dispatch(self._term, [fire for _, fire in part])
        except LedgerUnavailable:
            raise
        except LedgerError as exc:
            return self._ask_one_by_one(part, exc)
        self._unanswered = []
        if found.what == "term":
            return self._no_longer(self._term)
        if found.what == "full":
            logger.error("The Redis of the ledger is full: %d fires are delayed", len(part))
            for entry, _ in part:
                self._again(entry, 1.0)
            return None
        self._runtime.publisher.publish(found.grants)
        stale, wanted = [], []
        for (entry, fire), (what, *detail) in zip(part, found.answers, strict=True):
            if what == "send":
                self._sender.send(entry, fire)
            elif what == "make":
                self._again(entry, 1.0)  # unless it is made now
                wanted.append((entry, fire))
            elif what == "stale":
                self._again(entry, 1.0)  # unless it is adopted now
                stale.append(entry)
            else:
                self._answered(entry, fire, what, " ".join(detail))
        listed = [entry for entry in stale if entry in self._agenda]
        self._adopt(self._term, listed, self._runtime.term.now(), known=True)
        return self._make(wanted)

    def _make(self, part: list[tuple[Entry, Fire]]) -> None:
        """The messages of fires that make runs; then the ledger is asked for good."""
        made = []
        for entry, fire in part:
            self._alive_at = monotonic()
            try:
                self._fires.make(entry, fire)
            except Exception as exc:
                self._cannot(entry, exc)
            else:
                made.append((entry, fire))
        self._unanswered = made
        if made and self._leads():
            self._ask()

    def _ask_one_by_one(self, part: list[tuple[Entry, Fire]], exc: LedgerError) -> None:
        """The ledger takes offence at one of them."""
        if len(part) == 1:
            self._unanswered = []
            return self._cannot(part[0][0], exc)
        for entry, _ in part:
            self._again(entry, 1.0)  # unless it is answered now
        for one in part:
            self._unanswered = [one]
            self._ask()
        return None

    def _answered(self, entry: Entry, fire: Fire, what: str, detail: str) -> None:
        if what == "fired":
            if entry.template is not None:  # else it was said when its message was made
                logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
            self._sender.announce(fire)
            self._next(entry, fire)
        elif what in ("skipped", "missed"):
            logger.info("Scheduler: %s (%s) is %s: %s", entry.shown, entry.call.task, what, detail or "too late")
            self._next(entry, fire)
        elif what == "known":
            self._next(entry, fire)
        elif what == "unknown":
            self._runtime.heartbeat.register_soon()
            self._again(entry, 0.3)
        elif what == "early":
            self._again(entry, 0.1)
        elif what == "corrupt":
            self._report(entry.id, f"entry {show(entry.name)} is not fired, a record is corrupt: {detail}")
            self._again(entry, AGAIN)
        # paused: it comes back with the change that ends that

    def _next(self, entry: Entry, fire: Fire) -> None:
        entry.last_ms = max(entry.last_ms, fire.due_ms)
        self._agenda.look(entry, fire.next_ms)

    def _tell_sent(self) -> None:
        """First the broker, then the ledger: what is lost between the two is sent again, under the same id."""
        fires = []
        while self._sender.sent:
            one = self._sender.sent.popleft()
            if one.error is not None:
                self._cannot(one.entry, one.error)
            elif one.again:
                self._again(one.entry, one.again)
            elif one.refused:
                one.fire.refused = one.refused
                self._unanswered.append((one.entry, one.fire))
            else:
                fires.append(one.fire)
                self._next(one.entry, one.fire)
        for part in _parts(fires, MOST_ENTRIES):
            self._ledger.confirm_sent(part)

    def _continue(self) -> None:
        """Continuous jobs go on by themselves, in the ledger; this begins them, and goes on where a chain broke."""
        self._continue_at = monotonic() + CONTINUE_EVERY
        for part in _parts(self._agenda.continuous(), MOST_FIRES):
            found = self._ledger.continue_entries(self._term, [entry.id for entry in part])
            if found.what == "term":
                return self._no_longer(self._term)
            if found.what == "full":
                logger.error("The Redis of the ledger is full: continuous jobs do not go on")
                return None
            self._runtime.publisher.publish(found.grants)
            stale = [entry for entry, (what,) in zip(part, found.answers, strict=True) if what == "stale"]
            if not self._adopt(self._term, stale, self._runtime.term.now(), known=True):
                return None
        return None


def _parts(things: list[T], most: int) -> Iterable[list[T]]:
    return (things[i : i + most] for i in range(0, len(things), most))
