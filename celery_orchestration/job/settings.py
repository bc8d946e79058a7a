"""The settings of an app: ``orchestration_*`` in its configuration, and environment variables. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.options import RecurringDefaults
from celery_orchestration.job.pool import Pool, read_pools
from celery_orchestration.job.text import show, suggest
from celery_orchestration.job.validation import (
    LONGEST_SECONDS,
    Count,
    OnCrash,
    Seconds,
    error_lines,
)


def _namespace(value: Any) -> str:
    if isinstance(value, str) and 0 < len(value) <= 200 and not _unfit_for_namespace(value):
        return value
    raise ValueError(f"should be a text without braces, spaces and control characters, not {show(value)}")


def _unfit_for_namespace(text: str) -> set[str]:
    return {char for char in text if char in "{} " or not char.isprintable()}


class Settings(BaseModel):
    """The ``orchestration_*`` settings of one app."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["enforce", "observe", "off"] = "enforce"
    redis_url: Annotated[str, Field(strict=True, min_length=1)] | None = Field(default=None, repr=False)
    namespace: Annotated[str, PlainValidator(_namespace)] = "celery"
    max_running: Count | None = None
    lease_seconds: Annotated[float, Field(strict=True, ge=3, le=LONGEST_SECONDS)] = 30
    #: A stopping worker ends its running tasks after this many seconds; None: never.
    drain_seconds: Annotated[float, Field(strict=True, ge=0, le=LONGEST_SECONDS)] | None = None
    #: How soon a dead scheduler's leadership expires, so that another one takes over.
    term_seconds: Annotated[float, Field(strict=True, ge=1, le=3600)] = 10
    strict_priority: Annotated[bool, Field(strict=True)] = False
    sweep_seconds: Seconds = 5
    history: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 100
    dead_letters: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 1000
    dead_letter_seconds: Seconds = 14 * 86400
    #: For jobs without ``on_crash``; None: it follows from each job's other options.
    on_crash: OnCrash | None = None
    #: Defaults of recurring jobs.
    recurring_defaults: Annotated[RecurringDefaults, PlainValidator(RecurringDefaults.read)] = RecurringDefaults()
    #: How workers fetch from a Redis broker: so that no message is lost with its worker, or as kombu does it.
    fetch: Literal["reliable", "celery"] = "reliable"
    #: A worker fetches only the messages that its slots will start within this time.
    read_ahead_seconds: Annotated[float, Field(strict=True, ge=0, le=3600)] = 1
    #: Groups of workers that ``pools`` and ``up`` run, by name.
    pools: Annotated[dict[str, Pool], PlainValidator(read_pools)] = {}
    #: How the dashboard shows arguments: ``redacted``, ``hidden``, or ``module:function``.
    dashboard_arguments: Annotated[str, Field(strict=True, pattern=r"^(redacted|hidden|[\w.]+:\w+)$")] = "redacted"
    #: Start even if Redis may evict keys of the ledger.
    allow_eviction: Annotated[bool, Field(strict=True)] = False

    @property
    def sweep_interval_seconds(self) -> float:
        """A sweep may advance the ledger clock by twice this: that must not expire the lease of a live worker."""
        return min(self.sweep_seconds, self.lease_seconds / 6)

    @classmethod
    def read(cls, conf: Mapping[str, Any], env: Mapping[str, str], main: str | None) -> "Settings":
        """Read ``orchestration_*`` from an app's configuration; the environment overrides it."""
        written = {name: conf[name] for name in conf if name.startswith("orchestration_") and conf[name] is not None}
        known = [f"orchestration_{field}" for field in cls.model_fields]
        problems = [f"unknown setting {show(name)}{suggest(name, known)}" for name in written if name not in known]
        if problems:
            raise ConfigurationError("\n".join(problems))
        values = {name.removeprefix("orchestration_"): value for name, value in written.items()}
        labels = {field: f"orchestration_{field}" for field in cls.model_fields}
        for field in ("mode", "redis_url", "fetch", "drain_seconds"):
            variable = f"CELERY_ORCHESTRATION_{field.upper()}"
            if env.get(variable):
                values[field], labels[field] = env[variable], variable
                if field == "drain_seconds":
                    with suppress(ValueError):  # the validation below refuses a text that is no number
                        values[field] = float(env[variable])
        values.setdefault("namespace", default_namespace(main))
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(error_lines(error, cls, labels))) from None


def default_namespace(main: str | None) -> str:
    if not main or main == "__main__":
        return "celery"
    unfit = _unfit_for_namespace(main)
    return "".join("_" if char in unfit else char for char in main)[:200]
