"""``up``: runs everything on one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.cli.base import orchestration

#: Width of the names in the log: "scheduler", or a worker of a pool.
WIDTH = 9
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@orchestration.command(cls=CeleryCommand)
@click.option("--reload", is_flag=True, help="Restart workers and scheduler when code changes.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=".orchestration",
    show_default=True,
    help="Directory for the data of a private Redis.",
)
@click.option("--dashboard-port", type=click.IntRange(0, 65535), default=5577, show_default=True)
@click.option("--no-dashboard", is_flag=True, help="Do not serve the dashboard.")
@click.option("-l", "--loglevel", type=click.Choice(LEVELS, case_sensitive=False), default="INFO", show_default=True)
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def up(ctx: click.Context, reload: bool, data: Path, dashboard_port: int, no_dashboard: bool, loglevel: str) -> None:
    """Run everything on this machine: Redis, scheduler, dashboard, pools.

    Starts a private Redis only if the app's Redis is on loopback and nothing listens there. Ctrl-C drains the workers,
    a second one stops them.
    """
    app_name = ctx.find_root().params.get("app")
    if not isinstance(app_name, str):
        raise click.UsageError("name the app: celery -A app orchestration up", ctx)
    from celery_orchestration.job.app import settings_of  # noqa: PLC0415
    from celery_orchestration.operate import app_jobs  # noqa: PLC0415
    from celery_orchestration.pools.merged_log import MergedLog  # noqa: PLC0415
    from celery_orchestration.pools.reload import check  # noqa: PLC0415
    from celery_orchestration.pools.up import Plan, Up  # noqa: PLC0415

    app = ctx.obj.app
    if reload:
        check()
    port = None if no_dashboard else dashboard_port
    plan = Plan(app, app_name, settings_of(app), app_jobs.jobs(app), data.absolute(), loglevel, reload, port)
    sys.exit(Up(plan, MergedLog(sys.stdout, width=WIDTH)).run())
