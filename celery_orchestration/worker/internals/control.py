"""Commands of remote control. All workers of a process share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker import control
from kombu.utils.functional import maybe_list


def on_revoke(revoked: Callable[[Any, list[str], bool, Any], None]) -> None:
    """Calls `revoked(consumer, ids, terminate, signal)` for every revoke that this process receives. A waiting run is
    in no worker's memory, so the ledger has to know of the revoke, too."""
    revoke = control.Panel.data["revoke"]
    if hasattr(revoke, "revoked"):
        revoke.revoked = revoked
        return

    def revoke_and_report(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        result = revoke(state, task_id, terminate, signal, **kwargs)
        ids = [task_id] if isinstance(task_id, str) else list(task_id or ())
        revoke_and_report.revoked(state.consumer, ids, terminate, signal)  # type: ignore[attr-defined]
        return result

    revoke_and_report.revoked = revoked  # type: ignore[attr-defined]
    control.Panel.data["revoke"] = revoke_and_report


def show_more_queues(more: Callable[[Any], list[dict[str, Any]]]) -> None:
    """Adds the queues that `more(consumer)` returns to ``inspect active_queues``. Celery's own consumer lacks them."""
    active_queues = control.Panel.data["active_queues"]
    if hasattr(active_queues, "more"):
        active_queues.more = more
        return

    def with_more(state: Any) -> list[dict[str, Any]]:
        return [*active_queues(state), *with_more.more(state.consumer)]  # type: ignore[attr-defined]

    with_more.more = more  # type: ignore[attr-defined]
    control.Panel.data["active_queues"] = with_more


def report_waiting(reports: Callable[[Any], Any]) -> None:
    """Adds waiting runs to the answers of ``inspect scheduled``, ``reserved`` and ``query_task``. `reports(consumer)`
    returns their :class:`~.reports.Reports`, or None."""
    if hasattr(control.Panel.data["scheduled"], "reports"):
        control.Panel.data["scheduled"].reports = reports
        return
    scheduled, reserved, query_task = (control.Panel.data[name] for name in ("scheduled", "reserved", "query_task"))

    def more_of(state: Any) -> Any:
        return with_scheduled.reports(state.consumer)  # type: ignore[attr-defined]

    def with_scheduled(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        more = more_of(state)
        return [*scheduled(state, **kwargs), *(more.scheduled() if more else ())]

    def with_reserved(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        more = more_of(state)
        return [*reserved(state, **kwargs), *(more.reserved() if more else ())]

    def with_query_task(state: Any, ids: Any, **kwargs: Any) -> dict[str, Any]:
        more, asked = more_of(state), [one for one in maybe_list(ids) or () if isinstance(one, str)]
        return {**(more.query(asked) if more else {}), **query_task(state, ids, **kwargs)}

    with_scheduled.reports = reports  # type: ignore[attr-defined]
    control.Panel.data.update(scheduled=with_scheduled, reserved=with_reserved, query_task=with_query_task)
    aliases = {"dump_schedule": with_scheduled, "dump_reserved": with_reserved}
    control.Panel.data.update({name: command for name, command in aliases.items() if name in control.Panel.data})
