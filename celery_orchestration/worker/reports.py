"""``celery inspect scheduled``, ``reserved`` and ``query_task`` show runs that wait in the ledger, too.

``celery inspect`` asks every worker, and each run is reported by one: the ledger says which runs this worker reports.
The worker's event loop answers remote control, and must not wait for a slow Redis. So a thread asks the ledger, and if
the answer does not come in time, the waiting runs are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Ledger, Waiting

logger = get_logger(__name__)

#: At most this many runs of each kind are reported by all workers together.
MOST_RUNS = 100
#: Seconds that the event loop waits; `celery inspect` waits for one second by default.
LONGEST_WAIT = 0.5
#: In bytes. For a larger message only the task is shown. Of others only the beginning is read: the headers are there.
LARGEST_MESSAGE, HEADERS = 64 * 1024, 16 * 1024


class Reports:
    def __init__(
        self, ledger: Ledger, worker: str, hostname: str, zone: tzinfo, ledger_is_down: Callable[[], bool]
    ) -> None:
        """`worker`: its id. `zone`: the app's time zone."""
        self._ledger = ledger.new_connection()
        self._worker = worker
        self._hostname = hostname
        self._zone = zone
        self._ledger_is_down = ledger_is_down
        self._question_lock = threading.Lock()

    def scheduled(self) -> list[dict[str, Any]]:
        """Runs that are not due yet, as ``inspect scheduled`` shows requests."""
        return [self._scheduled(run) for run in self._ask("later")]

    def reserved(self) -> list[dict[str, Any]]:
        """Runs that wait, as ``inspect reserved`` shows requests."""
        return [self._info(run) for run in self._ask("waiting")]

    def query(self, ids: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
        """The runs among `ids` that wait, as ``inspect query_task`` shows requests."""
        states = {"waiting": "reserved", "later": "scheduled"}
        found = [(states[run.state], self._info(run)) for run in self._ask("ids", ids[:MOST_RUNS])]
        return {info["id"]: (state, info) for state, info in found}

    def _ask(self, which: str, ids: Sequence[str] = ()) -> list[Waiting]:
        if self._ledger_is_down() or not self._question_lock.acquire(blocking=False):
            return []  # the ledger does not answer, or has not answered the last question yet
        answer: list[Waiting] = []
        done = threading.Event()

        def ask() -> None:
            try:
                found = self._ledger.inspect(self._worker, which, MOST_RUNS, LARGEST_MESSAGE, HEADERS, ids)
                answer.extend(found)
            except LedgerError as exc:
                logger.warning("Waiting runs are missing in an answer to `celery inspect`: %s", exc)
            finally:
                self._question_lock.release()
                done.set()

        threading.Thread(target=ask, name="orchestration-inspect", daemon=True).start()
        return answer if done.wait(LONGEST_WAIT) else []

    def _scheduled(self, run: Waiting) -> dict[str, Any]:
        info = self._info(run)
        eta = datetime.fromtimestamp((run.eta_ms or 0) / 1000, timezone.utc).astimezone(self._zone)
        return {"eta": eta.isoformat(), "priority": info["delivery_info"]["priority"] or 0, "request": info}

    def _info(self, run: Waiting) -> dict[str, Any]:
        """In the form of Celery's ``Request.info()``. Arguments are texts: the message's body is not unpacked here."""
        try:
            envelope = Envelope.unpack(run.message)
            headers, properties = envelope.headers, envelope.properties
            place = {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
        except Exception:  # too large, or cut off
            headers, properties, place = {}, {}, {"exchange": "", "routing_key": ""}
        return {
            "id": run.id,
            "name": run.job,
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "type": run.job,
            "hostname": self._hostname,
            "time_start": None,
            "acknowledged": True,
            "delivery_info": {**place, "priority": properties.get("priority"), "redelivered": False},
            "worker_pid": None,
        }
