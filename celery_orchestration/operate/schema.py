"""Describes the output of ``--json``: ``python -m celery_orchestration.operate.schema > docs/json.md``.

A new command gets a line in :data:`COMMANDS`; its models follow from that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from celery_orchestration.operate.doctor.models import Diagnosis, Health
from celery_orchestration.operate.explain.models import Explanation
from celery_orchestration.operate.forecast.report import Forecast
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph
from celery_orchestration.operate.models import (
    Cancelled,
    CancelledRuns,
    Change,
    DeadLetter,
    Ended,
    EntryStatus,
    JobStatus,
    Letter,
    Purged,
    Released,
    Requeued,
    Status,
    Triggered,
)
from celery_orchestration.operate.pools.models import Desired, PoolsStatus, PoolStatus

#: Each command, and what it prints.
COMMANDS: tuple[tuple[str, Any], ...] = (
    ("status", Status),
    ("watch", Status),
    ("explain pool:images", PoolStatus),
    ("explain", Explanation),
    ("pools --desired", Desired),
    ("pools --watch", PoolsStatus),
    ("doctor", Diagnosis),
    ("health", Health),
    ("history", list[Ended]),
    ("graph", DependencyGraph),
    ("forecast", Forecast),
    ("audit", list[Change]),
    ("enable", JobStatus),
    ("disable", JobStatus),
    ("pause", Status),
    ("resume", Status),
    ("trigger", Triggered),
    ("cancel", Cancelled),
    ("cancel --job", CancelledRuns),
    ("release", Released),
    ("requeue", Requeued),
    ("dlq list", list[DeadLetter]),
    ("dlq show", Letter),
    ("dlq requeue", Requeued),
    ("dlq purge", Purged),
    ("schedule list", list[EntryStatus]),
    ("schedule add", EntryStatus),
    ("schedule update", EntryStatus),
    ("schedule pause", EntryStatus),
    ("schedule resume", EntryStatus),
    ("schedule remove", EntryStatus),
)

HEAD = """\
# The output of `--json`

This page is made from the models (`make docs`). From Python, the methods of `Orchestration(app)` return the same.

Every command of `celery -A app orchestration` but `up` and `metrics` takes `--json` and prints one document, in ASCII.
Within a major version fields are added, and never removed or changed in meaning: ignore fields that you do not know.
Every field is always present; an unknown value is `null`. Times are ISO 8601 in UTC. Names, keys and errors are
unescaped user input: escape them before you show them in a terminal or on a page.

Errors are lines of text on stderr, with `--json` too: one line, or one for each mistake in the configuration. If only a
part could be done, the document says which, and the exit code is 1.

| exit code | means |
| --- | --- |
| 0 | fine |
| 1 | Redis or the broker did not answer, something could not be done, or `status`, `explain`, `doctor`, \
`health` or `forecast` found a problem |
| 2 | wrong usage: no such command, option, job, run or entry, or a value that makes no sense |

## Commands
"""

_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", datetime: "time", Any: "anything"}
_IN_JSON = {"None": "null", "False": "false", "True": "true"}


def model_of(command: Sequence[str]) -> Any:
    """The model that a command prints, found by the first words of the command."""
    return next(model for name, model in COMMANDS if list(command[: name.count(" ") + 1]) == name.split(" "))


def page() -> str:
    lines = [HEAD, "| command | prints |", "| --- | --- |"]
    lines += [f"| `{name}` | {_type(model)} |" for name, model in COMMANDS]
    lines += ["", "## Models", ""]
    for model in sorted(models(), key=lambda model: model.__name__):
        lines += _section(model)
    return "\n".join(lines).rstrip() + "\n"


def models() -> list[type[BaseModel]]:
    """All models that commands print, and the models inside them."""
    found: dict[type[BaseModel], None] = {}
    left = [part for _, model in COMMANDS for part in _inside(model)]
    while left:
        model = left.pop()
        if model not in found:
            found[model] = None
            left += [part for field in model.model_fields.values() for part in _inside(field.annotation)]
    return list(found)


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _inside(part)


def _section(model: type[BaseModel]) -> Iterator[str]:
    yield from (f"### {model.__name__}", "")
    about = model.__dict__.get("__doc__")
    if about:
        yield from (" ".join(about.split()), "")
    yield from ("| field | type | |", "| --- | --- | --- |")
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_type(field.annotation)} | {_cell(_said(field.description or ''))} |"
    yield ""


def _said(description: str) -> str:
    return re.sub(r"\b(None|False|True)\b", lambda found: _IN_JSON[found[0]], description)


def _type(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{_cell(str(one))}`" for one in args)
    if origin in (Union, UnionType):
        known = " or ".join(dict.fromkeys(_type(one) for one in args if one is not NoneType))
        known = "number" if known == "integer or number" else known
        return f"{known} or null" if NoneType in args else known
    if origin in (list, tuple, dict):
        return " to ".join((f"{'object: ' if origin is dict else 'list of '}{_type(args[0])}", *map(_type, args[1:])))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _WORDS[annotation]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page())
