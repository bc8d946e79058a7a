"""Who leads: one scheduler of a service at a time, for a term.

Services that share a ledger (docs/services.md) each have a leader, terms and entries of their own. Below, "a scheduler"
is one of the same service.

**Why two schedulers never fire the same.** A term is a number that the ledger gives (verb lead): to whoever asks
when the term before it is over by Redis's own clock, and terms rise. Every dispatch carries the term of the scheduler
that makes it; in the same script that would make runs of it, the ledger compares it with the latest one it gave, and
refuses it if it is another one or if its time is up. So it does not matter where a leader is stopped and for how long,
in the middle of a tick too, nor what its clock says: when it goes on after another has taken over, its dispatches are
refused, and it stands by. And a fire that did go through goes through once, since a due time not after the entry's last
one is refused, whoever brings it.

What is outside the script is publishing. A run that an old leader publishes late carries a grant that is void by then,
or one that is still good: workers tell. A message of a task that is no job of ours may be sent twice: by a leader that
was stopped between the ledger's answer and the broker, and by the next one.

**How long a leader may trust its term.** From just before it asked for it, by its monotonic clock, for the length of a
term, less a margin: Redis counts from when the question arrived, which is later. A leader that could not renew its term
stops dispatching then, before the term can be over. That is politeness, not safety: it spares it refusals, and keeps
messages of plain tasks from being sent twice.

**When one takes over.** A leader that stops says so (verb ``resign``); the others ask a few times a second. One that
died is found out when its term is over. The term is renewed by a thread of its own, so that a long tick costs nobody
their term; and without the event loop, the broker or the entries. But a leader that does not dispatch must not lead: if
its dispatcher is stuck or dead, it resigns and asks no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.ledger import Lead, Ledger
from celery_orchestration.node.backoff import Backoff

logger = get_logger(__name__)

#: Seconds between two questions, at most. What people change is seen within that.
ASK_EVERY = 0.4
#: The part of a term that its leader does not trust.
MARGIN = 0.2
#: A reply that took longer, in seconds, tells little about Redis's clock.
_QUICK = 0.05
#: Seconds that who dispatches may be silent, however short terms are: a takeover of many entries takes a while.
LEAST_SILENCE = 10.0


class Term(threading.Thread):
    def __init__(
        self,
        ledger: Ledger,
        scheduler: str,
        name: str,
        seconds: float,
        changed: Callable[[], None],
        silent_for: Callable[[], float],
    ) -> None:
        """`changed` is called when we lead or no longer do, and when people changed the schedule. `silent_for` says for
        how many seconds who dispatches has given no sign of life."""
        super().__init__(name="orchestration-term", daemon=True)
        self._ledger = ledger
        self._scheduler, self._name = scheduler, name
        self._seconds = seconds
        self._changed, self._silent_for = changed, silent_for
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait, min(1.0, seconds / 5))
        #: The term that we have, '' if none; and until when it may be trusted.
        self._held = ("", 0.0)
        self._leader = ""
        #: Redis's time less our monotonic clock, ms.
        self._offset: float | None = None
        #: Number of the last change of people.
        self.changes = 0
        #: How often Redis's clock was set to another time; whether another one was seen to lead, until that is unset.
        self.jumps = 0
        #: Of the ledger, '' if that is empty.
        self.epoch = ""
        self.others_led = False

    @property
    def number(self) -> str:
        """Our term, if we lead and may trust that; else ''."""
        term, until = self._held
        return term if monotonic() < until else ""

    def now(self) -> int:
        """Redis's time, ms."""
        return round(monotonic() * 1000 + (self._offset or 0.0))

    def lost(self, term: str) -> None:
        """The ledger refused it."""
        if self._held[0] == term:
            self._held = ("", 0.0)

    def stop(self) -> None:
        """Asks no more; resigns."""
        self._stopped.set()
        self.join(2.0)
        term, self._held = self._held[0], ("", 0.0)
        if term and not self.is_alive():
            try:
                self._ledger.resign(self._scheduler, term)
                logger.info("This scheduler resigns")
            except LedgerError as exc:
                logger.warning("Cannot resign, the term ends by itself: %s", exc)
        self._ledger.close()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask()
            except LedgerRefused:
                return  # the heartbeat says it, and ends this process
            except LedgerError as exc:
                self._backoff.failed(lambda seconds, exc=exc: self._say(exc, seconds))  # type: ignore[misc]
            except Exception:
                logger.exception("Asking for the lead met an unexpected error")
                self._stopped.wait(1.0)
            else:
                self._backoff.succeeded()
                self._stopped.wait(min(ASK_EVERY, self._seconds / 6))

    def _say(self, exc: LedgerError, seconds: float) -> None:
        logger.error("Standing by for %.0f s: the ledger at %s says %s", seconds, self._ledger.address, exc)

    def _ask(self) -> None:
        before = monotonic()
        term, until = self._held
        if self._silent_for() > max(self._seconds, LEAST_SILENCE):
            return self._stand_aside(term)
        found = self._ledger.lead(self._scheduler, self._name, round(self._seconds * 1000), term)
        if self._stopped.is_set() and found.term and not term:
            self._ledger.resign(self._scheduler, found.term)  # it was given after we had stopped asking
            return None
        after = monotonic()
        self._set_clock(found.now, before, after)
        trusted = bool(term) and before < until
        self._held = (found.term, before + self._seconds * (1 - MARGIN)) if found.term else ("", 0.0)
        self.others_led = self.others_led or not found.term
        self.epoch = found.epoch
        changes, self.changes = self.changes, found.changes
        if found.term != term or not trusted or changes != found.changes:
            self._tell(found, term)
            self._changed()
        return None

    def _stand_aside(self, term: str) -> None:
        """Whatever keeps the dispatcher: another scheduler may be able to."""
        if term:
            logger.critical("The dispatcher of this scheduler is stuck: it resigns")
            self._held = ("", 0.0)
            self._ledger.resign(self._scheduler, term)

    def _tell(self, found: Lead, term: str) -> None:
        if found.term and found.term != term:
            logger.info("This scheduler leads (term %s)", found.term)
        elif term and not found.term:
            logger.warning("This scheduler leads no more: %s does; standing by", found.leader)
        elif not found.term and found.leader != self._leader:
            logger.info("Standing by: %s leads", found.leader)
        self._leader = found.leader

    def _set_clock(self, now: int, before: float, after: float) -> None:
        offset = now + 0.5 - (before + after) * 500
        jumped = self._offset is not None and abs(offset - self._offset) > 1000
        if self._offset is None or jumped or after - before < _QUICK:
            self._offset = offset
        self.jumps += jumped
