"""How far a run has come, as its code says it: ``self.record_progress(3, 10, "halfway up")``.

What is said is checked at once and told to the ledger by a thread of this process, which takes the latest of each run a
few times a second: code that says it in a tight loop costs nobody a round trip, and never waits for Redis.
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

#: Characters of a note that are kept.
LONGEST_NOTE = 200
#: Seconds between two tellings, and the most while the ledger does not answer.
EVERY, LONGEST_WAIT = 0.3, 10.0
#: Runs that are told of in one call, and runs that are remembered while the ledger does not answer.
AT_ONCE, MOST = 100, 1000
#: Integers beyond are told as floats: more digits are no news, and JSON readers lose them anyway.
LARGEST = 2**53


def said(done: Any, total: Any = None, note: Any = "") -> str:
    """What was said, as JSON; TypeError or ValueError if it makes no sense."""
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
    """Of one app and process."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        super().__init__(name="orchestration-progress", daemon=True)
        self._ledger = ledger
        self._said: dict[Run, str] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._wait = EVERY

    def say(self, run: Run, what: str) -> None:
        with self._lock:
            self._said[run] = what
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
            told, self._said = self._said, {}
        try:
            runs = list(told.items())
            for at in range(0, len(runs), AT_ONCE):
                self._ledger().record_progress((id, fence, what) for (id, fence), what in runs[at : at + AT_ONCE])
            self._wait = EVERY
        except LedgerUnavailable as exc:
            logger.debug("Progress is not told yet: %s", exc)
            self._wait = min(self._wait * 2, LONGEST_WAIT)
            with self._lock:
                self._said = dict([*told.items()][-MOST:]) | self._said  # what was said since is newer
            self._news.set()
        except LedgerError as exc:
            logger.debug("Progress is not told: %s", exc)
        except Exception:
            logger.debug("Progress is not told", exc_info=True)


_reporters: dict[tuple[int, int], Reporter] = {}
_starting = threading.Lock()


def reporter(app: Any, ledger: Callable[[], Ledger]) -> Reporter:
    """The one of this app in this process: a forked child has none of its parent's threads."""
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
