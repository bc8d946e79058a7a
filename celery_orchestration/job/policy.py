"""What a user writes about a job, checked and completed: options, policy, settings.

Everything here is pure: values in, values out, no Redis and no app. ``read_options`` takes what was
written on one task and checks its shape when the task is bound; ``Policy.resolve`` fills in the
defaults. A job that names another by its task object keeps that object unresolved: asking one of
Celery's lazy task proxies for anything, even its class, would bind it there and then, and names are
only resolved once every module is imported (see ``graph``).
"""

import inspect
import json
import re
import reprlib
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from enum import IntEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

from celery.app.task import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.local import Proxy
from celery.schedules import BaseSchedule, crontab
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from celery_orchestration.errors import ConfigurationError

#: What a later version brings: delete a line here when it does. Without values, all are refused.
NOT_AVAILABLE: dict[str, tuple[object, ...]] = {}

HARD_LIMIT_AFTER_SECONDS = 10

Source = Literal[
    "written",
    "recurring default",
    "exclusive",
    "default",
    "default with options",
    "acks_late",
    "reject_on_worker_lost",
    "retry_on_worker_lost",
    "orchestration_on_crash",
    "orchestration_recurring_defaults",
]

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 120


def show(value: object) -> str:
    """Make a value safe to print: escaped, bounded, and without waking a lazy task."""
    return "a task" if _is_lazy_task(value) else _shortened.repr(value)


def printable(text: str) -> str:
    """One line in a log or a terminal, whatever people have written: control characters are shown as what they are."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def suggest(word: str, candidates: Collection[str], cutoff: float = 0.6) -> str:
    """Return ``", did you mean 'X'?"``, or nothing; a short name finds its full one."""
    if len(word) > 200:
        return ""
    names = sorted(candidates)
    forms = {name.rpartition(".")[2].casefold(): name for name in reversed(names)}
    forms |= {name.casefold(): name for name in names}
    found = get_close_matches(word.casefold(), forms, n=1, cutoff=cutoff)
    return f", did you mean {show(forms[found[0]])}?" if found else ""


class Priority(IntEnum):
    """The dedicated queue of a job, and its rank while it waits."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, value: object) -> "Priority":
        """Read a name or a ``Priority``; a bare int is Celery's message priority, never ours."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        labels = [priority.label for priority in cls]
        hint = suggest(value, labels) if isinstance(value, str) else ""
        raise ValueError(f"should be one of {', '.join(labels)} or a Priority, not {show(value)}{hint}")


def _is_lazy_task(value: object) -> bool:
    """Tell a task proxy from its type: ``isinstance`` asks for ``__class__``, which evaluates it."""
    return issubclass(type(value), Proxy)


def _job(value: Any) -> Any:
    if _is_lazy_task(value):
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
    raise ValueError(f"should be the name of a group of jobs of which one runs at a time, not {show(value)}")


def _job_name(job: Any) -> str:
    if type(job) is str:
        return job
    try:
        return str(job.name)
    except (AttributeError, LookupError) as error:
        raise ConfigurationError(
            f"depends_on or blocks holds what is no task of the current app ({show(error)}): "
            "write the job's full name instead"
        ) from error


def crontab_of(text: str) -> crontab:
    """A crontab as its text has it: minute, hour, day of month, month, day of week."""
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


def _pool(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,100}", value):
        return value
    raise ValueError(f"should be made of letters, digits, '-' and '_', not {show(value)}")


def _key(value: Any) -> Any:
    """Allow no more than ``{name}`` and ``{0}``: a field that reads attributes reads anything."""
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


def _namespace(value: Any) -> str:
    if isinstance(value, str) and 0 < len(value) <= 200 and not _unfit_for_namespace(value):
        return value
    raise ValueError(f"should be a text without braces, spaces and control characters, not {show(value)}")


def _unfit_for_namespace(text: str) -> set[str]:
    return {char for char in text if char in "{} " or not char.isprintable()}


LONGEST_SECONDS = 10**9
OnCrash = Literal["requeue", "fail"]
Seconds = Annotated[float, Field(strict=True, gt=0, le=LONGEST_SECONDS)]
Count = Annotated[int, Field(strict=True, ge=1)]


class External:
    """A job of another service that shares the ledger, by its full name: for ``blocks`` and ``depends_on``."""

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
    """A job that has to be idle, and as ``on`` says, before the one that names it may start."""

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
            raise _configuration_error(f"Dependency on {show(job)}", _lines(error, type(self))) from None

    @model_validator(mode="after")
    def _idle_needs_no_run(self) -> Self:
        if self.on == "idle" and (self.fresh or self.max_age_seconds is not None):
            raise ValueError(
                "on='idle' looks at no past run: drop max_age_seconds and fresh, or write on='success' or on='finish'"
            )
        return self

    @property
    def name(self) -> str:
        """The job's full name; evaluates a lazy task, so ask only when the app is finalised."""
        return _job_name(self.job)

    def document(self) -> dict[str, Any]:
        age = self.max_age_seconds
        max_age_ms = None if age is None else max(1, round(age * 1000))
        return {"job": self.name, "on": self.on, "max_age_ms": max_age_ms, "fresh": self.fresh}


