"""What all commands share: the groups, trouble as one line, JSON."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from functools import wraps
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_orchestration.errors import LedgerError

if TYPE_CHECKING:
    from pydantic import BaseModel


@click.group(name="orchestration")
def orchestration() -> None:
    """See and steer jobs that wait for each other."""


def command(group: click.Group, name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """A command that gets the app's orchestration and whether to print JSON. Trouble is one line, no traceback."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @click.pass_context
        @handle_preload_options  # type: ignore[untyped-decorator]
        @wraps(function)
        def with_client(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
            gc.freeze()  # what is loaded by now stays: collections of what a command makes need not look at it
            from celery_orchestration.operate import Orchestration  # noqa: PLC0415

            try:
                client = Orchestration(ctx.obj.app)
                try:
                    function(client, as_json, **kwargs)
                finally:
                    client.close()
            except LedgerError as exc:
                raise click.ClickException(str(exc)) from None

        return group.command(name, cls=CeleryCommand)(with_client)

    return decorate


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """In ASCII: names and errors may hold what a terminal would obey."""
    many = isinstance(found, Sequence)
    document = [one.model_dump(mode="json") for one in found] if many else found.model_dump(mode="json")  # type: ignore[union-attr]
    click.echo(json.dumps(document, indent=2))


def forgiving(file: IO[str]) -> IO[str]:
    """What a terminal has no characters for is shown as a question mark."""
    if isinstance(file, TextIOWrapper) and file.errors == "strict":
        file.reconfigure(errors="replace")
    return file


def say(found: BaseModel, as_json: bool, text: str) -> None:
    if as_json:
        print_json(found)
    else:
        click.echo(text)


def read_json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint=option) from None
    if not isinstance(value, kind):
        raise click.BadParameter(f"a JSON {'list' if kind is list else 'object'} is needed", param_hint=option)
    return value
