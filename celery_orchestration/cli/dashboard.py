"""``dashboard``: serves the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_orchestration.cli.base import command, orchestration
from celery_orchestration.errors import UserError

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration

_NEEDED = ("starlette", "uvicorn", "jinja2", "prometheus_client", "anyio", "markupsafe")


def _hash_password(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Works without an app."""
    if wanted and not ctx.resilient_parsing:
        from celery_orchestration.web.auth import hash_password  # noqa: PLC0415

        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(hash_password(password))
        ctx.exit()


@command(orchestration)
@click.option("--host", default="127.0.0.1", show_default=True, help="Other addresses than loopback need credentials.")
@click.option("--port", default=5577, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option("--credentials", type=click.Path(dir_okay=False), help="A file of lines name:role:hash.")
@click.option("--certfile", type=click.Path(exists=True, dir_okay=False), help="Serve HTTPS with this certificate.")
@click.option("--keyfile", type=click.Path(exists=True, dir_okay=False), help="The key of that certificate.")
@click.option(
    "--hash-password",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_hash_password,
    help="Ask for a password and print its hash.",
)
def dashboard(client: Orchestration, as_json: bool, credentials: str | None, **options: Any) -> None:
    """Serve the dashboard: see in a browser why a job does not run, and fix it.

    Credentials come from a file, or from CELERY_ORCHESTRATION_DASHBOARD_CREDENTIALS in the environment: lines of
    name:role:hash, where role is viewer or operator.
    """
    try:
        from celery_orchestration.web import server  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise UserError(f"the dashboard needs {exc.name}: pip install 'celery_orchestration[dashboard]'") from None
    import json  # noqa: PLC0415
    import os  # noqa: PLC0415

    def ready(address: str) -> None:
        click.echo(json.dumps({"address": address}) if as_json else f"The dashboard is at {address}")

    known = server.credentials_from(os.environ, credentials)
    server.serve(client.app, credentials=known, ready=ready, **options)