def ordered(dependencies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give documents of dependencies the one order that equal ones share, each once."""
    by_content = {(each["job"], json.dumps(each, sort_keys=True)): each for each in dependencies}
    return [by_content[content] for content in sorted(by_content)]


class JobOptions(BaseModel):
    """What was written on one job; ``model_fields_set`` tells it from the defaults.

    The defaults are those of a job that is not recurring: none of them changes what Celery does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["scheduled", "triggered", "continuous"] = "triggered"
    interval_seconds: Annotated[float, Field(strict=True, le=LONGEST_SECONDS)] | None = None
    schedule: Annotated[Any, PlainValidator(_schedule)] = None
    timeout_seconds: Seconds | None = None
    priority: Annotated[Priority, PlainValidator(Priority.parse)] = Priority.NORMAL
    pool: Annotated[str, PlainValidator(_pool)] = "default"
    depends_on: Annotated[tuple[Dependency, ...], BeforeValidator(_dependencies)] = ()
    blocks: Annotated[tuple[Any, ...], BeforeValidator(_blocks)] = ()
    exclusive: Annotated[str | None, PlainValidator(_exclusive)] = None
    max_running: Count | None = None
    key: Annotated[str | Callable[..., object] | None, PlainValidator(_key)] = None
    max_consecutive_failures: Count | None = None
    cool_down_seconds: Seconds | None = None
    when_disabled: Literal["hold", "drop"] = "hold"
    overlap: Literal["skip", "queue", "allow"] = "skip"
    catch_up: Literal["latest", "none"] = "latest"
    catch_up_seconds: Seconds = 3600
    on_lease_lost: Literal["continue", "stop"] = "continue"
    on_crash: OnCrash = "fail"
    max_recoveries: Annotated[int, Field(strict=True, ge=0)] = 2

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


def _exceptions(value: Any) -> tuple[type[BaseException], ...]:
    if isinstance(value, (list, tuple)):
        found = tuple(one for one in value if isinstance(one, type) and issubclass(one, BaseException))
        if len(found) == len(value):
            return found
    raise ValueError(f"should be a tuple of exception classes, not {show(value)}")


class RecurringDefaults(BaseModel):
    """What a recurring job gets unless it is written: ``orchestration_recurring_defaults`` changes it for an app.

    This is the recurring column of the options' table; the other column is JobOptions' own defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_seconds: Seconds | None = 60
    max_running: Count | None = 1
    max_consecutive_failures: Count | None = 5
    on_crash: OnCrash = "requeue"
    #: Celery's own.
    autoretry_for: Annotated[tuple[type[BaseException], ...], PlainValidator(_exceptions)] = (Exception,)
    max_retries: Annotated[int, Field(strict=True, ge=0)] | None = 3
    retry_backoff: Annotated[bool, Field(strict=True)] | Annotated[int, Field(strict=True, ge=0)] = True
    retry_jitter: Annotated[bool, Field(strict=True)] = True

    @classmethod
    def read(cls, value: Any) -> Self:
        """Raises ValueError."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"should be a mapping such as {{'timeout_seconds': None}}, not {show(value)}")  # noqa: TRY004
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise ValueError(f"is wrong: {'; '.join(_lines(error, cls))}") from None

    def of_ours(self) -> dict[str, Any]:
        ours = {option: getattr(self, option) for option in type(self).model_fields if option in OPTIONS}
        return {"mode": "scheduled", **ours}

    def of_celery(self) -> dict[str, Any]:
        return {option: getattr(self, option) for option in type(self).model_fields if option not in OPTIONS}


_CELERY_NAMES = frozenset(dir(Task))


class Policy(JobOptions):
    """One job's options with every default filled in, and where each value comes from.

    ``sources`` leaves out what is not available in this version: nothing acts on those values.
    """

    name: str
    sources: dict[str, Source]
    celery: dict[str, Any]

    @classmethod
    def resolve(cls, name: str, options: JobOptions, written: Mapping[str, Any] = MappingProxyType({})) -> "Policy":
        """Fill in the defaults; ``written`` holds Celery's own options as written on the task, and what the app's
        settings say about all its jobs."""
        recurring = RecurringDefaults.read(written.get("recurring_defaults") or {})
        defaults = recurring.of_ours() if options.recurring else {}
        if _limits(written):
            defaults.pop("timeout_seconds", None)
        if options.exclusive is not None:
            defaults.setdefault("max_running", 1)
        ours = {option: getattr(options, option) for option in options.model_fields_set}
        implied: Source = "recurring default" if options.recurring else "exclusive"
        on_crash = _on_crash(options, written)
        sources: dict[str, Source] = {
            option: "written" if option in ours else implied if option in defaults else "default"
            for option in OPTIONS
            if NOT_AVAILABLE.get(option) != ()
        }
        if options.recurring:
            by_app = recurring.model_fields_set & defaults.keys() - ours.keys()
            sources |= dict.fromkeys(by_app, "orchestration_recurring_defaults")
        if on_crash is not None:
            ours["on_crash"], sources["on_crash"] = on_crash
        values = {**defaults, **ours, "name": name, "sources": sources, "celery": dict(written)}
        try:
            return cls.model_validate(values)
        except ValidationError as error:  # the app's defaults do not go with what is written
            raise _configuration_error(f"job {show(name)}", _lines(error, cls)) from None

    @property
    def routed(self) -> bool:
        """Whether the job left the queue it always had: only when someone wrote where to."""
        return "written" in (self.sources["priority"], self.sources["pool"])

    @property
    def blocked(self) -> tuple[str, ...]:
        """The full names in ``blocks``; evaluates lazy tasks, as ``Dependency.name`` does."""
        return tuple(sorted({_job_name(job) for job in self.blocks}))

    @property
    def external(self) -> set[str]:
        """The full names of other services' jobs that it names."""
        blocked = {job.name for job in self.blocks if type(job) is External}
        return blocked | {dependency.name for dependency in self.depends_on if dependency.external}

    @property
    def _recurring_defaults(self) -> RecurringDefaults:
        return RecurringDefaults.read(self.celery.get("recurring_defaults") or {})

    def source_of_celerys(self, name: str) -> Source | None:
        """Where the value of one of Celery's options comes from; None: from Celery."""
        if name in self.celery:
            return "written"
        if name not in self.celery_options():
            return None
        if name in ("soft_time_limit", "time_limit"):
            return self.sources["timeout_seconds"]
        by_app = name in self._recurring_defaults.model_fields_set
        return "orchestration_recurring_defaults" if by_app else "recurring default"

    def defaults_in_force(self) -> dict[str, Any]:
        """The recurring defaults that nobody has written, neither on the job nor for the app."""
        if not self.recurring:
            return {}
        ours = {name: getattr(self, name) for name, source in self.sources.items() if source == "recurring default"}
        ours.pop("mode", None)
        celerys = {
            name: value
            for name, value in self.celery_options().items()
            if name in RecurringDefaults.model_fields and self.source_of_celerys(name) == "recurring default"
        }
        return ours | celerys

    def celery_options(self) -> dict[str, Any]:
        """Return the attributes that the task class has to get for Celery to act on this policy."""
        options: dict[str, Any] = {}
        if self.recurring:
            implied = self._recurring_defaults.of_celery()
            options |= {name: value for name, value in implied.items() if name not in self.celery}
            if self._writes_its_retry_delay():
                options.pop("retry_backoff", None)
        if self.timeout_seconds is not None:
            soft = self.timeout_seconds
            soft = int(soft) if soft.is_integer() else soft
            options |= {"soft_time_limit": soft, "time_limit": soft + HARD_LIMIT_AFTER_SECONDS}
        options |= self._not_retried({**self.celery, **options}.get("autoretry_for", ()))
        return options

    def _writes_its_retry_delay(self) -> bool:
        """Backoff replaces any other delay, so its default must give way to a written one."""
        return "default_retry_delay" in self.celery or bool(
            {"countdown", "eta"} & (self.celery.get("retry_kwargs") or {}).keys()
        )

    def _not_retried(self, autoretry_for: Sequence[type[BaseException]]) -> dict[str, Any]:
        """Keep the meaning of ``Reject`` and of a timeout, which a broad ``autoretry_for`` takes away.

        Only where we brought something: a job that is not recurring keeps Celery's retries as they
        are, but for the timeout that it asked us for.
        """
        exempt = []
        if self.recurring and any(issubclass(Reject, caught) for caught in autoretry_for):
            exempt.append(Reject)
        if (
            (self.recurring or self.timeout_seconds is not None)
            and any(issubclass(SoftTimeLimitExceeded, caught) for caught in autoretry_for)
            and not any(issubclass(caught, SoftTimeLimitExceeded) for caught in autoretry_for)
        ):
            exempt.append(SoftTimeLimitExceeded)
        written = tuple(self.celery.get("dont_autoretry_for", ()))
        missing = tuple(error for error in exempt if error not in written)
        return {"dont_autoretry_for": written + missing} if missing else {}

    def check_key(self, signature: inspect.Signature) -> None:
        """Raises if the template names an argument that no call of the task can have."""
        fields = [field for _, field, _, _ in string.Formatter().parse(self.key)] if isinstance(self.key, str) else []
        wrong = [field for field in fields if field is not None and not _is_argument(field, signature)]
        if wrong:
            names = list(signature.parameters)
            hint = suggest(wrong[0], names) or f"; it takes {', '.join(names) or 'none'}"
            problem = f"key {show(self.key)} names {show(wrong[0])}, which is no argument of the task{hint}"
            raise _configuration_error(f"job {show(self.name)}", [problem])

    def room_key(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], signature: inspect.Signature | None = None
    ) -> str:
        """Return the key that a call's room is counted under, '' without ``key``.

        With the task's signature an argument counts the same by position, by name or by default.
        """
        if self.key is None:
            return ""
        try:
            if not isinstance(self.key, str):
                return self._called_key(self.key(*args, **kwargs))
            positional, named = tuple(args), dict(kwargs)
            if signature is not None:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                positional, named = bound.args, {**bound.arguments, **kwargs}
            return string.Formatter().vformat(self.key, positional, named)
        except Exception as error:
            raise ValueError(
                f"job {show(self.name)}: key {show(self.key)} does not fit the call: {show(error)}"
            ) from error

    @staticmethod
    def _called_key(value: object) -> str:
        if value is None:
            raise ValueError("it returned None")
        return str(value)

    def document(self) -> dict[str, Any]:
        """Return what the ledger needs, the same for the same policy whatever order it was written in."""
        return {
            "max_running": self.max_running,
            "keyed": self.key is not None,
            "depends_on": ordered(dependency.document() for dependency in self.depends_on),
            "blocks": list(self.blocked),
            "exclusive": [] if self.exclusive is None else [self.exclusive],
            "on_crash": self.on_crash,
            "max_recoveries": self.max_recoveries,
            "max_consecutive_failures": self.max_consecutive_failures,
            "cool_down_ms": None if self.cool_down_seconds is None else max(1, round(self.cool_down_seconds * 1000)),
            "when_disabled": self.when_disabled,
            "priority": int(self.priority),
            "pool": self.pool,
            "recurring": self.recurring,
        }


