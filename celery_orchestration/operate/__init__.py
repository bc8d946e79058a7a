"""For operators: a client (:class:`Orchestration`), and the models that it returns."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.doctor.models import Check, Diagnosis, Health
from celery_orchestration.operate.models import (
    Cancelled,
    CancelledRuns,
    Change,
    DeadLetter,
    Death,
    Disabled,
    Ended,
    EntryStatus,
    JobStatus,
    Letter,
    Paused,
    Progress,
    Purged,
    QueueStatus,
    Released,
    Requeued,
    RunStatus,
    SchedulerStatus,
    ServiceLeader,
    Status,
    Triggered,
    WorkerStatus,
)
from celery_orchestration.operate.pools.models import (
    Desired,
    DesiredPool,
    PoolsStatus,
    PoolStatus,
    PoolWorker,
    ScalingChange,
)

if TYPE_CHECKING:
    from celery_orchestration.operate.explain.models import Cause, Explanation, Link, OptionValue
    from celery_orchestration.operate.forecast.report import Collision, Forecast, ForecastRun, JobForecast, Overrun
    from celery_orchestration.operate.graph.dependency_graph import Conflict, DependencyGraph, Drawn, Exclusive, Needs
    from celery_orchestration.operate.history.statistics import Counts, Durations, JobStatistics, Statistics
    from celery_orchestration.operate.schedule import Schedule

__all__ = [
    "Cancelled",
    "CancelledRuns",
    "Cause",
    "Change",
    "Check",
    "Collision",
    "Conflict",
    "Counts",
    "DeadLetter",
    "Death",
    "DependencyGraph",
    "Desired",
    "DesiredPool",
    "Diagnosis",
    "Disabled",
    "Drawn",
    "Durations",
    "Ended",
    "EntryStatus",
    "Exclusive",
    "Explanation",
    "Forecast",
    "ForecastRun",
    "Health",
    "JobForecast",
    "JobStatistics",
    "JobStatus",
    "Letter",
    "Link",
    "Needs",
    "OptionValue",
    "Orchestration",
    "Overrun",
    "Paused",
    "PoolStatus",
    "PoolWorker",
    "PoolsStatus",
    "Progress",
    "Purged",
    "QueueStatus",
    "Released",
    "Requeued",
    "RunStatus",
    "ScalingChange",
    "Schedule",
    "SchedulerStatus",
    "ServiceLeader",
    "Statistics",
    "Status",
    "Triggered",
    "WorkerStatus",
]

#: Imported on first use: most commands need none of them.
_IMPORTED_ON_USE = {
    **dict.fromkeys(("Cause", "Explanation", "Link", "OptionValue"), "explain.models"),
    **dict.fromkeys(("Conflict", "Drawn", "Exclusive", "Needs", "DependencyGraph"), "graph.dependency_graph"),
    **dict.fromkeys(("Collision", "Forecast", "ForecastRun", "JobForecast", "Overrun"), "forecast.report"),
    **dict.fromkeys(("Counts", "Durations", "JobStatistics", "Statistics"), "history.statistics"),
    "Schedule": "schedule",
}


def __getattr__(name: str) -> Any:
    if name in _IMPORTED_ON_USE:
        return getattr(import_module(f"{__name__}.{_IMPORTED_ON_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
