"""What all commands share: the groups, trouble as one line, JSON."""

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
    """See and steer jobs that wait for each other."""
    forgiving(sys.stdout)
    forgiving(sys.stderr)


def command(
    group: click.Group, name: str | None = None, *, has_json: bool = True
) -> Callable[[Callable[..., None]], click.Command]:
    """A command that gets the app's orchestration and whether to print JSON, if it can. Trouble is one line, no
    traceback."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        @handle_preload_options  # type: ignore[untyped-decorator]
        @wraps(function)
        def with_client(ctx: click.Context, **kwargs: Any) -> None:
            import gc  # noqa: PLC0415

            gc.freeze()  # what is loaded by now stays: collections of what a command makes need not look at it
            from celery_orchestration.operate import Orchestration  # noqa: PLC0415

            try:
                client = Orchestration(ctx.obj.app)
                try:
                    function(client, **kwargs)
                finally:
                    client.close()
            except OrchestrationError as exc:
                raise _trouble(exc, ctx) from None

        as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        return group.command(name, cls=CeleryCommand)(as_json(with_client) if has_json else with_client)

    return decorate


class _Trouble(click.ClickException):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def _trouble(error: OrchestrationError, ctx: click.Context) -> click.ClickException:
    """In one line; mistakes in an app's configuration one each."""
    from celery_orchestration.job.text import printable  # noqa: PLC0415

    root = ctx.find_root()
    is_mistake = isinstance(error, ConfigurationError)
    if is_mistake and "app" in root.params and root.params["app"] is None:
        return click.UsageError("name the app: celery -A app orchestration …", ctx)
    lines = str(error).split("\n") if is_mistake else [str(error)]
    return _Trouble("\n".join(map(printable, lines)), getattr(error, "exit_code", 1))


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """In ASCII: names and errors may hold what a terminal would obey."""
    many = isinstance(found, Sequence)
    document = [one.model_dump(mode="json") for one in found] if many else found.model_dump(mode="json")  # type: ignore[union-attr]
    click.echo(json.dumps(document, indent=2))


def forgiving(file: IO[str]) -> IO[str]:
    """What the encoding of a terminal or a file does not have is written as an escape, in the C locale, too."""
    if isinstance(file, TextIOWrapper) and file.errors in ("strict", "surrogateescape"):
        file.reconfigure(errors="backslashreplace")
    return file


def say(found: BaseModel, as_json: bool, text: str) -> None:
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
