"""The run that task code is executing: its identity, its clock, its lease, and its next attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, TimeLimitExceeded
from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError
from celery_orchestration.job.app import ledger_of, settings_of
from celery_orchestration.job.envelope import ADMITTED, FENCE, HEADER, PUBLICATION, RUN
from celery_orchestration.job.limits import Clock, Run, clocks
from celery_orchestration.job.policy import Policy

logger = get_logger(__name__)


def run_of(request: Any) -> Run:
    properties = request.properties or {}
    return str(properties.get(RUN) or request.id), str(properties.get(FENCE) or "")


def continue_run_of(request: Any, signature: Any) -> None:
    """Mark the message as the next attempt of this run, not as another run of the same task id."""
    publication = (request.properties or {}).get(PUBLICATION)
    if publication is not None:
        headers = signature.options.get("headers") or {}
        signature.options["headers"] = {**headers, HEADER: {"publication": publication}}


def stop_clock(run: Run) -> Clock | None:
    """The code has returned, in an execution pool without time limits. Raises if it is too late."""
    clock = clocks.stop(run)
    if clock is None:
        if clocks.is_over(run):
            raise Ignore(f"the time of run {run[0]} is over, it has failed")
    elif monotonic() > clock.ends:
        raise TimeLimitExceeded(clock.limit)
    return clock


def default_limit(task: Task, limits: Sequence[float | None] | None) -> str:
    """The hint for a run that exceeded a default time limit; '' if somebody wrote the limit. `limits` (hard, soft) are
    those of the call."""
    policy: Policy | None = task.orchestration
    if policy is None or policy.sources["timeout_seconds"] != "recurring default" or policy.timeout_seconds is None:
        return ""
    hard, soft = limits or (None, None)
    if hard not in (None, task.time_limit) or soft not in (None, task.soft_time_limit):
        return ""
    return f"{policy.timeout_seconds:g} s is the default limit of recurring jobs: write timeout_seconds to change it"


def lost_lease(app: Celery, run: Run, properties: Mapping[str, Any]) -> bool:
    """Ask the ledger, if it answers. A run that was admitted less than half a lease ago still has its lease."""
    admitted = properties.get(ADMITTED)
    if admitted is None or monotonic() - admitted < settings_of(app).lease_seconds / 2:
        return False
    try:
        return not ledger_of(app).holds_lease(*run)
    except LedgerError as exc:
        logger.warning("Run %s cannot check its lease, and goes on: %s", run[0], exc)
        return False