def _is_argument(field: str, signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if not field.isdecimal():
        return field in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in positional for parameter in signature.parameters.values())
    return int(field) < count or inspect.Parameter.VAR_POSITIONAL in kinds


def _on_crash(options: JobOptions, written: Mapping[str, Any]) -> tuple[OnCrash, Source] | None:
    """What becomes of a run that had begun when its process or worker died, and who says so; None: the defaults do.

    Celery runs a task once unless told otherwise: somebody who writes ``acks_late`` or an option of ours has done so.
    """
    names: tuple[Source, ...] = ("reject_on_worker_lost", "retry_on_worker_lost")
    for name in sorted((name for name in names if name in written), key=lambda name: not written[name]):
        return "requeue" if written[name] else "fail", name
    of_recurring = (written.get("recurring_defaults") or {}) if options.recurring else {}
    if "on_crash" in options.model_fields_set or "on_crash" in of_recurring:
        return None
    if written.get("on_crash") is not None:
        return written["on_crash"], "orchestration_on_crash"
    if options.recurring:
        return None
    if any(getattr(options, option) is not None for option in options.model_fields_set):
        return "requeue", "default with options"
    return ("requeue", "acks_late") if written.get("acks_late") else None


def read_options(name: str, attributes: Mapping[str, Any]) -> JobOptions:
    """Pick a job's options out of the attributes written on its class, or say all that is wrong.

    ``None`` undoes an option that a base class wrote: it means none where the option has a none,
    and the default where it has not.
    """
    where = f"job {show(name)}"
    written = {
        option: attributes[option]
        for option in OPTIONS
        if option in attributes and _is_option(option, attributes[option])
    }
    problems = [*_misspelt(attributes), *_not_available(written)]
    if written.get("timeout_seconds") is not None and (limits := _limits(attributes)):
        problems.append(f"timeout_seconds and {' and '.join(limits)} exclude each other: drop one side")
    if problems:
        raise _configuration_error(where, problems)
    try:
        return JobOptions.model_validate(written)
    except ValidationError as error:
        raise _configuration_error(where, _lines(error, JobOptions)) from None


