"""The commands ``doctor`` and ``health``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.cli.base import command, orchestration, print_json
from celery_orchestration.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@orchestration.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check for common problems and show how to fix them.

    Exits with 1 if there is a problem.
    """
    from celery_orchestration.operate import Orchestration  # noqa: PLC0415
    from celery_orchestration.operate.doctor.diagnose import diagnose_invalid_settings  # noqa: PLC0415

    try:
        client = Orchestration(ctx.obj.app)
    except ConfigurationError as exc:
        found = diagnose_invalid_settings(exc)
    else:
        found = client.doctor()
        client.close()
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.check import print_diagnosis  # noqa: PLC0415

        print_diagnosis(found, sys.stdout)
    sys.exit(0 if found.ok else 1)


@command(orchestration)
@click.option("--worker", metavar="NAME", help="Check the lease of this worker; its name as given with -n.")
@click.option("--scheduler", is_flag=True, help="Check that a scheduler leads.")
def health(client: Orchestration, as_json: bool, worker: str | None, scheduler: bool) -> None:
    """Check the health of ledger, worker or scheduler: for probes.

    Exits with 1 if something is wrong. Asks Redis once, and the broker never.
    """
    found = client.health(worker, scheduler)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.check import health_line  # noqa: PLC0415

        click.echo(health_line(found), err=not found.ok)
    sys.exit(0 if found.ok else 1)
