"""``celery -A app orchestration …``

This module is loaded with every celery command: what a command needs is imported when it runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.errors import LedgerError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from celery_orchestration.operate import Orchestration


@click.group(name="orchestration")
def orchestration() -> None:
    """See and steer jobs that wait for each other."""


@orchestration.group()
def dlq() -> None:
    """Dead letters: runs that failed for good, kept with their messages."""


@orchestration.group()
def schedule() -> None:
    """What fires when: the entries of the code, and those that people add."""


def _command(group: click.Group, name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """A command that gets the app's orchestration and whether to print JSON. Trouble is one line, no traceback."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @click.pass_context
        @handle_preload_options  # type: ignore[untyped-decorator]
        @wraps(function)
        def command(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
            from celery_orchestration.operate import Orchestration  # noqa: PLC0415

            try:
                client = Orchestration(ctx.obj.app)
                try:
                    function(client, as_json, **kwargs)
                finally:
                    client.close()
            except LedgerError as exc:
                raise click.ClickException(str(exc)) from None

        return group.command(name, cls=CeleryCommand)(command)

    return decorate


def _json(found: BaseModel | Sequence[BaseModel]) -> None:
    """In ASCII: names and errors may hold what a terminal would obey."""
    many = isinstance(found, Sequence)
    document = [one.model_dump(mode="json") for one in found] if many else found.model_dump(mode="json")  # type: ignore[union-attr]
    click.echo(json.dumps(document, indent=2))


def _say(found: BaseModel, as_json: bool, text: str) -> None:
    if as_json:
        _json(found)
    else:
        click.echo(text)


@_command(orchestration)
def status(client: Orchestration, as_json: bool) -> None:
    """Show jobs, what runs, what waits and why, and the workers."""
    found = client.status()
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_status  # noqa: PLC0415

    return print_status(found, sys.stdout)


@_command(orchestration)
@click.argument("job")
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def history(client: Orchestration, as_json: bool, job: str, count: int) -> None:
    """Show how the last runs of JOB ended."""
    found = client.history(job, count)
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_history  # noqa: PLC0415

    return print_history(found, sys.stdout)


@_command(orchestration)
@click.argument("job")
def enable(client: Orchestration, as_json: bool, job: str) -> None:
    """Let JOB run again: its failures are forgotten, and what was held goes."""
    _say(client.enable(job), as_json, f"{job} is enabled")


@_command(orchestration)
@click.argument("job")
@click.option("--reason", default="", help="Shown to whoever asks why it does not run.")
def disable(client: Orchestration, as_json: bool, job: str, reason: str) -> None:
    """Start no more runs of JOB until it is enabled."""
    _say(client.disable(job, reason), as_json, f"{job} is disabled; what runs goes on")


@_command(orchestration)
@click.option("--reason", default="", help="Written into the audit.")
def pause(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start no more runs of any job."""
    _say(client.pause(reason), as_json, "everything is paused; what runs goes on")


@_command(orchestration)
@click.option("--reason", default="", help="Written into the audit.")
def resume(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start runs again after a pause."""
    _say(client.resume(reason), as_json, "nothing is paused any more")


@_command(orchestration)
@click.argument("run_id")
@click.option("--terminate", is_flag=True, help="Also if it is running: its process is killed.")
def cancel(client: Orchestration, as_json: bool, run_id: str, terminate: bool) -> None:
    """Call off the run RUN_ID."""
    found = client.cancel(run_id, terminate)
    left = f"is {found.state}, and left alone (--terminate ends a running one)"
    text = "is called off" if found.called_off else "is told to end" if found.terminated else left
    _say(found, as_json, f"run {run_id} {text}")
    if not (found.called_off or found.terminated):
        sys.exit(1)


@_command(orchestration)
@click.argument("job")
@click.option("--args", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", default="{}", help="Named arguments, as a JSON object.")
@click.option("--force", is_flag=True, help="Even if the job is disabled or everything paused.")
def trigger(client: Orchestration, as_json: bool, job: str, args: str, kwargs: str, force: bool) -> None:
    """Ask for a run of JOB."""
    found = client.trigger(job, _read("--args", args, list), _read("--kwargs", kwargs, dict), force)
    _say(found, as_json, f"run {found.run_id} of {found.job} was sent")


def _read(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint=option) from None
    if not isinstance(value, kind):
        raise click.BadParameter(f"a JSON {'list' if kind is list else 'object'} is needed", param_hint=option)
    return value


@_command(orchestration)
@click.confirmation_option("--yes", prompt="Publish everything that waits, past the gate?")
def release(client: Orchestration, as_json: bool) -> None:
    """Publish everything that waits, past the gate: the way out.

    For when the workers run without orchestration. Workers that still have it let the gate decide again.
    """
    found = client.release_all()
    _say(found, as_json, f"{found.count} runs were published")


@_command(orchestration)
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def audit(client: Orchestration, as_json: bool, count: int) -> None:
    """Show who changed what."""
    found = client.audit(count)
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_audit  # noqa: PLC0415

    return print_audit(found, sys.stdout)


# -- dead letters


def _which(run_id: str | None, job: str | None, everything: bool) -> None:
    if sum((run_id is not None, job is not None, everything)) != 1:
        raise click.UsageError("name a run, or give --job JOB or --all")


@_command(dlq, "list")
@click.option("--job", help="Only of this job.")
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def list_letters(client: Orchestration, as_json: bool, job: str | None, count: int) -> None:
    """List dead letters, the latest first."""
    found = client.dead_letters(job, count)
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_letters  # noqa: PLC0415

    return print_letters(found, client.status().dead_letters if job is None else len(found), sys.stdout)


@_command(dlq)
@click.argument("run_id")
def show(client: Orchestration, as_json: bool, run_id: str) -> None:
    """Show a dead letter with its error, traceback and what is known of its message."""
    found = client.dead_letter(run_id)
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_letter  # noqa: PLC0415

    return print_letter(found, sys.stdout)


@_command(dlq)
@click.argument("run_id", required=False)
@click.option("--job", help="All of this job.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
def requeue(client: Orchestration, as_json: bool, run_id: str | None, job: str | None, everything: bool) -> None:
    """Run a dead letter again, those of a job, or all."""
    _which(run_id, job, everything)
    found = client.requeue(run_id, job=job, everything=everything)
    _say(found, as_json, f"{len(found.runs)} dead letters were requeued")
    for id, why in found.left.items():
        click.echo(f"{id!a} was not: {why}", err=True)
    if found.left:
        sys.exit(1)


@_command(dlq)
@click.argument("run_id", required=False)
@click.option("--job", help="All of this job.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
@click.confirmation_option("--yes", prompt="Remove them for good?")
def purge(client: Orchestration, as_json: bool, run_id: str | None, job: str | None, everything: bool) -> None:
    """Remove a dead letter, those of a job, or all."""
    _which(run_id, job, everything)
    found = client.purge(run_id, job=job, everything=everything)
    _say(found, as_json, f"{found.count} dead letters were removed")


# -- the schedule


@_command(schedule, "list")
def list_entries(client: Orchestration, as_json: bool) -> None:
    """List the entries of the schedule, by name."""
    found = client.schedule.list()
    if as_json:
        return _json(found)
    from celery_orchestration.cli.render import print_schedule  # noqa: PLC0415

    return print_schedule(found, sys.stdout)


@_command(schedule, "add")
@click.argument("name")
@click.argument("task")
@click.argument("when")
@click.option("--args", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", default="{}", help="Named arguments, as a JSON object.")
@click.option("--queue", help="Send it to this queue.")
def add_entry(
    client: Orchestration, as_json: bool, name: str, task: str, when: str, args: str, kwargs: str, queue: str | None
) -> None:
    """Add the entry NAME: TASK is fired WHEN, a number of seconds or a crontab such as '*/5 * * * *'."""
    options = {} if queue is None else {"queue": queue}
    given = _read("--args", args, list), _read("--kwargs", kwargs, dict), options
    found = client.schedule.add(name, task, when, *given)
    _say(found, as_json, f"entry {name!a} is added: {task!a} {found.every}")


@_command(schedule, "update")
@click.argument("name")
@click.option("--task", help="Another task to fire.")
@click.option("--when", help="A number of seconds, or a crontab such as '*/5 * * * *'.")
@click.option("--args", help="Arguments, as a JSON list.")
@click.option("--kwargs", help="Named arguments, as a JSON object.")
@click.option("--queue", help="Send it to this queue.")
def update_entry(
    client: Orchestration,
    as_json: bool,
    name: str,
    task: str | None,
    when: str | None,
    args: str | None,
    kwargs: str | None,
    queue: str | None,
) -> None:
    """Change the entry NAME; what is not given stays as it is."""
    found = client.schedule.update(
        name,
        task=task,
        schedule=when,
        args=None if args is None else _read("--args", args, list),
        kwargs=None if kwargs is None else _read("--kwargs", kwargs, dict),
        options=None if queue is None else {**(client.schedule.get(name).options or {}), "queue": queue},
    )
    _say(found, as_json, f"entry {name!a} is changed: {found.task!a} {found.every}")


@_command(schedule, "remove")
@click.argument("name")
def remove_entry(client: Orchestration, as_json: bool, name: str) -> None:
    """Remove the entry NAME; runs that it has made go on."""
    _say(client.schedule.remove(name), as_json, f"entry {name!a} is removed")


@_command(schedule, "pause")
@click.argument("name")
@click.option("--reason", default="", help="Shown to whoever asks why it does not fire.")
def pause_entry(client: Orchestration, as_json: bool, name: str, reason: str) -> None:
    """Fire the entry NAME no more until it is resumed."""
    _say(client.schedule.pause(name, reason), as_json, f"entry {name!a} is paused")


@_command(schedule, "resume")
@click.argument("name")
def resume_entry(client: Orchestration, as_json: bool, name: str) -> None:
    """Fire the entry NAME again; what was due meanwhile is not made up for."""
    _say(client.schedule.resume(name), as_json, f"entry {name!a} is resumed")
