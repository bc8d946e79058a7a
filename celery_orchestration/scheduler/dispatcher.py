"""The dispatcher: while this scheduler leads, it dispatches the entries that are due.

Fires go to the ledger in parts; its answer says for each fire what to do. If the answer to a part is lost, the same
part is sent again, and the ledger gives the same answer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.job.text import show
from celery_orchestration.ledger import Fire
from celery_orchestration.node.backoff import Backoff
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.entry_table import MOST_ENTRIES, RETRY_SECONDS, EntryTable, in_parts
from celery_orchestration.scheduler.fire_factory import FireFactory
from celery_orchestration.scheduler.plain_sender import PlainSender
from celery_orchestration.scheduler.times import Due

if TYPE_CHECKING:
    from celery_orchestration.scheduler.runtime import SchedulerRuntime

logger = get_logger(__name__)

#: How many fires one call of the ledger takes.
MOST_FIRES = 64
#: Seconds: the longest pause between two rounds; between two checks whether continuous jobs go on; until all entries
#: are adopted again, including those that the ledger lost.
IDLE, CONTINUE_EVERY, ADOPT_EVERY = 1.0, 1.0, 3600.0
#: Seconds between two checks whether the heartbeat is registered in the current epoch.
EPOCH_WAIT = 0.1
#: Seconds that the sender may take for its last fires when the scheduler stops.
STOP_SECONDS = 0.5


class Dispatcher(threading.Thread):
    def __init__(self, runtime: SchedulerRuntime, code: Mapping[str, Entry]) -> None:
        super().__init__(name="orchestration-dispatcher", daemon=True)
        self._runtime = runtime
        self._ledger = runtime.ledger.new_connection()
        self._fires = FireFactory(runtime, runtime.applier)
        self._entries = EntryTable(runtime, self._ledger, code, self._fires, self._working)
        self._sender = PlainSender(runtime.app, runtime.applier, self._leads, self.wake)
        #: Entries that are due and were not dispatched yet; and the part that the ledger has not answered yet.
        self._due: deque[tuple[Entry, Due]] = deque()
        self._unanswered: list[tuple[Entry, Fire]] = []
        #: The term for which the entries were adopted; '' if they were not.
        self._term = ""
        self._jumps = 0
        self._alive_at = monotonic()
        self._adopt_at = self._continue_at = 0.0
        self._wake = threading.Event()
        self._stopped = False
        self._backoff = Backoff(self._wake.wait, 1.0)

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Stops after the current part."""
        self._stopped = True
        self._wake.set()

    def silent_for(self) -> float:
        """Seconds since its last sign of life; infinite if the thread died."""
        if self.ident is None or self._stopped:
            return 0.0
        return monotonic() - self._alive_at if self.is_alive() else inf

    def _working(self) -> None:
        self._alive_at = monotonic()

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        self._sender.start()
        try:
            self._go()
            self._sender.stop()
            self._sender.join(STOP_SECONDS)
            self._confirm_sent()
        except LedgerError as exc:
            logger.warning("The scheduler stops, and the last plain tasks it sent may be sent again: %s", exc)
        finally:
            self._ledger.close()

    def _go(self) -> None:
        while not self._stopped:
            self._working()
            self._wake.clear()
            try:
                wait = self._round()
            except LedgerError as exc:
                self._backoff.failed(lambda _, exc=exc: logger.error("Cannot dispatch: %s", exc))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("Unexpected error in the dispatcher: it loads all entries again")
                self._term = ""
                self._wake.wait(1.0)
                continue
            self._backoff.succeeded()
            self._wake.wait(wait)

    def _round(self) -> float:
        """Does one round. Returns the seconds until the next one."""
        term = self._runtime.term.number
        self._confirm_sent()
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
        if self._term and self._entries.has_changes:
            self._follow_changes()
        if self._term and monotonic() >= self._continue_at:
            self._continue()
        if self._term:
            self._dispatch()
        if self._due or not self._term:
            return 0.0
        first = self._entries.queue.first()
        wait = IDLE if first is None else max(0.0, min((first[0] - self._runtime.term.now()) / 1000, IDLE))
        if wait and not self._entries.is_prepared:
            self._entries.prepare()
            return 0.0
        return wait

    def _leads(self) -> bool:
        return bool(self._term) and self._runtime.term.number == self._term

    def _leads_no_longer(self, term: str) -> None:
        """The ledger says that another scheduler leads."""
        self._runtime.term.lost(term)
        self._term = ""

    # -- entries ------------------------------------------------------------------------------------

    def _take_over(self, term: str) -> None:
        self._due.clear()
        self._unanswered = []
        jumps = self._runtime.term.jumps
        if not self._entries.load(term):
            return self._leads_no_longer(term)
        self._term, self._jumps = term, jumps
        self._adopt_at = monotonic() + ADOPT_EVERY
        self._continue_at = 0.0
        return None

    def _follow_changes(self) -> None:
        leads = self._entries.follow_changes(self._term)
        if leads is None:
            return self._take_over(self._term)
        if not leads:
            return self._leads_no_longer(self._term)
        self._continue_at = 0.0
        return None

    def _adopt_again(self, entries: Iterable[Entry]) -> bool:
        """Adopts entries whose record the ledger lost. False if another scheduler leads."""
        leads = self._entries.adopt(self._term, entries, self._runtime.term.now(), remembered=True)
        if not leads:
            self._leads_no_longer(self._term)
        return leads

    # -- fires --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._unanswered:
            self._ask()
        if not self._due:
            self._due.extend(self._entries.queue.in_order(self._entries_due()))
        while self._due and not self._stopped and self._leads():
            self._working()
            part = [self._due.popleft() for _ in range(min(len(self._due), MOST_FIRES))]
            self._unanswered = [(entry, fire) for entry, due in part if (fire := self._fire(entry, due)) is not None]
            if self._unanswered:
                self._ask()
            while self._runtime.publisher.is_behind and not self._stopped:
                sleep(0.005)

    def _entries_due(self) -> Iterable[tuple[Entry, Due]]:
        now, queue = self._runtime.term.now(), self._entries.queue
        for entry in queue.take(now):
            if entry.times is None:
                continue
            try:
                due = entry.times.due(entry.last_ms, now)
                if due is None:
                    queue.look_at(entry, max(now + 1, entry.times.next(entry.last_ms, now)))
                else:
                    yield entry, due
            except Exception as exc:
                self._entries.cannot_fire(entry, exc)

    def _fire(self, entry: Entry, due: Due) -> Fire | None:
        if entry not in self._entries.queue:
            return None  # it was changed meanwhile
        try:
            return self._fires.fire(entry, due)
        except Exception as exc:
            self._entries.cannot_fire(entry, exc)
            return None

    def _ask(self) -> None:
        """Send the current part to the ledger, and do what it answers for each fire."""
        part = self._unanswered
        try:
            found = self._ledger.dispatch(self._term, [fire for _, fire in part])
        except LedgerUnavailable:
            raise
        except LedgerError as exc:
            return self._ask_one_by_one(part, exc)
        self._unanswered = []
        if found.what == "term":
            return self._leads_no_longer(self._term)
        if found.what == "full":
            logger.error("The Redis of the ledger is full: %d fires are delayed", len(part))
            for entry, _ in part:
                self._entries.look_again(entry, 1.0)
            return None
        self._runtime.publisher.publish(found.grants)
        stale, unmade = [], []
        for (entry, fire), (what, *detail) in zip(part, found.answers, strict=True):
            if what == "send":
                self._sender.send(entry, fire)
            elif what == "make":
                self._entries.look_again(entry, 1.0)  # if its message cannot be sent now
                unmade.append((entry, fire))
            elif what == "stale":
                self._entries.look_again(entry, 1.0)  # if it cannot be adopted now
                stale.append(entry)
            else:
                self._answered(entry, fire, what, " ".join(detail))
        self._adopt_again([entry for entry in stale if entry in self._entries.queue])
        return self._make(unmade)

    def _make(self, part: list[tuple[Entry, Fire]]) -> None:
        """Make the messages of fires that become runs, and ask the ledger again with them."""
        made = []
        for entry, fire in part:
            self._working()
            try:
                self._fires.make(entry, fire)
            except Exception as exc:
                self._entries.cannot_fire(entry, exc)
            else:
                made.append((entry, fire))
        self._unanswered = made
        if made and self._leads():
            self._ask()

    def _ask_one_by_one(self, part: list[tuple[Entry, Fire]], exc: LedgerError) -> None:
        """The ledger refuses one of these fires: send each alone to find it."""
        if len(part) == 1:
            self._unanswered = []
            return self._entries.cannot_fire(part[0][0], exc)
        for entry, _ in part:
            self._entries.look_again(entry, 1.0)  # if the ledger does not answer now
        for one in part:
            self._unanswered = [one]
            self._ask()
        return None

    def _answered(self, entry: Entry, fire: Fire, what: str, detail: str) -> None:
        if what == "fired":
            if entry.template is not None:  # without a template, this was logged when the message was made
                logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
            self._sender.announce(fire)
            self._look_at_next(entry, fire)
        elif what in ("skipped", "missed"):
            logger.info("Scheduler: %s (%s) is %s: %s", entry.shown, entry.call.task, what, detail or "too late")
            self._look_at_next(entry, fire)
        elif what == "known":
            self._look_at_next(entry, fire)
        elif what == "unknown":
            self._runtime.heartbeat.register_soon()
            self._entries.look_again(entry, 0.3)
        elif what == "early":
            self._entries.look_again(entry, 0.1)
        elif what == "corrupt":
            self._entries.report(entry.id, f"entry {show(entry.name)} is not fired, a record is corrupt: {detail}")
            self._entries.look_again(entry, RETRY_SECONDS)
        # "paused": nothing to do. The change that ends the pause makes the entry be adopted again.

    def _look_at_next(self, entry: Entry, fire: Fire) -> None:
        entry.last_ms = max(entry.last_ms, fire.due_ms)
        self._entries.queue.look_at(entry, fire.next_ms)

    def _confirm_sent(self) -> None:
        """Processes the results of the sender. A fire is confirmed in the ledger after the broker has it: if the
        scheduler dies in between, the fire is sent again under the same id."""
        fires = []
        while self._sender.sent:
            one = self._sender.sent.popleft()
            if one.error is not None:
                self._entries.cannot_fire(one.entry, one.error)
            elif one.retry_seconds:
                self._entries.look_again(one.entry, one.retry_seconds)
            elif one.refused:
                one.fire.refused = one.refused
                self._unanswered.append((one.entry, one.fire))
            else:
                fires.append(one.fire)
                self._look_at_next(one.entry, one.fire)
        for part in in_parts(fires, MOST_ENTRIES):
            self._ledger.confirm_sent(part)

    def _continue(self) -> None:
        """The ledger itself continues continuous jobs. This starts them, and restarts a chain that broke."""
        self._continue_at = monotonic() + CONTINUE_EVERY
        for part in in_parts(self._entries.queue.continuous(), MOST_FIRES):
            found = self._ledger.continue_entries(self._term, [entry.id for entry in part])
            if found.what == "term":
                return self._leads_no_longer(self._term)
            if found.what == "full":
                logger.error("The Redis of the ledger is full: continuous jobs are delayed")
                return None
            self._runtime.publisher.publish(found.grants)
            stale = [entry for entry, (what,) in zip(part, found.answers, strict=True) if what == "stale"]
            if not self._adopt_again(stale):
                return None
        return None
