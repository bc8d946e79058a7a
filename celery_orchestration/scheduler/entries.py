"""Entries of the schedule: what fires when. From jobs' options, from ``beat_schedule``, from people at run time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import time
from typing import Any

from celery import Celery, Task
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar
from celery.utils.log import get_logger
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.ledger import keys
from celery_orchestration.policy import Policy, Priority, show, suggest
from celery_orchestration.scheduler.message import Call
from celery_orchestration.scheduler.times import Times, latest_is_late, times_of
from celery_orchestration.task import OrchestratedTask, schedule_of

logger = get_logger(__name__)

#: An entry for a task that is no job of ours fires however late, as with Celery's beat.
_EVER_MS = 10**15


@dataclass(slots=True, eq=False)
class Entry:
    name: str
    call: Call
    every: str
    #: None: a continuous job's.
    times: Times | None
    source: str = "code"
    #: Of the job that it fires, if it is one.
    policy: Policy | None = None
    #: Ms between two runs of a continuous job.
    pause_ms: int | None = None
    late_ms: int = _EVER_MS
    key: str = field(default="")
    generation: str = ""
    last_ms: int = 0
    #: The message of all its fires, if that differs by nothing but the id.
    template: Any = None

    def __post_init__(self) -> None:
        self.key = keys.entry(self.name)

    @property
    def shown(self) -> str:
        """Its name in a log, where people may have written anything: one line of text."""
        if self.name.isprintable():
            return self.name
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in self.name)

    def run_id(self, due_ms: int) -> str:
        """Follows from the entry, its generation and the due time: lib/entries.lua knows it, too."""
        digest = hashlib.sha1(f"{self.key} {self.generation} {due_ms}".encode()).hexdigest()
        return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def from_code(
    app: Celery, jobs: Mapping[str, Policy], defaults: Mapping[str, Any]
) -> tuple[dict[str, Entry], list[str]]:
    """By name; and what is wrong with those that are not among them. A ``beat_schedule`` entry that has a job's name
    takes the place of the one from its options, unless the job is continuous."""
    found, problems = {}, []
    for name, policy in jobs.items():
        if policy.mode == "continuous":
            # Its message is made once and kept by the ledger: there is no time from which it could expire.
            call = Call(name, (), {}, {"expires": None})
            pause = round((policy.interval_seconds or 0) * 1000)
            every = "continuously" + (f", {pause / 1000:g} s after the last" if pause else "")
            found[name] = Entry(name, call, every, None, policy=policy, pause_ms=pause)
    for name, written in {**schedule_of(app), **defaults, **app.conf.beat_schedule}.items():
        try:
            one = _written(app, name, written, jobs)
        except Exception as exc:
            problems.append(f"entry {show(name)} of beat_schedule: {exc}")
        else:
            if name in jobs and jobs[name].mode == "continuous":
                problems.append(f"entry {show(name)} of beat_schedule: the job of this name is continuous")
            else:
                found[name] = one
    return found, problems


def _written(app: Celery, name: str, written: Mapping[str, Any], jobs: Mapping[str, Policy]) -> Entry:
    given = dict(written)
    task = given["task"]
    call = Call(task, given.get("args") or (), given.get("kwargs") or {}, given.get("options") or {})
    return _entry(app, name, call, given["schedule"], jobs.get(task), bool(given.get("relative")))


def _entry(
    app: Celery, name: str, call: Call, when: Any, policy: Policy | None, relative: bool = False, source: str = "code"
) -> Entry:
    when = maybe_schedule(when, relative, app=app)
    late = _EVER_MS
    if policy is not None:
        late = latest_is_late(policy.catch_up, policy.catch_up_seconds)
    elif isinstance(when, crontab) and app.conf.beat_cron_starting_deadline is not None:
        late = round(app.conf.beat_cron_starting_deadline * 1000)
    return Entry(name, call, in_words(when), times_of(when, app), source, policy, late_ms=late)


def in_words(when: BaseSchedule) -> str:
    if isinstance(when, crontab):
        fields = (when._orig_minute, when._orig_hour, when._orig_day_of_month, when._orig_month_of_year)
        return "cron " + " ".join(_cron(one) for one in (*fields, when._orig_day_of_week))
    if isinstance(when, schedule):
        return f"every {when.run_every.total_seconds():g} s"
    if isinstance(when, solar):
        return f"{when.event} at {when.lat:g}, {when.lon:g}"
    return repr(when)[:100]


def _cron(part: Any) -> str:
    parts = [part] if isinstance(part, (int, str)) else sorted(part)
    return ",".join(str(one).replace(" ", "") for one in parts)


# -- what people write, as a document

#: Characters of what people write about an entry; seconds between two fires.
MOST_WRITTEN, _LONGEST = 100_000, 10**9


class Written(BaseModel):
    """What people wrote about an entry, as it is kept."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    task: str
    schedule: dict[str, Any]
    args: list[Any]
    named_args: dict[str, Any] = Field(validation_alias=AliasPath("kwargs"))  # its name troubles mypy
    options: dict[str, Any]

    def when(self, app: Celery) -> BaseSchedule:
        return _schedule(self.schedule, app)


