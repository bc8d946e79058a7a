"""The actions behind the buttons. Each says what will happen, and to how many, before it acts; then what happened.

An action gets the parameters of the address (its object) and the fields of a form (what a person typed). A viewer is
refused before anything here is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_orchestration.errors import BadCall, ConfigurationError
from celery_orchestration.operate import Orchestration
from celery_orchestration.web.formatting import many
from celery_orchestration.web.pages import dead_letters

Given = Mapping[str, str]


@dataclass(frozen=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    kind: str = "text"  # text, area, check
    required: bool = False


@dataclass(frozen=True)
class Plan:
    """A description of what will happen, for the person who is about to do it."""

    title: str
    text: str
    button: str
    fields: Sequence[Field] = ()
    #: It cannot be undone.
    final: bool = False
    #: There is nothing to do.
    empty: bool = False


@dataclass(frozen=True)
class Action:
    plan: Callable[[Orchestration, Given], Plan]
    #: Returns what happened.
    carry_out: Callable[[Orchestration, Given], str]


_REASON = Field("reason", "Reason", hint="shown to people who ask why it does not run")
_ARGS = (
    Field("args", "Arguments", "[]", "a JSON list", "area"),
    Field("kwargs", "Named arguments", "{}", "a JSON object", "area"),
)


def _need(given: Given, name: str) -> str:
    if not given.get(name):
        raise BadCall(f"{name} is missing")
    return given[name]


def _json(given: Given, name: str, kind: type) -> Any:
    text = given.get(name) or ("[]" if kind is list else "{}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadCall(f"{name}: {exc}") from None
    if not isinstance(value, kind):
        raise BadCall(f"{name}: a JSON {'list' if kind is list else 'object'} is needed")
    return value


# -- jobs


def _plan_enable(_: Orchestration, given: Given) -> Plan:
    job = _need(given, "job")
    return Plan(f"Enable {job}", "Its failures are forgotten, and its waiting runs start in rank order.", "Enable")


def _enable(client: Orchestration, given: Given) -> str:
    found = client.enable(_need(given, "job"))
    return f"{found.name} is enabled."


def _plan_disable(_: Orchestration, given: Given) -> Plan:
    text = "No run of it starts until somebody enables it. Running runs continue; new runs wait."
    return Plan(f"Disable {_need(given, 'job')}", text, "Disable", [_REASON])


def _disable(client: Orchestration, given: Given) -> str:
    found = client.disable(_need(given, "job"), given.get("reason", ""))
    return f"{found.name} is disabled. Running runs continue."


def _plan_trigger(_: Orchestration, given: Given) -> Plan:
    force = Field("force", "Start it even if the job is disabled or everything is paused", kind="check")
    text = "One run is sent. It starts when the gate lets it."
    return Plan(f"Run {_need(given, 'job')} now", text, "Run now", [*_ARGS, force])


def _trigger(client: Orchestration, given: Given) -> str:
    args, kwargs = _json(given, "args", list), _json(given, "kwargs", dict)
    found = client.trigger(_need(given, "job"), args, kwargs, bool(given.get("force")))
    return f"Run {found.run_id} of {found.job} was sent."


def _plan_cancel_all(client: Orchestration, given: Given) -> Plan:
    job = _need(given, "job")
    count = len(client.unstarted(job))
    which = f"{many(count, 'run')} of it {'has' if count == 1 else 'have'} not started"
    text = f"{which} and will end as revoked. Running runs continue."
    return Plan(f"Cancel the waiting runs of {job}", text, f"Cancel {many(count, 'run')}", final=True, empty=not count)


def _cancel_all(client: Orchestration, given: Given) -> str:
    found = client.cancel_all(_need(given, "job"))
    return f"{many(found.count, 'run')} of {found.job} {'was' if found.count == 1 else 'were'} cancelled."


# -- runs


def _plan_cancel(_: Orchestration, given: Given) -> Plan:
    run = _need(given, "run")
    terminate = Field("terminate", "If it is running, kill its process", kind="check", value=given.get("terminate", ""))
    text = "A waiting run ends as revoked. A running one continues unless its process is killed."
    return Plan(f"Cancel run {run}", text, "Cancel run", [terminate], final=True)


def _cancel(client: Orchestration, given: Given) -> str:
    found = client.cancel(_need(given, "run"), bool(given.get("terminate")))
    if found.cancelled:
        return f"Run {found.run_id} was cancelled."
    if found.terminated:
        return f"Run {found.run_id} is being killed."
    return f"Run {found.run_id} is {found.state}, and was not changed."


# -- everything


def _plan_pause(client: Orchestration, _: Given) -> Plan:
    text = "No run of any job starts until somebody resumes. Running runs continue; scheduled runs wait."
    return Plan("Pause everything", text, "Pause everything", [_REASON])


def _pause(client: Orchestration, given: Given) -> str:
    client.pause(given.get("reason", ""))
    return "Everything is paused. Running runs continue."


def _plan_resume(client: Orchestration, _: Given) -> Plan:
    waiting = client.status(depths=False).waiting
    return Plan("Resume", f"{many(waiting, 'run')} may start, in rank order.", "Resume")


def _resume(client: Orchestration, _: Given) -> str:
    client.resume()
    return "Everything is resumed."


# -- dead letters


def _plan_letters(verb: str, text: str, final: bool) -> Callable[[Orchestration, Given], Plan]:
    def plan(client: Orchestration, given: Given) -> Plan:
        count = len(dead_letters.chosen(client, given))
        which = many(count, "dead letter")
        return Plan(f"{verb} {which}", text, f"{verb} {which}", final=final, empty=not count)

    return plan


def _requeue(client: Orchestration, given: Given) -> str:
    found = client.requeue_letters([one.id for one in reversed(dead_letters.chosen(client, given))])
    left = f" {many(len(found.left), 'was', 'were')} left: {next(iter(found.left.values()))}." if found.left else ""
    return f"{many(len(found.runs), 'dead letter')} requeued.{left}"


def _purge(client: Orchestration, given: Given) -> str:
    found = client.purge_letters([one.id for one in dead_letters.chosen(client, given)])
    return f"{many(found.count, 'dead letter')} removed for good."


# -- the schedule


def _plan_add(_: Orchestration, given: Given) -> Plan:
    fields = (
        Field("name", "Name", given.get("name", ""), "of the entry", required=True),
        Field("task", "Job or task", given.get("task", ""), "its full name", required=True),
        Field("when", "When", "", "seconds, or a crontab such as */5 * * * *", required=True),
        *_ARGS,
    )
    return Plan("Add an entry to the schedule", "It fires the first time after one interval.", "Add entry", fields)


def _add(client: Orchestration, given: Given) -> str:
    parts = _json(given, "args", list), _json(given, "kwargs", dict)
    found = client.schedule.add(_need(given, "name"), _need(given, "task"), _need(given, "when"), *parts)
    return f"Entry {found.name} is added: {found.task} {found.every}."


def _plan_pause_entry(_: Orchestration, given: Given) -> Plan:
    text = "It does not fire until somebody resumes it."
    return Plan(f"Pause entry {_need(given, 'entry')}", text, "Pause entry", [_REASON])


def _pause_entry(client: Orchestration, given: Given) -> str:
    return f"Entry {client.schedule.pause(_need(given, 'entry'), given.get('reason', '')).name} is paused."


def _plan_resume_entry(_: Orchestration, given: Given) -> Plan:
    text = "Fires that were due during the pause are not caught up."
    return Plan(f"Resume entry {_need(given, 'entry')}", text, "Resume entry")


def _resume_entry(client: Orchestration, given: Given) -> str:
    return f"Entry {client.schedule.resume(_need(given, 'entry')).name} fires again."


def _plan_remove_entry(_: Orchestration, given: Given) -> Plan:
    text = "Its existing runs continue."
    return Plan(f"Remove entry {_need(given, 'entry')}", text, "Remove entry", final=True)


def _remove_entry(client: Orchestration, given: Given) -> str:
    return f"Entry {client.schedule.remove(_need(given, 'entry')).name} is removed."


# -- workers


def _plan_drain(_: Orchestration, given: Given) -> Plan:
    text = "It takes no new runs, finishes those that it has, and stops. Its supervisor may start it again."
    return Plan(f"Drain worker {_need(given, 'worker')}", text, "Drain worker", final=True)


def _drain(client: Orchestration, given: Given) -> str:
    client.drain(_need(given, "worker"))
    return f"Worker {given['worker']} drains."


ACTIONS: Mapping[str, Action] = {
    "enable": Action(_plan_enable, _enable),
    "disable": Action(_plan_disable, _disable),
    "trigger": Action(_plan_trigger, _trigger),
    "cancel": Action(_plan_cancel, _cancel),
    "cancel-all": Action(_plan_cancel_all, _cancel_all),
    "pause": Action(_plan_pause, _pause),
    "resume": Action(_plan_resume, _resume),
    "requeue": Action(_plan_letters("Requeue", "They run again from the beginning.", False), _requeue),
    "purge": Action(_plan_letters("Remove", "They cannot be restored.", True), _purge),
    "add-entry": Action(_plan_add, _add),
    "pause-entry": Action(_plan_pause_entry, _pause_entry),
    "resume-entry": Action(_plan_resume_entry, _resume_entry),
    "remove-entry": Action(_plan_remove_entry, _remove_entry),
    "drain": Action(_plan_drain, _drain),
}


def carry_out(client: Orchestration, name: str, given: Given) -> str:
    try:
        return ACTIONS[name].carry_out(client, given)
    except ConfigurationError as exc:  # an error in the entry is an error in the form
        raise BadCall("; ".join(str(exc).split("\n"))) from None
