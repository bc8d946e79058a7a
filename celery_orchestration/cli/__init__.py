"""``celery -A app orchestration …``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.errors import LedgerError


@click.group(name="orchestration")
def orchestration() -> None:
    """See and steer jobs that wait for each other."""


def _one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    """Trouble with the ledger is one line, not a traceback."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except LedgerError as exc:
            raise click.ClickException(str(exc)) from None

    return wrapped


@orchestration.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as JSON.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
@_one_line
def status(ctx: click.Context, as_json: bool) -> None:
    """Show jobs, what runs, what waits and why, and the workers."""
    # Imported here: this module is loaded with every celery command.
    from celery_orchestration.operate import Orchestration  # noqa: PLC0415

    found = Orchestration(ctx.obj.app).status()
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return
    from celery_orchestration.cli.render import print_status  # noqa: PLC0415

    print_status(found, sys.stdout)
