"""The command ``metrics``, for Prometheus."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration
from celery_orchestration.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@command(orchestration, has_json=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Serve /metrics and /health on this port; 0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def metrics(client: Orchestration, port: int | None, host: str) -> None:
    """Print metrics in Prometheus's text format, or serve them.

    They contain names of jobs and queues, but no arguments, keys or hosts. Needs the extra [dashboard].
    """
    try:
        from celery_orchestration.web.exporter import Exporter  # noqa: PLC0415
        from celery_orchestration.web.metrics import text  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigurationError(f"metrics need {exc.name}: pip install 'celery_orchestration[dashboard]'") from None
    if port is None:
        sys.stdout.write(text(client.measured).decode())
        return
    try:
        server = Exporter(host, port, client)
    except OSError as exc:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from None
    click.echo(f"Serving http://{host}:{server.server_port}/metrics and /health; Ctrl-C ends it")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