def _is_option(option: str, value: Any) -> bool:
    """Leave alone what only shares a name with an option: inheriting changes nothing unwritten."""
    if value is None:
        return JobOptions.model_fields[option].default is None
    if option == "priority" and type(value) is int:
        return False
    if option == "key":
        return callable(value) or not _is_descriptor(value)
    return not _is_descriptor(value)


def _is_descriptor(value: Any) -> bool:
    """Tell methods and properties of a task class from values."""
    return hasattr(type(value), "__get__")


def _misspelt(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Find attributes that can only be a slip.

    Users' classes have attributes of their own (``model``, ``keys``, ``lock``): an option of four
    letters is too close to everything, and a slip keeps the first letter.
    """
    for attribute, value in attributes.items():
        theirs = attribute in _CELERY_NAMES or attribute.startswith("_")
        if theirs or attribute in OPTIONS or callable(value) or _is_descriptor(value):
            continue
        candidates = [option for option in OPTIONS if len(option) > 4 and option[0] == attribute[:1]]
        if hint := suggest(attribute, candidates, cutoff=0.8):
            yield f"unknown option {show(attribute)}{hint}"


def _not_available(written: Mapping[str, Any]) -> Iterator[str]:
    for option, value in written.items():
        refused = NOT_AVAILABLE.get(option)
        if value is None or refused is None:
            continue
        if not refused:
            yield f"{option} is not available in this version"
        elif any(value == one for one in refused):
            yield f"{option}={show(value)} is not available in this version"


def _limits(written: Mapping[str, Any]) -> list[str]:
    return [limit for limit in ("soft_time_limit", "time_limit") if written.get(limit) is not None]


#: Arguments that the supervisor gives to each worker, and what sets them.
_SET_BY_POOL = {
    **dict.fromkeys(("-n", "--hostname"), "the supervisor, from the pool's name and its place"),
    **dict.fromkeys(("-Q", "--queues"), "the pool's name"),
    **dict.fromkeys(("-c", "--concurrency"), "concurrency"),
    **dict.fromkeys(("-P", "--pool"), "kind"),
    **dict.fromkeys(("-D", "--detach"), "nobody: the supervisor needs its workers in the foreground"),
    **dict.fromkeys(("-B", "--beat"), "nobody: start a scheduler with celery beat"),
}


def _worker_args(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"should be a list of texts such as ['--max-tasks-per-child', '100'], not {show(value)}")
    for one in value:
        name = one.partition("=")[0] if one.startswith("--") else one[:2]
        if name in _SET_BY_POOL:
            raise ValueError(f"holds {show(one)}, which is set by {_SET_BY_POOL[name]}")
    return tuple(value)


class Pool(BaseModel):
    """A group of workers with queues of its own: one line of ``orchestration_pools``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=1, description="workers that it always has, over all machines; 0: none while there is nothing to do"
    )
    max: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=4, description="workers that it has at most, over all machines"
    )
    concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=1, description="runs that one worker can have at once (Celery's -c); a solo worker has one"
    )
    kind: Literal["prefork", "threads", "gevent", "solo"] = Field(
        default="prefork", description="execution pool of its workers (Celery's -P)"
    )
    target_wait_seconds: Seconds = Field(
        default=10, description="how long work that may start should wait at most; more workers start to keep to it"
    )
    scale_up_at: Count | None = Field(
        default=None, description="scale by queue depth instead: another worker for every so many ready messages"
    )
    scale_down_at: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="with scale_up_at: fewer workers only while no more than this many messages are ready for each; "
        "half of scale_up_at if not given",
    )
    quiet_seconds: Seconds = Field(
        default=60, description="a worker is stopped after no need for it was seen for this long"
    )
    stall_seconds: Seconds = Field(
        default=60,
        description="a worker that takes nothing for this long, although its queues have messages and it has free "
        "slots, is replaced",
    )
    cpus: Annotated[float, Field(strict=True, gt=0, le=10_000)] | None = Field(
        default=None, description="processors that one worker takes from its machine; None: they are not counted"
    )
    memory_mb: Annotated[float, Field(strict=True, gt=0)] | None = Field(
        default=None, description="memory that one worker takes from its machine, in MB; None: it is not counted"
    )
    nice: Annotated[int, Field(strict=True, ge=0, le=19)] = Field(
        default=0, description="how far its workers give way to other processes of the machine: 0 to 19"
    )
    worker_args: Annotated[tuple[str, ...], BeforeValidator(_worker_args)] = Field(
        default=(), description='more arguments of `celery worker`, such as ["--max-tasks-per-child", "100"]'
    )

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _configuration_error("Pool(...)", _lines(error, type(self))) from None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is more than max={self.max}: both count workers over all machines")
        if self.kind == "solo" and self.concurrency != 1:
            raise ValueError(f"a solo worker has one slot: drop concurrency={self.concurrency}, or write another kind")
        if self.scale_down_at is not None and self.scale_up_at is None:
            raise ValueError("scale_down_at needs scale_up_at")
        if self.scale_up_at is not None and (self.scale_down_at or 0) >= self.scale_up_at:
            raise ValueError(
                f"scale_down_at={self.scale_down_at} should be less than scale_up_at={self.scale_up_at}, "
                "or workers would start and stop in turn"
            )
        return self

    @property
    def slots(self) -> int:
        """Of one worker."""
        return self.concurrency


