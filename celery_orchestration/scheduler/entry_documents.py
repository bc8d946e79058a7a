"""Entries that people write at run time: checked, kept as JSON documents in the ledger, and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from time import time
from typing import Any

from celery import Celery, Task
from celery.schedules import BaseSchedule, crontab, schedule, solar
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.app import service_of
from celery_orchestration.job.options import Priority, crontab_of
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.task import OrchestratedTask
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import keys
from celery_orchestration.scheduler.entries import Entry, entry_of, in_words
from celery_orchestration.scheduler.message import Call

#: The largest document of an entry, in characters; the longest interval between two fires, in seconds.
MOST_WRITTEN, _LONGEST = 100_000, 10**9


class Written(BaseModel):
    """An entry as people wrote it; the ledger keeps it as JSON."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    task: str
    schedule: dict[str, Any]
    args: list[Any]
    named_args: dict[str, Any] = Field(validation_alias=AliasPath("kwargs"))  # mypy rejects a field named kwargs
    options: dict[str, Any]

    def when(self, app: Celery) -> BaseSchedule:
        return _schedule_of_json(self.schedule, app)


def document(
    app: Celery, name: str, task: str, when: Any, args: Any, kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> str:
    """The document of an entry. Raises :class:`ConfigurationError` if the entry is wrong or cannot be kept."""
    check_name(name)
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
        "schedule": _schedule_as_json(when),
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
    found = from_document(app, keys.entry(name, service_of(app)), text, {})
    now = round(time() * 1000)
    try:
        if found.times is not None:
            found.times.next(now, now)
    except Exception as exc:
        raise ConfigurationError(f"an entry with schedule {found.every!r} is never due: {exc}") from None
    return text


def check_name(name: Any) -> None:
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
    """Raises for wrong options that Celery accepts now, and at which the entry would fail only when it fires."""
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
    """Read a document. Raises :class:`ConfigurationError` if :func:`document` did not write it."""
    try:
        found = Written.model_validate(json.loads(text))
        json.dumps([found.args, found.named_args, found.options], ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ConfigurationError("its document in the ledger cannot be read") from None
    if keys.entry(found.name, keys.service_of_entry(entry)) != entry:
        raise ConfigurationError(f"its document in the ledger belongs to another entry: {show(found.name)}")
    return found


def as_entry(app: Celery, found: Written, jobs: Mapping[str, Policy]) -> Entry:
    """Raises :class:`ConfigurationError` if this app cannot fire it any more."""
    if found.task not in app.tasks:
        raise ConfigurationError(f"this app has no task {show(found.task)}")
    call = Call(found.task, found.args, found.named_args, found.options)
    try:
        return entry_of(app, found.name, call, found.when(app), jobs.get(found.task), source="people")
    except Exception as exc:
        raise ConfigurationError(f"its schedule cannot be used: {exc!r}") from None


def from_document(app: Celery, entry: str, text: str, jobs: Mapping[str, Policy]) -> Entry:
    """Raises :class:`ConfigurationError` if the document cannot be read, or this app cannot fire it any more."""
    try:
        return as_entry(app, written(entry, text), jobs)
    except ConfigurationError as exc:
        raise ConfigurationError(f"entry {show(keys.decode_entry(entry))}: {exc}") from None


def _schedule_as_json(when: Any) -> Any:
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
        return crontab_of(text)
    except Exception as exc:
        raise ConfigurationError(
            f"{show(text)} is neither a number of seconds nor a crontab such as '*/5 * * * *': {exc}"
        ) from None


def _schedule_of_json(fields: Mapping[str, Any], app: Celery) -> BaseSchedule:
    if "every" in fields:
        if not 0 < fields["every"] < _LONGEST:
            raise ValueError(f"every {fields['every']} s")
        return schedule(fields["every"], fields.get("relative", False), app=app)
    if "cron" in fields:
        return crontab_of(fields["cron"])
    return solar(*fields["solar"], app=app)
