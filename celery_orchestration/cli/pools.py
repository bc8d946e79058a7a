"""``pools``: runs groups of workers, and keeps their number right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, print_json
from celery_orchestration.errors import BadCall, ConfigurationError

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration

NO_POOLS = (
    "orchestration_pools is empty: write app.conf.orchestration_pools = "
    '{"default": Pool(min=1, max=4)} (from celery_orchestration import Pool)'
)


@command(orchestration)
@click.option("--watch", is_flag=True, help="Show pools and workers as they change; start none.")
@click.option("--desired", is_flag=True, help="Print how many workers each pool needs; start none.")
@click.option(
    "--serve", metavar="HOST:PORT", help="With --desired: serve it over HTTP, for KEDA. Without HOST: on loopback."
)
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.2),
    help="Seconds between updates of --watch.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --watch: end after this number of updates.")
@click.option("--name", help="Name of this supervisor; default: the host's name and a number.")
@click.option(
    "--state",
    "state_directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=".orchestration",
    show_default=True,
    help="Directory in which the name is kept.",
)
@click.option("-l", "--loglevel", default="INFO", show_default=True, help="Log level of the workers.")
@click.option("--table", "show_table", is_flag=True, hidden=True, help="Print the table as JSON.")
@click.pass_context
def pools(
    ctx: click.Context,
    client: Orchestration,
    as_json: bool,
    watch: bool,
    desired: bool,
    serve: str | None,
    interval: float,
    count: int | None,
    name: str | None,
    state_directory: Path,
    loglevel: str,
    show_table: bool,
) -> None:
    """Run the workers of all pools on this machine.

    Any number of machines may do so: they share the pools. SIGTERM or Ctrl-C drains the workers, a second one stops
    them. SIGHUP reads the configuration again.
    """
    from celery_orchestration.job.app import read_settings  # noqa: PLC0415

    table = read_settings(ctx.obj.app).pools
    if not table:
        raise ConfigurationError(NO_POOLS)
    if show_table:
        from celery_orchestration.operate import app_jobs  # noqa: PLC0415
        from celery_orchestration.pools.run import table_as_json  # noqa: PLC0415

        click.echo(table_as_json(table, app_jobs.jobs(ctx.obj.app)))
    elif watch:
        _watch(client, as_json, interval, count)
    elif serve is not None:
        _serve(client, serve)
    elif desired:
        _desired(client, as_json)
    elif as_json:
        raise click.UsageError("--json goes with --desired or --watch", ctx)
    else:
        _run(ctx, name, state_directory, loglevel)


def _run(ctx: click.Context, name: str | None, state_directory: Path, loglevel: str) -> None:
    from celery_orchestration.job.app import read_settings  # noqa: PLC0415
    from celery_orchestration.operate import app_jobs  # noqa: PLC0415
    from celery_orchestration.pools import run  # noqa: PLC0415
    from celery_orchestration.pools.supervisor import Supervisor  # noqa: PLC0415

    app_name = ctx.find_root().params.get("app")
    if not isinstance(app_name, str):
        raise click.UsageError("name the app: celery -A app orchestration pools", ctx)
    app, output = ctx.obj.app, run.Output(sys.stdout)
    supervisor = Supervisor(
        app,
        app_name,
        read_settings(app).pools,
        app_jobs.jobs(app),
        output,
        name=name,
        state_directory=state_directory,
        worker_options=["-l", loglevel],
    )
    sys.exit(run.run(supervisor, run.command_to_read_again(app_name), output))


def _watch(client: Orchestration, as_json: bool, interval: float, count: int | None) -> None:
    from celery_orchestration.cli.show.pools import Backlogs  # noqa: PLC0415
    from celery_orchestration.cli.show.watch import follow, is_window, watch_live  # noqa: PLC0415

    draw = Backlogs().draw
    if is_window(sys.stdout) and not as_json:
        watch_live(client.pools, interval, count, draw)
    else:
        follow(client.pools, interval, count, as_json, False, sys.stdout, draw)


def _desired(client: Orchestration, as_json: bool) -> None:
    found = client.desired()
    if as_json:
        print_json(found)
        return
    for name, pool in sorted(found.pools.items()):
        waits = f", the oldest has waited {pool.oldest_wait_seconds:.1f} s" if pool.ready else ""
        click.echo(f"{name}: {pool.wanted} wanted, {pool.live} live, {pool.ready} ready{waits}")


def _serve(client: Orchestration, where: str) -> None:
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    from celery_orchestration.operate.pools.serve import Server, address_of  # noqa: PLC0415

    host, port = address_of(where)
    try:
        server = Server(client, host, port)
    except OSError as exc:
        raise BadCall(f"{host}:{port} is not available: {exc.strerror or exc}") from None
    # In a thread: the handler runs in the thread that serves, which stop() waits for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.stop, daemon=True).start())
    click.echo(f"serving http://{host}:{server.port}/", err=True)
    server.run()
