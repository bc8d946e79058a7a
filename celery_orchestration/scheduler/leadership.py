"""Leadership: one scheduler of a service leads at a time, for a term.

Services that share a ledger (docs/services.md) each have a leader, terms and entries of their own. Below, "a scheduler"
is one of the same service.

**Why two schedulers never fire the same due time.** A term is a number that the ledger gives (verb ``lead``) to the
first scheduler that asks after the previous term has expired by Redis's clock. Terms rise. Every dispatch carries the
term of its scheduler. The script that would make runs of it first compares that term with the latest one that the
ledger gave, and refuses the dispatch if it is another one or has expired. So it does not matter where a leader is
suspended and for how long, even in the middle of a tick, nor what its clock says: if another scheduler has taken over
when it resumes, its dispatches are refused, and it becomes a standby. A fire that was accepted is accepted only once,
because the ledger refuses a due time that is not later than the entry's last one.

Publishing is outside the script. A run that an old leader publishes late carries a grant that is void by then or still
valid; the workers check it. A message of a plain task may be sent twice: by a leader that was suspended between the
ledger's answer and the broker, and by the next leader.

**How long a leader may trust its term.** It trusts the term for its length less a margin. It counts by its monotonic
clock, from just before it asked. Redis counts from the arrival of the request, which is later. A leader that could not
renew its term therefore stops dispatching before the term expires. This is not needed for safety: it avoids refused
dispatches, and plain tasks that are sent twice.

**When a standby takes over.** A leader that stops resigns (verb ``resign``); the standbys ask a few times a second. The
term of a leader that died expires. A thread of its own renews the term, so that a long tick does not cost the
leadership; it needs neither the event loop nor the broker nor the entries. But a leader that does not dispatch must not
lead: if its dispatcher is stuck or dead, it resigns and stops asking.
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

#: The longest pause between two requests, in seconds. A change that people make is seen within that time.
ASK_EVERY = 0.4
#: The part at the end of a term that its leader does not trust.
MARGIN = 0.2
#: A reply that took longer than this many seconds does not set the clock.
_QUICK = 0.05
#: The dispatcher may be silent for this many seconds, however short the terms are: adopting many entries takes time.
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
        """`changed()` is called when this scheduler begins or stops leading, and when people changed the schedule.
        `silent_for()` returns the seconds since the dispatcher's last sign of life."""
        super().__init__(name="orchestration-term", daemon=True)
        self._ledger = ledger
        self._scheduler, self._name = scheduler, name
        self._seconds = seconds
        self._changed, self._silent_for = changed, silent_for
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait, min(1.0, seconds / 5))
        #: Our term, '' if we have none; and the end of the time for which we may trust it, by the monotonic clock.
        self._held = ("", 0.0)
        self._leader = ""
        #: Redis's time minus our monotonic clock, in ms.
        self._offset: float | None = None
        #: Number of the last change that people made.
        self.changes = 0
        #: How often Redis's clock was seen to jump.
        self.jumps = 0
        #: The ledger's epoch, '' if the ledger is empty.
        self.epoch = ""
        #: Whether another scheduler led since the dispatcher last reset this.
        self.others_led = False

    @property
    def number(self) -> str:
        """Our term while we lead and may trust it, otherwise ''."""
        term, until = self._held
        return term if monotonic() < until else ""

    def now(self) -> int:
        """Redis's time, in ms."""
        return round(monotonic() * 1000 + (self._offset or 0.0))

    def lost(self, term: str) -> None:
        """The ledger refused this term."""
        if self._held[0] == term:
            self._held = ("", 0.0)

    def stop(self) -> None:
        """Stop asking, and resign."""
        self._stopped.set()
        self.join(2.0)
        term, self._held = self._held[0], ("", 0.0)
        if term and not self.is_alive():
            try:
                self._ledger.resign(self._scheduler, term)
                logger.info("This scheduler resigns")
            except LedgerError as exc:
                logger.warning("This scheduler cannot resign, its term expires by itself: %s", exc)
        self._ledger.close()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask()
            except LedgerRefused:
                return  # the heartbeat reports this, and ends the process
            except LedgerError as exc:
                self._backoff.failed(lambda seconds, exc=exc: self._log_failure(exc, seconds))  # type: ignore[misc]
            except Exception:
                logger.exception("Unexpected error while asking for leadership: the scheduler asks again in a second")
                self._stopped.wait(1.0)
            else:
                self._backoff.succeeded()
                self._stopped.wait(min(ASK_EVERY, self._seconds / 6))

    def _log_failure(self, exc: LedgerError, seconds: float) -> None:
        logger.error("Standing by for %.0f s (the ledger at %s: %s)", seconds, self._ledger.address, exc)

    def _ask(self) -> None:
        before = monotonic()
        term, until = self._held
        if self._silent_for() > max(self._seconds, LEAST_SILENCE):
            return self._stand_aside(term)
        found = self._ledger.lead(self._scheduler, self._name, round(self._seconds * 1000), term)
        if self._stopped.is_set() and found.term and not term:
            self._ledger.resign(self._scheduler, found.term)  # the term was given after we had stopped
            return None
        after = monotonic()
        self._set_clock(found.now, before, after)
        trusted = bool(term) and before < until
        self._held = (found.term, before + self._seconds * (1 - MARGIN)) if found.term else ("", 0.0)
        self.others_led = self.others_led or not found.term
        self.epoch = found.epoch
        changes, self.changes = self.changes, found.changes
        if found.term != term or not trusted or changes != found.changes:
            self._log_leader(found, term)
            self._changed()
        return None

    def _stand_aside(self, term: str) -> None:
        """The dispatcher is stuck: another scheduler may be able to dispatch."""
        if term:
            logger.critical("The dispatcher of this scheduler is stuck: it resigns")
            self._held = ("", 0.0)
            self._ledger.resign(self._scheduler, term)

    def _log_leader(self, found: Lead, term: str) -> None:
        if found.term and found.term != term:
            logger.info("This scheduler leads (term %s)", found.term)
        elif term and not found.term:
            logger.warning("This scheduler no longer leads, %s does: standing by", found.leader)
        elif not found.term and found.leader != self._leader:
            logger.info("Standing by: %s leads", found.leader)
        self._leader = found.leader

    def _set_clock(self, now: int, before: float, after: float) -> None:
        offset = now + 0.5 - (before + after) * 500
        jumped = self._offset is not None and abs(offset - self._offset) > 1000
        if self._offset is None or jumped or after - before < _QUICK:
            self._offset = offset
        self.jumps += jumped