def document(
    app: Celery, name: str, task: str, when: Any, args: Any, kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> str:
    """Raises :class:`ConfigurationError` if it cannot be kept, or the task cannot be called like that."""
    _check_name(name)
    if not isinstance(task, str) or task not in app.tasks:
        hint = suggest(task, app.tasks) if isinstance(task, str) else ""
        raise ConfigurationError(f"there is no task {show(task)} in this app{hint}")
    if not isinstance(args, (list, tuple)):
        raise ConfigurationError(f"args of an entry should be a list, not {show(args)}")
    for what, named in (("kwargs", kwargs), ("options", options)):
        if not isinstance(named, Mapping) or not all(isinstance(key, str) for key in named):
            raise ConfigurationError(f"{what} of an entry should be a mapping with names, not {show(named)}")
    written = {
        "name": name,
        "task": task,
        "schedule": _plain(when),
        "args": list(args),
        "kwargs": dict(kwargs),
        "options": dict(options),
    }
    try:
        text = json.dumps(written, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigurationError(f"arguments and options of an entry have to be JSON: {exc}") from None
    if len(text) > MOST_WRITTEN:
        raise ConfigurationError(f"an entry may have at most {MOST_WRITTEN} characters, not {len(text)}")
    _check_call(app.tasks[task], args, kwargs)
    _check_options(app.tasks[task], options)
    found = from_document(app, keys.entry(name), text, {})
    now = round(time() * 1000)
    try:
        if found.times is not None:
            found.times.next(now, now)
    except Exception as exc:
        raise ConfigurationError(f"an entry with schedule {found.every!r} is never due: {exc}") from None
    return text


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"an entry needs a name, not {show(name)}")
    if len(name) > keys.LONGEST_ENTRY_NAME:
        raise ConfigurationError(f"the name of an entry may have at most {keys.LONGEST_ENTRY_NAME} characters")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"entry {show(name)}: its name must be a text that UTF-8 can encode") from None


def _check_call(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    check = getattr(task, "__header__", None)
    if task.typing and check is not None:
        try:
            check(*args, **kwargs)
        except TypeError as exc:
            raise ConfigurationError(f"task {show(task.name)} cannot be called like that: {exc}") from None


def _check_options(task: Task, options: Mapping[str, Any]) -> None:
    """Celery takes any; these few would fail only when the entry fires."""
    queue, priority = options.get("queue"), options.get("priority")
    if queue is not None and not (isinstance(queue, str) and queue):
        raise ConfigurationError(f"option queue of an entry should be the name of a queue, not {show(queue)}")
    if isinstance(task, OrchestratedTask) and isinstance(priority, str):
        try:
            Priority.parse(priority)
        except ValueError as exc:
            raise ConfigurationError(f"option priority of an entry {exc}") from None
    elif priority is not None and type(priority) is not int:
        raise ConfigurationError(f"option priority of an entry should be a number, not {show(priority)}")
    for name in ("countdown", "expires"):
        value = options.get(name)
        if value is not None and type(value) not in (int, float):
            raise ConfigurationError(f"option {name} of an entry should be a number of seconds, not {show(value)}")


def written(entry: str, text: str) -> Written:
    """Raises :class:`ConfigurationError` if it is none of :func:`document`."""
    try:
        found = Written.model_validate(json.loads(text))
        json.dumps([found.args, found.named_args, found.options], ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ConfigurationError("what was written about it cannot be read") from None
    if keys.entry(found.name) != entry:
        raise ConfigurationError(f"what was written about it is of another one: {show(found.name)}")
    return found


def as_entry(app: Celery, found: Written, jobs: Mapping[str, Policy]) -> Entry:
    """Raises :class:`ConfigurationError` if it cannot be fired any more."""
    if found.task not in app.tasks:
        raise ConfigurationError(f"this app has no task {show(found.task)}")
    call = Call(found.task, found.args, found.named_args, found.options)
    try:
        return _entry(app, found.name, call, found.when(app), jobs.get(found.task), source="people")
    except Exception as exc:
        raise ConfigurationError(f"its schedule cannot be used: {exc!r}") from None


def from_document(app: Celery, entry: str, text: str, jobs: Mapping[str, Policy]) -> Entry:
    """Raises :class:`ConfigurationError` if it cannot be read, or fired any more."""
    try:
        return as_entry(app, written(entry, text), jobs)
    except ConfigurationError as exc:
        raise ConfigurationError(f"entry {show(keys.decode_entry(entry))}: {exc}") from None


def _plain(when: Any) -> Any:
    """A schedule as JSON."""
    if isinstance(when, str):
        when = _from_text(when)
    if isinstance(when, timedelta):
        when = when.total_seconds()
    if type(when) in (int, float) and 0 < when < _LONGEST:
        return {"every": when}
    if type(when) is schedule and when.nowfun is None and 0 < when.run_every.total_seconds() < _LONGEST:
        return {"every": when.run_every.total_seconds(), **({"relative": True} if when.relative else {})}
    if type(when) is crontab and when.nowfun is None:
        return {"cron": in_words(when).removeprefix("cron ")}
    if type(when) is solar and when.nowfun is None:
        return {"solar": [when.event, when.lat, when.lon]}
    raise ConfigurationError(
        "an entry needs a number of seconds above zero, a timedelta, a crontab or its text ('*/5 * * * *'), or a solar "
        f"schedule, not {show(when)}"
    )


def _from_text(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return _crontab(text)
    except Exception as exc:
        raise ConfigurationError(
            f"{show(text)} is neither a number of seconds nor a crontab such as '*/5 * * * *': {exc}"
        ) from None


def _crontab(text: str) -> crontab:
    minute, hour, day_of_month, month_of_year, day_of_week = text.split()
    return crontab(minute, hour, day_of_week, day_of_month, month_of_year)


def _schedule(plain: Mapping[str, Any], app: Celery) -> BaseSchedule:
    if "every" in plain:
        if not 0 < plain["every"] < _LONGEST:
            raise ValueError(f"every {plain['every']} s")
        return schedule(plain["every"], plain.get("relative", False), app=app)
    if "cron" in plain:
        return _crontab(plain["cron"])
    return solar(*plain["solar"], app=app)
