"""The schedule from Python: lists, adds, changes, pauses and removes entries."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from celery import Celery

from celery_orchestration.errors import BadCall, ConfigurationError, UnknownEntry, UnknownJob
from celery_orchestration.job.app import SCHEDULER, owner_of
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.settings import Settings
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.operate import app_jobs
from celery_orchestration.operate.acting_user import current_user
from celery_orchestration.operate.clock import when
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.models import EntryStatus, Paused
from celery_orchestration.scheduler.entries import from_code
from celery_orchestration.scheduler.entry_documents import (
    Written,
    as_entry,
    check_name,
    document,
    from_document,
    written,
)

#: How many entries one call reads.
PART = 200
#: How often an update is retried after somebody else has changed the entry in between.
_TRIES = 10
CORRUPT = "its record is corrupt"
LEFT = "the leading scheduler's code does not have it"


def foreign_beat(app: Celery) -> str:
    return f"this app's beat_scheduler is {show(app.conf.beat_scheduler)}, which fires only the entries of the code"


class Schedule:
    """Entries of the code, and entries that people add here. A scheduler notices a change within a second."""

    def __init__(
        self, app: Celery, settings: Settings, ledger: Ledger, ask: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """`ask` calls the ledger and puts its errors into words."""
        self._app = app
        self._settings = settings
        self._ledger = ledger
        self._ask = ask

    def add(
        self,
        name: str,
        task: Any,
        schedule: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EntryStatus:
        """Adds an entry that fires a task of this app, or a job: the first time after one interval.

        `schedule`: seconds, a timedelta, a crontab or its text ('*/5 * * * *'), or a solar schedule. `options`: of
        ``apply_async``. All values must be JSON.
        """
        check_name(name)
        if name in self.in_code():
            raise _in_code(name)
        self._write("add", name, _name_of(task), schedule, args, kwargs or {}, options or {}, "")
        return self.get(name)

    def update(
        self,
        name: str,
        *,
        task: Any = None,
        schedule: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EntryStatus:
        """Changes only what is given. The next fire comes after one interval. A paused entry stays paused."""
        if all(part is None for part in (task, schedule, args, kwargs, options)):
            raise BadCall("give something to change: task, schedule, args, kwargs or options")
        for _ in range(_TRIES):
            found = self._find(name)
            if found.get("source") == "code":
                raise _in_code(name)
            before = self._read(name, found)
            is_written = self._write(
                "update",
                name,
                before.task if task is None else _name_of(task),
                before.when(self._app) if schedule is None else schedule,
                before.args if args is None else args,
                before.named_args if kwargs is None else kwargs,
                before.options if options is None else options,
                found.get("generation", ""),
            )
            if is_written:
                return self.get(name)
        raise BadCall(f"entry {show(name)} keeps being changed by somebody else: try again later")

    def remove(self, name: str) -> EntryStatus:
        """Removes the entry and returns it. Runs that it has made continue."""
        before = self.get(name)
        self._change("remove", name, "")
        return before

    def pause(self, name: str, reason: str = "") -> EntryStatus:
        """Stops firing the entry until it is resumed. Entries of the code can be paused, too."""
        self._change("pause", name, reason)
        return self.get(name)

    def resume(self, name: str) -> EntryStatus:
        """Fires the entry again. Fires that were due during the pause are not caught up."""
        self._change("resume", name, "")
        return self.get(name)

    def get(self, name: str) -> EntryStatus:
        return self._status(self._ledger.entry_id(name), self._find(name), app_jobs.jobs(self._app))

    def list(self, task: str | None = None, part: str = "") -> builtins.list[EntryStatus]:
        """Entries by name; only those of a task, or whose names contain a text. A broken entry has a `problem`."""
        found = self._all()
        if task is not None and task not in self._app.tasks and all(entry.task != task for entry in found):
            hint = suggest(task, {entry.task for entry in found} | set(app_jobs.jobs(self._app)))
            raise UnknownJob(f"no entry fires {show(task)}{hint}")
        return [entry for entry in found if part in entry.name and task in (None, entry.task)]

    def _all(self) -> builtins.list[EntryStatus]:
        jobs, found = app_jobs.jobs(self._app), {}
        skip = 0
        while part := self._ask(lambda skip=skip: self._ledger.read_entries(skip, PART)):  # type: ignore[misc]
            found.update(part)
            skip += len(part)
        return sorted((self._status(*one, jobs) for one in found.items()), key=lambda entry: entry.name)

    def in_code(self) -> set[str]:
        """The names of the entries in this app's code."""
        found, _ = from_code(self._app, app_jobs.jobs(self._app), {})
        return {*found, *self._app.conf.beat_schedule}

    def has_code(self) -> bool:
        """Whether this app's code has entries; False if it cannot be read."""
        try:
            return bool(self.in_code())
        except ConfigurationError:
            return False

    def asked_for(self) -> set[str]:
        """The tasks that entries of the code fire."""
        found, _ = from_code(self._app, app_jobs.jobs(self._app), {})
        return {entry.call.task for entry in found.values()}

    def is_ours(self) -> bool:
        """Whether this app's beat is our scheduler."""
        return self._settings.mode != "off" and self._app.conf.beat_scheduler == SCHEDULER

    # -- inside -------------------------------------------------------------------------------------

    def _write(
        self,
        what: str,
        name: str,
        task: str,
        when: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        generation: str,
    ) -> bool:
        """Returns False if somebody else has changed the entry in between."""
        self._check_beat()
        text = document(self._app, name, task, when, args, kwargs, options)
        entry = from_document(self._app, self._ledger.entry_id(name), text, app_jobs.jobs(self._app))
        job = keys.encode_job(task) if entry.policy is not None else ""
        return self._change(what, name, "", (task, job, entry.every, text, generation))

    def _check_beat(self) -> None:
        """Raises an error if no scheduler would ever fire the entry."""
        if self.is_ours() or self._ask(lambda: self._ledger.read_health(owner_of(self._app))).get("lead"):
            return
        why = "orchestration is off" if self._settings.mode == "off" else foreign_beat(self._app)
        start = command("-S", SCHEDULER, program="beat")
        raise BadCall(f"nothing would fire it: {why}; set app.conf.beat_scheduler = {SCHEDULER!r}, or start {start}")

    def _change(self, what: str, name: str, why: str, parts: Sequence[str] = ()) -> bool:
        check_name(name)
        answer = self._ask(lambda: self._ledger.change_schedule(current_user(), what, name, why, parts))
        if answer == "none":
            raise self._unknown(name)
        if answer == "code" or (answer == "exists" and self._find(name).get("source") == "code"):
            raise _in_code(name)
        if answer == "exists":
            raise BadCall(f"there is an entry {show(name)} already: update or remove it")
        if answer == "corrupt":
            raise BadCall(f"entry {show(name)}: {CORRUPT}; remove it")
        return bool(answer == "ok")

    def _find(self, name: str) -> dict[str, str]:
        check_name(name)
        found: dict[str, str] | None = self._ask(lambda: self._ledger.read_entry(name))
        if found is None:
            raise self._unknown(name)
        return found

    def _read(self, name: str, found: Mapping[str, str]) -> Written:
        try:
            return written(self._ledger.entry_id(name), found.get("written", ""))
        except ConfigurationError as exc:
            raise BadCall(f"entry {show(name)}: {exc}; remove it and add it again") from None

    def _unknown(self, name: str) -> UnknownEntry:
        if name in self.in_code():
            return UnknownEntry(f"no scheduler has registered the entry {show(name)} of the code yet")
        found = self.list()
        if other := next((entry.service for entry in found if entry.name == name and entry.service), None):
            return UnknownEntry(f"entry {show(name)} belongs to the service {show(other)}: use that app's commands")
        hint = suggest(name, [entry.name for entry in found if entry.service is None])
        return UnknownEntry(f"there is no entry {show(name)} in the schedule{hint}")

    def _status(self, key: str, found: Mapping[str, str], jobs: Mapping[str, Policy]) -> EntryStatus:
        try:
            return self._sound(key, found, jobs)
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            return _broken(key, found, self._shown(keys.service_of_entry(key)))

    def _shown(self, service: str) -> str | None:
        """The other service whose entry it is; None: it is this app's."""
        if service == self._ledger.service:
            return None
        return keys.decode_service(service) if service else self._settings.namespace

    def _sound(self, key: str, found: Mapping[str, str], jobs: Mapping[str, Policy]) -> EntryStatus:
        int(found["generation"]), int(found["last"])
        off = json.loads(found["paused"]) if "paused" in found else None
        document, problem = None, LEFT if "left" in found else None
        service = keys.service_of_entry(key)
        if found["source"] == "people":
            try:
                document = written(key, found["written"])
                if service == self._ledger.service:
                    as_entry(self._app, document, jobs)
            except ConfigurationError as exc:
                problem = str(exc)
        return EntryStatus(
            name=found["name"],
            service=self._shown(service),
            task=found["task"],
            is_job="job" in found or found["task"] in jobs,
            every=found["every"],
            source=found["source"],
            continuous="gap" in found,
            args=document.args if document else None,
            named_args=document.named_args if document else None,
            options=document.options if document else None,
            paused=Paused(by=off["by"], why=off["why"], at=when(int(off["at"]))) if off else None,
            last_fire=_when(found.get("at")),
            last_outcome=found.get("how"),
            last_run=found.get("run"),
            next_fire=None if off or problem else _when(found.get("next")),
            fires=int(found.get("fires", 0)),
            skips=int(found.get("skips", 0)),
            misses=int(found.get("misses", 0)),
            problem=problem,
        )


def _broken(key: str, found: Mapping[str, str], service: str | None) -> EntryStatus:
    """Fills in what is known of a broken entry."""
    return EntryStatus(
        name=found.get("name") or keys.decode_entry(key),
        service=service,
        task=found.get("task", ""),
        is_job="job" in found,
        every=found.get("every", ""),
        source="code" if found.get("source") == "code" else "people",
        continuous="gap" in found,
        problem=CORRUPT,
    )


def _in_code(name: str) -> BadCall:
    return BadCall(f"entry {show(name)} is defined in the code: change it there, or pause it")


def _name_of(task: Any) -> Any:
    return getattr(task, "name", task)


def _when(ms: str | None) -> datetime | None:
    return when(int(ms)) if ms else None
