"""A wall clock that a test can set, in processes of its own. Monotonic time is not affected.

Redis gets it through libfaketime, which does not work with jemalloc: so only the bundled redis-server can have it. It
does not work with Python's ``sleep`` either: in Python processes ``time.time`` and Celery's ``datetime.now`` are
replaced.
"""

from __future__ import annotations

import sys
import time
import uuid
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from support.servers import missing, redis_binaries

VARIABLE = "TEST_CLOCK"


class Clock:
    def __init__(self, directory: Path) -> None:
        self._file = directory / f"clock-{uuid.uuid4().hex[:8]}"
        self.set(0)

    def set(self, seconds: int) -> None:
        """Sets it this many seconds ahead of the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}s")
        new.replace(self._file)

    def of_python(self) -> dict[str, str]:
        """The environment of a process that calls :func:`follow`."""
        return {VARIABLE: str(self._file)}

    def of_redis(self) -> dict[str, Any]:
        """Options for a Redis server of the test."""
        found = [*Path("/usr").glob("lib*/**/libfaketimeMT.so.1")]
        if not found:
            missing("libfaketime")
        env = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return {"binary": redis_binaries()["bundled"], "env": env}


def follow(path: str) -> None:
    """Called in the process that is to have this clock."""
    true_time, true_time_ns = time.time, time.time_ns

    def ahead() -> float:
        return float(Path(path).read_text().rstrip("s"))

    class Kind(type(datetime)):  # type: ignore[misc]
        def __instancecheck__(cls, other: object) -> bool:
            return isinstance(other, datetime)

    class Moved(datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=ahead())

    time.time = lambda: true_time() + ahead()
    time.time_ns = lambda: true_time_ns() + int(ahead() * 1e9)
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] in ("celery", "kombu", "celery_orchestration")
        if ours and vars(module).get("datetime") is datetime:
            module.datetime = Moved  # type: ignore[attr-defined]