def _pools(value: Any) -> dict[str, Pool]:
    """The table of pools: names, and for each a Pool or its options as a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"should be a table such as {{'images': Pool(min=1, max=4)}}, not {show(value)}")  # noqa: TRY004
    table, problems = {}, []
    for name, options in value.items():
        try:
            table[_pool(name)] = options if isinstance(options, Pool) else _read_pool(options)
        except ValueError as error:
            problems.append(f"of pool {show(name)}: {error}")
        except ConfigurationError as error:
            problems += [f"of pool {show(name)}: {line.partition(': ')[2]}" for line in str(error).splitlines()]
    if problems:
        raise ValueError("; ".join(problems))
    return table


def _read_pool(options: Any) -> Pool:
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"should be a Pool(...) or its options as a mapping, not {show(options)}")
    return Pool(**options)


def pool_problems(table: Mapping[str, Pool], jobs: Mapping[str, "Policy"]) -> list[str]:
    """What does not fit between the table of pools and the jobs: for people, one sentence each.

    Without a table nobody manages pools, and nothing is missing. Jobs without a written pool need no line of it: they
    are sent to the queues that they always had.
    """
    if not table:
        return []
    by_pool: dict[str, list[str]] = {}
    for name, job in sorted(jobs.items()):
        by_pool.setdefault(job.pool, []).append(name)
    problems = []
    for pool, names in sorted(by_pool.items()):
        written = [name for name in names if jobs[name].sources.get("pool") == "written"]
        if pool not in table and written:
            few = ", ".join(written[:3]) + (f" and {len(written) - 3} more" if len(written) > 3 else "")
            problems.append(
                f"pool {show(pool)} of {few} is not in orchestration_pools, and no worker is started for it"
                f"{suggest(pool, table)}"
            )
    unused = sorted(table.keys() - by_pool.keys() - {"default"})
    return [
        *problems,
        *(f"pool {show(one)} is in orchestration_pools, and no job uses it{suggest(one, by_pool)}" for one in unused),
    ]


class Settings(BaseModel):
    """The ``orchestration_*`` settings of one app."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["enforce", "observe", "off"] = "enforce"
    redis_url: Annotated[str, Field(strict=True, min_length=1)] | None = Field(default=None, repr=False)
    namespace: Annotated[str, PlainValidator(_namespace)] = "celery"
    max_running: Count | None = None
    lease_seconds: Annotated[float, Field(strict=True, ge=3, le=LONGEST_SECONDS)] = 30
    #: After so many seconds a worker that stops ends what still runs; None: never.
    drain_seconds: Annotated[float, Field(strict=True, ge=0, le=LONGEST_SECONDS)] | None = None
    #: How long a scheduler that died leads on: another one takes over after that.
    term_seconds: Annotated[float, Field(strict=True, ge=1, le=3600)] = 10
    strict_priority: Annotated[bool, Field(strict=True)] = False
    sweep_seconds: Seconds = 5
    history: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 100
    dead_letters: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 1000
    dead_letter_seconds: Seconds = 14 * 86400
    #: For jobs that do not say it themselves; None: by what is written on each.
    on_crash: OnCrash | None = None
    #: What recurring jobs get that do not say it themselves.
    recurring_defaults: Annotated[RecurringDefaults, PlainValidator(RecurringDefaults.read)] = RecurringDefaults()
    #: How workers take messages from a Redis broker: so that none is lost with its worker, or as kombu does it.
    fetch: Literal["reliable", "celery"] = "reliable"
    #: A worker fetches only what its slots will take within this time.
    read_ahead_seconds: Annotated[float, Field(strict=True, ge=0, le=3600)] = 1
    #: Groups of workers that ``pools`` and ``up`` run, by name.
    pools: Annotated[dict[str, Pool], PlainValidator(_pools)] = {}
    #: How the dashboard shows arguments: ``redacted``, ``hidden``, or ``module:function``.
    dashboard_arguments: Annotated[str, Field(strict=True, pattern=r"^(redacted|hidden|[\w.]+:\w+)$")] = "redacted"
    #: Start even if Redis may evict keys of the ledger.
    allow_eviction: Annotated[bool, Field(strict=True)] = False

    @property
    def sweep_interval_seconds(self) -> float:
        """A sweep may advance the ledger clock by two of these: leases of the living must not end by that."""
        return min(self.sweep_seconds, self.lease_seconds / 6)

    @classmethod
    def read(cls, conf: Mapping[str, Any], env: Mapping[str, str], main: str | None) -> "Settings":
        """Read ``orchestration_*`` out of an app's configuration; the environment wins."""
        written = {name: conf[name] for name in conf if name.startswith("orchestration_") and conf[name] is not None}
        known = [f"orchestration_{field}" for field in cls.model_fields]
        problems = list(_not_available(written))
        problems += [
            f"unknown setting {show(name)}{suggest(name, known)}"
            for name in written
            if name not in known and name not in NOT_AVAILABLE
        ]
        if problems:
            raise ConfigurationError("\n".join(problems))
        values = {name.removeprefix("orchestration_"): value for name, value in written.items()}
        labels = {field: f"orchestration_{field}" for field in cls.model_fields}
        for field in ("mode", "redis_url", "fetch", "drain_seconds"):
            variable = f"CELERY_ORCHESTRATION_{field.upper()}"
            if env.get(variable):
                values[field], labels[field] = env[variable], variable
                if field == "drain_seconds":
                    with suppress(ValueError):  # what is no number is refused below, by its name
                        values[field] = float(env[variable])
        values.setdefault("namespace", default_namespace(main))
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(_lines(error, cls, labels))) from None


