"""The base of all commands: the group, errors in one line, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.errors import ConfigurationError, OrchestrationError

if TYPE_CHECKING:
    from pydantic import BaseModel


@click.group(name="orchestration")
def orchestration() -> None:
    """See and control jobs that wait for each other."""
    escaping_unencodable(sys.stdout)
    escaping_unencodable(sys.stderr)


def command(
    group: click.Group, name: str | None = None, *, has_json: bool = True
) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a command. Its function gets the app's orchestration and, with `has_json`, whether to print JSON. An error
    is shown in one line, without a traceback."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        @handle_preload_options  # type: ignore[untyped-decorator]
        @wraps(function)
        def with_client(ctx: click.Context, **kwargs: Any) -> None:
            import gc  # noqa: PLC0415

            gc.freeze()  # modules stay loaded: garbage collections need not look at them
            from celery_orchestration.operate import Orchestration  # noqa: PLC0415

            try:
                client = Orchestration(ctx.obj.app)
                try:
                    function(client, **kwargs)
                finally:
                    client.close()
            except OrchestrationError as exc:
                raise _command_error(exc, ctx) from None

        as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        return group.command(name, cls=CeleryCommand)(as_json(with_client) if has_json else with_client)

    return decorate


class _CommandError(click.ClickException):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def _command_error(error: OrchestrationError, ctx: click.Context) -> click.ClickException:
    """The error in one line; with several mistakes in the configuration, one line each."""
    from celery_orchestration.job.text import printable  # noqa: PLC0415

    root = ctx.find_root()
    is_mistake = isinstance(error, ConfigurationError)
    if is_mistake and "app" in root.params and root.params["app"] is None:
        return click.UsageError("name the app: celery -A app orchestration …", ctx)
    lines = str(error).split("\n") if is_mistake else [str(error)]
    return _CommandError("\n".join(map(printable, lines)), getattr(error, "exit_code", 1))


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """Prints ASCII: names and errors may contain control characters."""
    many = isinstance(found, Sequence)
    document = [one.model_dump(mode="json") for one in found] if many else found.model_dump(mode="json")  # type: ignore[union-attr]
    click.echo(json.dumps(document, indent=2))


def escaping_unencodable(file: IO[str]) -> IO[str]:
    """Writes characters that the file's encoding lacks as escapes, also in the C locale."""
    if isinstance(file, TextIOWrapper) and file.errors in ("strict", "surrogateescape"):
        file.reconfigure(errors="backslashreplace")
    return file


def print_result(found: BaseModel, as_json: bool, text: str) -> None:
    from celery_orchestration.job.text import printable  # noqa: PLC0415

    if as_json:
        print_json(found)
    else:
        click.echo(printable(text))


def read_json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise click.BadParameter(str(exc), param_hint=option) from None
    if not isinstance(value, kind):
        raise click.BadParameter(f"a JSON {'list' if kind is list else 'object'} is needed", param_hint=option)
    return value
