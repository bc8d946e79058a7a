"""Sends fires through Celery's ``Scheduler.apply_entry``, if other code has patched that.

Monitors such as Sentry Crons patch it to see each fire and to add headers. ``apply_entry`` calls the scheduler's
``apply_async``, which is ours (``beat.py``). Ours uses the producer and the id that are given here, even if the patch
has changed them in the entry. So a fire still becomes one run. The entry is a copy for this one fire.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from celery.result import denied_join_result
from celery.utils.log import get_logger

from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.hooks import apply_entry_is_patched

logger = get_logger(__name__)

#: Why a fire made no run.
NOT_SENT = "a patched apply_entry did not send it"


@dataclass(slots=True)
class Application:
    """A call of ``apply_entry`` that has not returned yet."""

    id: str
    producer: Any
    is_sent: bool = False
    error: Exception | None = None


_under_way = threading.local()


def under_way() -> Application | None:
    """The call of this thread."""
    return getattr(_under_way, "application", None)


class Applier:
    def __init__(self, scheduler: Any = None) -> None:
        """Without a `scheduler` it is never needed."""
        self._scheduler = scheduler

    @property
    def is_needed(self) -> bool:
        return self._scheduler is not None and apply_entry_is_patched(self._scheduler)

    def apply(self, entry: Entry, id: str, producer: Any) -> bool:
        """Returns whether it was sent. Raises the error of sending, which ``apply_entry`` itself only logs."""
        application = _under_way.application = Application(id, producer)
        try:
            with denied_join_result():
                self._scheduler.apply_entry(self._celery_entry(entry), producer=producer)
        except Exception:
            if not application.is_sent:
                raise
            logger.exception("apply_entry failed after it had sent %s", entry.shown)
        finally:
            _under_way.application = None
        if application.error is not None and not application.is_sent:
            raise application.error
        return application.is_sent

    def _celery_entry(self, entry: Entry) -> Any:
        scheduler, call = self._scheduler, entry.call
        return scheduler.Entry(
            name=entry.name,
            task=call.task,
            last_run_at=datetime.fromtimestamp(entry.last_ms / 1000, timezone.utc),
            schedule=entry.when,
            args=tuple(call.args),
            kwargs=dict(call.kwargs),
            options={**call.options, "headers": dict(call.options.get("headers") or {})},
            app=scheduler.app,
        )
