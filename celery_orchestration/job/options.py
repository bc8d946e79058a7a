"""The options that people write on a job: their names, accepted values, defaults, and how they are read. Pure.

An option is declared once, as a field of :class:`JobOptions`; if recurring jobs have another default, that is in
:class:`RecurringDefaults`. The policy, its sources, "did you mean" and ``explain`` follow from the fields. An option
that the ledger reads is marked as :class:`~celery_orchestration.job.ledger_option.InLedger`.

``read_options`` checks the attributes of a task when it is bound. A job that names another job by its task object keeps
that object unresolved: names are resolved once every module is imported (see ``graph``).
"""

import json
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Annotated, Any, Literal

from celery.app.task import Task
from celery.schedules import BaseSchedule, crontab
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from typing_extensions import Self

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.ledger_option import InLedger, fail_first, ledger_options, smaller
from celery_orchestration.job.text import is_lazy_task, show, suggest
from celery_orchestration.job.validation import (
    LONGEST_SECONDS,
    Count,
    OnCrash,
    Seconds,
    configuration_error,
    error_lines,
    pool_name,
)

_CELERY_NAMES = frozenset(dir(Task))


class Priority(IntEnum):
    """The priority of a job: its queue, and its rank while it waits."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, value: object) -> "Priority":
        """Read a name or a ``Priority``. A bare int is Celery's message priority, never ours."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        labels = [priority.label for priority in cls]
        hint = suggest(value, labels) if isinstance(value, str) else ""
        raise ValueError(f"should be one of {', '.join(labels)} or a Priority, not {show(value)}{hint}")


def _job(value: Any) -> Any:
    if is_lazy_task(value):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if isinstance(name, str) and name:
        return str(name)
    raise ValueError(f"should name a job by its task or its full name, not {show(value)}")


def _jobs(value: Any) -> list[Any]:
    if issubclass(type(value), (list, tuple)):
        return [job if type(job) in (Dependency, External) else _job(job) for job in value]
    raise ValueError(f"should be a list of jobs (tasks or their full names), not {show(value)}")


def _dependencies(value: Any) -> list["Dependency"]:
    return [job if type(job) is Dependency else Dependency(job) for job in _jobs(value)]


def _blocks(value: Any) -> list[Any]:
    jobs = _jobs(value)
    if any(type(job) is Dependency for job in jobs):
        raise ValueError(
            "should be a list of jobs (tasks, their full names, or External('…') for one of another service), "
            "not of Dependency(...)"
        )
    return jobs


def _exclusive(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()):
        return value
    raise ValueError(f"should be the name of a group of jobs that run one at a time, not {show(value)}")


def job_name(job: Any) -> str:
    if type(job) is str:
        return job
    try:
        return str(job.name)
    except (AttributeError, LookupError) as error:
        raise ConfigurationError(
            f"depends_on or blocks holds an object that is no task of the current app ({show(error)}): "
            "write the job's full name instead"
        ) from error


def crontab_of(text: str) -> crontab:
    """Read a crontab's text: minute, hour, day of month, month, day of week."""
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"a crontab has 5 fields, and this has {len(fields)}")
    minute, hour, day_of_month, month_of_year, day_of_week = fields
    return crontab(minute, hour, day_of_week, day_of_month, month_of_year)


def _schedule(value: Any) -> Any:
    if value is None or isinstance(value, BaseSchedule):
        return value
    if isinstance(value, str):
        try:
            return crontab_of(value)
        except Exception as exc:
            raise ValueError(f"should be a crontab such as '*/5 * * * *', not {show(value)}: {exc}") from None
    if isinstance(value, timedelta) and value > timedelta(0):
        return value
    if type(value) in (int, float) and 0 < value <= LONGEST_SECONDS:
        return value
    raise ValueError(
        "should be a Celery schedule such as crontab(...) or its text ('*/5 * * * *'), a timedelta above zero "
        f"or a number of seconds above zero, not {show(value)}"
    )


