"""Progress that a run's code reports: ``self.progress(3, 10, "halfway up")``.

A report is checked at once. A thread of this process sends the latest report of each run to the ledger a few times a
second: reporting in a tight loop causes no round trips, and never waits for Redis.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import threading
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.job.limits import Run
from celery_orchestration.ledger import Ledger, keys

logger = get_logger(__name__)

#: A note is cut to this many characters.
LONGEST_NOTE = 200
#: Seconds between two reports to the ledger, and the longest pause while it does not answer.
EVERY, LONGEST_WAIT = 0.3, 10.0
#: The most runs in one call, and the most runs that are remembered while the ledger does not answer.
AT_ONCE, MOST = 100, 1000
#: Larger integers become floats: JSON readers would lose the digits anyway.
LARGEST = 2**53


def as_json(done: Any, total: Any = None, note: Any = "") -> str:
    """The report as JSON. Raises TypeError or ValueError for values that cannot be a progress."""
    if not isinstance(note, str):
        raise TypeError(f"progress: note should be a string, not {type(note).__name__}")
    values = {"done": _number("done", done), "total": None if total is None else _number("total", total)}
    return json.dumps({**values, "note": keys.text(note[:LONGEST_NOTE])}, ensure_ascii=False)


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"progress: {name} should be a number, not {type(value).__name__}")
    if isinstance(value, numbers.Integral) and 0 <= int(value) <= LARGEST:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"progress: {name} should be at least 0 and finite, not {number}")
    return number


class Reporter(threading.Thread):
    """Sends the reports of one app in one process."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        super().__init__(name="orchestration-progress", daemon=True)
        self._ledger = ledger
        self._reports: dict[Run, str] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._wait = EVERY

    def report(self, run: Run, what: str) -> None:
        with self._lock:
            self._reports[run] = what
        self._news.set()

    def run(self) -> None:
        pause = threading.Event()
        while True:
            self._news.wait()
            self._news.clear()
            self._tell()
            pause.wait(self._wait)

    def _tell(self) -> None:
        with self._lock:
            sending, self._reports = self._reports, {}
        try:
            runs = list(sending.items())
            for at in range(0, len(runs), AT_ONCE):
                self._ledger().record_progress((id, fence, what) for (id, fence), what in runs[at : at + AT_ONCE])
            self._wait = EVERY
        except LedgerUnavailable as exc:
            logger.debug("Progress cannot be reported yet: %s", exc)
            self._wait = min(self._wait * 2, LONGEST_WAIT)
            with self._lock:
                self._reports = (
                    dict([*sending.items()][-MOST:]) | self._reports
                )  # a later report of the same run is newer
            self._news.set()
        except LedgerError as exc:
            logger.debug("Progress cannot be reported: %s", exc)
        except Exception:
            logger.debug("Progress cannot be reported", exc_info=True)


_reporters: dict[tuple[int, int], Reporter] = {}
_starting = threading.Lock()


def reporter(app: Any, ledger: Callable[[], Ledger]) -> Reporter:
    """The reporter of this app in this process. A forked child gets its own: threads are not forked."""
    key = (os.getpid(), id(app))
    found = _reporters.get(key)
    if found is None:
        with _starting:
            found = _reporters.get(key)
            if found is None:
                found = Reporter(ledger)
                found.start()
                _reporters[key] = found
    return found
