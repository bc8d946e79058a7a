"""The options of a job: their values, and where each value comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from celery import Task

from celery_orchestration.job.options import LEDGER_OPTIONS, Dependency, JobOptions, Priority
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.text import show
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.explain.models import OptionValue

#: Options of Celery that matter to an operator.
_CELERY = ("max_retries", "autoretry_for", "retry_backoff", "default_retry_delay", "acks_late", "rate_limit")
_LIMITS = ("soft_time_limit", "time_limit")


def of_job(task: Task, policy: Policy, holds: Mapping[str, Any] | None) -> list[OptionValue]:
    """`holds`: the ledger's record of the job; None if it does not know the job."""
    in_force = _in_force(policy, holds) if holds else {}
    ours = [
        OptionValue(name=name, value=_shown(_value(policy, name)), source=source, in_force=in_force.get(name))
        for name, source in policy.sources.items()
    ]
    return ours + [_of_celery(task, policy, name) for name in (*_CELERY, *_LIMITS)]


def _value(policy: Policy, name: str) -> Any:
    return policy.blocked if name == "blocks" else getattr(policy, name)


def _of_celery(task: Task, policy: Policy, name: str) -> OptionValue:
    source = policy.source_of_celery_option(name) or "Celery's"
    return OptionValue(name=name, value=_shown(getattr(task, name, None)), source=source)


def _in_force(policy: Policy, holds: Mapping[str, Any]) -> dict[str, str]:
    """Options that have another value in the ledger than in the code."""
    written, in_ledger = policy.document(), holds["policy"]
    defaults = {option: JobOptions.model_fields[option].default for option in LEDGER_OPTIONS}
    pairs = {option: (getattr(policy, option), in_ledger.get(option, defaults[option])) for option in LEDGER_OPTIONS}
    pairs["depends_on"] = (
        _names(dependency["job"] for dependency in written["depends_on"]),
        _names(decode_job(dependency["job"]) for dependency in in_ledger["depends_on"] or ()),
    )
    return {option: _shown(ledger) for option, (code, ledger) in pairs.items() if not _equal(code, ledger)}


def _equal(code: Any, ledger: Any) -> bool:
    """JSON of Lua keeps 14 digits of a number."""
    if isinstance(code, float) and isinstance(ledger, int | float):
        return math.isclose(code, ledger, rel_tol=1e-12)
    return bool(code == ledger)


def _names(jobs: Any) -> str:
    return ", ".join(sorted(set(jobs))) or "none"


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(_shown(one) for one in value) or "none"
    if isinstance(value, Dependency):
        return _dependency(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    names = {Priority: "label", type: "__name__"}
    name = next((name for kind, name in names.items() if isinstance(value, kind)), "")
    plain = isinstance(value, str | bool | int | float) and not name
    return "none" if value is None else str(getattr(value, name)) if name else str(value) if plain else show(value)


def _dependency(value: Dependency) -> str:
    conditions = [f"on {value.on}"] if value.on != "success" else []
    conditions += [f"not older than {value.max_age_seconds:g} s"] if value.max_age_seconds else []
    conditions += [name for name in ("fresh", "external") if getattr(value, name)]
    return f"{value.name} ({', '.join(conditions)})" if conditions else value.name