def _key(value: Any) -> Any:
    """Allow only ``{name}`` and ``{0}``: a field that reads attributes could read anything."""
    if value is None or callable(value):
        return value
    accepted = "should be a template like '{tenant_id}' or '{0}', or a callable"
    if not isinstance(value, str):
        raise ValueError(f"{accepted}, not {show(value)}")  # noqa: TRY004 - pydantic collects ValueError
    try:
        parsed = [part for part in string.Formatter().parse(value) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{accepted}, not {show(value)} ({error})") from None
    plain = all(
        field and (field.isidentifier() or field.isdecimal()) and not spec and not conversion
        for _, field, spec, conversion in parsed
    )
    if not parsed or not plain:
        raise ValueError(f"{accepted}, with plain fields only, not {show(value)}")
    return value


class External:
    """The full name of a job of another service that shares the ledger, for ``blocks`` and ``depends_on``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if type(name) is not str or not name:
            raise ConfigurationError(f"External(...) takes the full name of a job, not {show(name)}")
        self.name = name

    def __repr__(self) -> str:
        return f"External({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is External and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class Dependency(BaseModel):
    """A job that must be idle, and fulfil ``on``, before the job that names it may start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Annotated[Any, BeforeValidator(_job)]
    on: Literal["success", "finish", "idle"] = "success"
    max_age_seconds: Seconds | None = None
    fresh: Annotated[bool, Field(strict=True)] = False
    external: Annotated[bool, Field(strict=True)] = False

    def __init__(self, job: Any, **options: Any) -> None:
        if type(job) is External:
            options = {"external": True, **options}
        try:
            super().__init__(job=job, **options)
        except ValidationError as error:
            raise configuration_error(f"Dependency on {show(job)}", error_lines(error, type(self))) from None

    @model_validator(mode="after")
    def _idle_needs_no_run(self) -> Self:
        if self.on == "idle" and (self.fresh or self.max_age_seconds is not None):
            raise ValueError(
                "on='idle' ignores past runs: drop max_age_seconds and fresh, or write on='success' or on='finish'"
            )
        return self

    @property
    def name(self) -> str:
        """The job's full name. This evaluates a lazy task, so use it only when the app is finalised."""
        return job_name(self.job)

    def document(self) -> dict[str, Any]:
        return {"job": self.name, "on": self.on, "max_age_seconds": self.max_age_seconds, "fresh": self.fresh}


def ordered(dependencies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort documents of dependencies and drop duplicates, so that equal lists have equal documents."""
    by_content = {(each["job"], json.dumps(each, sort_keys=True)): each for each in dependencies}
    return [by_content[content] for content in sorted(by_content)]


class JobOptions(BaseModel):
    """The options of one job; ``model_fields_set`` has those that were written.

    The defaults are those of a job that is not recurring: none of them changes Celery's behaviour.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["scheduled", "triggered", "continuous"] = "triggered"
    interval_seconds: Annotated[float, Field(strict=True, le=LONGEST_SECONDS)] | None = None
    schedule: Annotated[Any, PlainValidator(_schedule)] = None
    timeout_seconds: Seconds | None = None
    priority: Annotated[Priority, PlainValidator(Priority.parse)] = Priority.NORMAL
    pool: Annotated[str, PlainValidator(pool_name)] = "default"
    depends_on: Annotated[tuple[Dependency, ...], BeforeValidator(_dependencies)] = ()
    blocks: Annotated[tuple[Any, ...], BeforeValidator(_blocks)] = ()
    exclusive: Annotated[str | None, PlainValidator(_exclusive)] = None
    max_running: Annotated[Count | None, InLedger(smaller)] = None
    key: Annotated[str | Callable[..., object] | None, PlainValidator(_key)] = None
    max_consecutive_failures: Annotated[Count | None, InLedger(smaller)] = None
    cool_down_seconds: Annotated[Seconds | None, InLedger()] = None
    when_disabled: Annotated[Literal["hold", "drop"], InLedger()] = "hold"
    overlap: Literal["skip", "queue", "allow"] = "skip"
    catch_up: Literal["latest", "none"] = "latest"
    catch_up_seconds: Seconds = 3600
    on_lease_lost: Literal["continue", "stop"] = "continue"
    on_crash: Annotated[OnCrash, InLedger(fail_first)] = "fail"
    max_recoveries: Annotated[int, Field(strict=True, ge=0), InLedger()] = 2

    @property
    def recurring(self) -> bool:
        return self.interval_seconds is not None or self.schedule is not None or self.mode == "continuous"

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        written = self.model_fields_set
        if self.interval_seconds is not None and self.schedule is not None:
            raise ValueError("interval_seconds and schedule exclude each other: drop one of them")
        interval, continuous = self.interval_seconds, self.mode == "continuous"
        if interval is not None and (interval < 0 or (interval == 0 and not continuous)):
            least = "at least 0" if continuous else "greater than 0"
            raise ValueError(f"interval_seconds should be {least}, not {interval:g}")
        if self.mode == "scheduled" and not self.recurring:
            raise ValueError("mode='scheduled' needs interval_seconds or schedule")
        if self.mode == "triggered" and "mode" in written and self.recurring:
            cadence = "schedule" if self.interval_seconds is None else "interval_seconds"
            raise ValueError(f"mode='triggered' creates no schedule entry: drop {cadence} or the mode")
        implied = self.recurring or self.exclusive is not None
        disables = self.max_consecutive_failures is not None or (
            self.recurring and "max_consecutive_failures" not in written
        )
        if self.cool_down_seconds is not None and not disables:
            raise ValueError("cool_down_seconds needs max_consecutive_failures, which disables the job")
        capped = self.max_running is not None or (implied and "max_running" not in written)
        if self.key is not None and not capped:
            raise ValueError("key needs max_running, which it makes count per key")
        return self


OPTIONS: tuple[str, ...] = tuple(JobOptions.model_fields)
#: The options that the ledger reads.
LEDGER_OPTIONS = ledger_options(JobOptions)


def _exceptions(value: Any) -> tuple[type[BaseException], ...]:
    if isinstance(value, (list, tuple)):
        found = tuple(one for one in value if isinstance(one, type) and issubclass(one, BaseException))
        if len(found) == len(value):
            return found
    raise ValueError(f"should be a tuple of exception classes, not {show(value)}")


class RecurringDefaults(BaseModel):
    """Defaults of recurring jobs; ``orchestration_recurring_defaults`` changes them for an app.

    An option that is not listed here has the default of :class:`JobOptions` in recurring jobs, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_seconds: Seconds | None = 60
    max_running: Count | None = 1
    max_consecutive_failures: Count | None = 5
    on_crash: OnCrash = "requeue"
    #: Options of Celery's own.
    autoretry_for: Annotated[tuple[type[BaseException], ...], PlainValidator(_exceptions)] = (Exception,)
    max_retries: Annotated[int, Field(strict=True, ge=0)] | None = 3
    retry_backoff: Annotated[bool, Field(strict=True)] | Annotated[int, Field(strict=True, ge=0)] = True
    retry_jitter: Annotated[bool, Field(strict=True)] = True

    @classmethod
    def read(cls, value: Any) -> Self:
        """Read the setting. Raises ValueError."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"should be a mapping such as {{'timeout_seconds': None}}, not {show(value)}")  # noqa: TRY004
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise ValueError(f"is wrong: {'; '.join(error_lines(error, cls))}") from None

    def job_options(self) -> dict[str, Any]:
        ours = {option: getattr(self, option) for option in type(self).model_fields if option in OPTIONS}
        return {"mode": "scheduled", **ours}

    def celery_options(self) -> dict[str, Any]:
        return {option: getattr(self, option) for option in type(self).model_fields if option not in OPTIONS}


def read_options(name: str, attributes: Mapping[str, Any]) -> JobOptions:
    """Read a job's options from the attributes of its class, or raise one error with all problems.

    ``None`` undoes an option of a base class: it means none if the option accepts None, and the default otherwise.
    """
    where = f"job {show(name)}"
    written = {
        option: attributes[option]
        for option in OPTIONS
        if option in attributes and _is_option(option, attributes[option])
    }
    problems = list(_misspelt(attributes))
    if written.get("timeout_seconds") is not None and (limits := time_limits(attributes)):
        problems.append(f"timeout_seconds and {' and '.join(limits)} exclude each other: drop one side")
    if problems:
        raise configuration_error(where, problems)
    try:
        return JobOptions.model_validate(written)
    except ValidationError as error:
        raise configuration_error(where, error_lines(error, JobOptions)) from None


def _is_option(option: str, value: Any) -> bool:
    """Ignore attributes that only share a name with an option: inheriting alone changes nothing."""
    if value is None:
        return JobOptions.model_fields[option].default is None
    if option == "priority" and type(value) is int:
        return False
    if option == "key":
        return callable(value) or not _is_descriptor(value)
    return not _is_descriptor(value)


def _is_descriptor(value: Any) -> bool:
    """Whether it is a method or property of a task class, not a value."""
    return hasattr(type(value), "__get__")


def _misspelt(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Find attributes that can only be misspelt options.

    Classes have attributes of their own (``model``, ``keys``, ``lock``). An option of four letters is too similar to
    many of them, and a misspelt option usually keeps its first letter.
    """
    for attribute, value in attributes.items():
        theirs = attribute in _CELERY_NAMES or attribute.startswith("_")
        if theirs or attribute in OPTIONS or callable(value) or _is_descriptor(value):
            continue
        candidates = [option for option in OPTIONS if len(option) > 4 and option[0] == attribute[:1]]
        if hint := suggest(attribute, candidates, cutoff=0.8):
            yield f"unknown option {show(attribute)}{hint}"


def time_limits(written: Mapping[str, Any]) -> list[str]:
    return [limit for limit in ("soft_time_limit", "time_limit") if written.get(limit) is not None]
