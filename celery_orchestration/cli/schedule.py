"""``schedule …``: the entries of the schedule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, print_json, print_result, read_json
from celery_orchestration.errors import BadCall, ConfigurationError

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@orchestration.group()
def schedule() -> None:
    """Show and change the entries of the schedule."""


@contextmanager
def _invalid_entry_is_wrong_use() -> Iterator[None]:
    """An invalid entry is a wrong use of the command, not of the configuration."""
    try:
        yield
    except ConfigurationError as exc:
        raise BadCall("; ".join(str(exc).split("\n"))) from None


@command(schedule, "list")
@click.option("--job", help="Only entries that fire this job or task.")
@click.option("--name", default="", help="Only entries whose names contain this.")
@click.option("--count", type=click.IntRange(min=1), help="Show at most this many; default: 200, with --json all.")
def list_entries(client: Orchestration, as_json: bool, job: str | None, name: str, count: int | None) -> None:
    """List the entries of the schedule, by name."""
    found = client.schedule.list(job, name)
    if as_json:
        return print_json(found[:count])
    from celery_orchestration.cli.show.schedule import MOST, print_schedule  # noqa: PLC0415

    return print_schedule(found, sys.stdout, most=count or MOST)


@command(schedule, "add")
@click.argument("name")
@click.argument("task")
@click.argument("when")
@click.option("--args", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", default="{}", help="Named arguments, as a JSON object.")
@click.option("--queue", help="Send it to this queue.")
def add_entry(
    client: Orchestration, as_json: bool, name: str, task: str, when: str, args: str, kwargs: str, queue: str | None
) -> None:
    """Add the entry NAME, which fires TASK.

    WHEN is a number of seconds, or a crontab such as '*/5 * * * *'.
    """
    options = {} if queue is None else {"queue": queue}
    given = read_json("--args", args, list), read_json("--kwargs", kwargs, dict), options
    with _invalid_entry_is_wrong_use():
        found = client.schedule.add(name, task, when, *given)
    print_result(found, as_json, f"entry {name!a} is added: {task!a} {found.every}")


@command(schedule, "update")
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
    """Change the entry NAME; only what is given changes."""
    with _invalid_entry_is_wrong_use():
        found = client.schedule.update(
            name,
            task=task,
            schedule=when,
            args=None if args is None else read_json("--args", args, list),
            kwargs=None if kwargs is None else read_json("--kwargs", kwargs, dict),
            options=None if queue is None else {**(client.schedule.get(name).options or {}), "queue": queue},
        )
    print_result(found, as_json, f"entry {name!a} is changed: {found.task!a} {found.every}")


@command(schedule, "remove")
@click.argument("name")
def remove_entry(client: Orchestration, as_json: bool, name: str) -> None:
    """Remove the entry NAME; runs that it has made continue."""
    with _invalid_entry_is_wrong_use():
        found = client.schedule.remove(name)
    print_result(found, as_json, f"entry {name!a} is removed")


@command(schedule, "pause")
@click.argument("name")
@click.option("--reason", default="", help="Shown wherever the entry is shown.")
def pause_entry(client: Orchestration, as_json: bool, name: str, reason: str) -> None:
    """Stop firing the entry NAME until it is resumed."""
    with _invalid_entry_is_wrong_use():
        found = client.schedule.pause(name, reason)
    print_result(found, as_json, f"entry {name!a} is paused")


@command(schedule, "resume")
@click.argument("name")
def resume_entry(client: Orchestration, as_json: bool, name: str) -> None:
    """Fire the entry NAME again.

    Fires that were due during the pause are not caught up.
    """
    with _invalid_entry_is_wrong_use():
        found = client.schedule.resume(name)
    print_result(found, as_json, f"entry {name!a} is resumed")