def default_namespace(main: str | None) -> str:
    if not main or main == "__main__":
        return "celery"
    unfit = _unfit_for_namespace(main)
    return "".join("_" if char in unfit else char for char in main)[:200]


def _configuration_error(where: str, problems: Sequence[str]) -> ConfigurationError:
    return ConfigurationError("\n".join(f"{where}: {problem}" for problem in problems))


def _lines(
    error: ValidationError, model: type[BaseModel], labels: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Say each of pydantic's findings in one line: option, what is accepted, what was written."""
    lines = []
    for finding in error.errors(include_url=False):
        field = str(finding["loc"][0]) if finding["loc"] else ""
        label = labels.get(field, field)
        value = finding["input"]
        if finding["type"] == "extra_forbidden":
            lines.append(f"unknown option {show(field)}{suggest(field, model.model_fields)}")
        elif finding["type"] == "value_error":
            message = str(finding["ctx"]["error"])
            lines.append(f"{label} {message}" if label else message)
        else:
            message = finding["msg"].partition(" should ")[2] or finding["msg"]
            written = "" if field == "redis_url" else f", not {show(value)}"
            choices = re.findall(r"'(\w+)'", finding.get("ctx", {}).get("expected", ""))
            hint = suggest(value, choices) if isinstance(value, str) else ""
            lines.append(f"{label} should {message}{written}{hint}")
    return lines
