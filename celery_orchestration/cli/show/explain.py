"""Why something does not run."""

from __future__ import annotations

from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from celery_orchestration.cli.show.base import ago, clock, duration, plain, print_to, state, table, to_type
from celery_orchestration.operate.explanation import Explanation, Link
from celery_orchestration.operate.models import Ended


def print_explanation(found: Explanation, file: IO[str]) -> None:
    print_to(Group(*_parts(found)), file)


def _parts(found: Explanation) -> list[RenderableType]:
    root = found.root
    parts: list[RenderableType] = [plain(found.summary, "bold red" if root.wrong else "bold")]
    if root.mend:
        parts.append(to_type(root.mend))
    if len(found.chain) > 1:
        parts += [Text(""), *(_link(depth, link) for depth, link in enumerate(found.chain))]
    facts = [
        _fact("last run", _last(found)),
        _fact("next run", _next(found)),
        _fact("queue", _queue(found)),
    ]
    parts += [Text(""), *(fact for fact in facts if fact is not None)]
    if found.options:
        rows = [
            (
                plain(option.name),
                plain(option.value if option.in_force is None else f"{option.value}; in force: {option.in_force}"),
                Text(option.source if option.in_force is None else f"{option.source}; several releases are live"),
            )
            for option in found.options
        ]
        parts.append(table("options", ("option", "value", "source"), rows))
    return parts


def _link(depth: int, link: Link) -> Text:
    arrow = "   " * (depth - 1) + "└─ " if depth else ""
    run = f" (run {link.run.id})" if link.run else ""
    return Text.assemble(Text(arrow, "dim"), plain(link.job, "bold"), plain(run, "dim"), plain(f": {link.text}"))


def _fact(name: str, text: Text | None) -> Text | None:
    return None if text is None else Text.assemble(Text(f"{name:9}", "dim"), text)


def _last(found: Explanation) -> Text | None:
    last: Ended | None = found.last
    if last is None:
        return None if found.run else Text("none that the ledger remembers")
    took = "" if last.seconds is None else f", took {duration(last.seconds)}"
    where = f" on {last.worker}" if last.worker else ""
    error = f": {last.error}" if last.error else ""
    told = f" {clock(last.ended)} ({ago(found.at, last.ended)}){where}{took}{error}"
    return Text.assemble(state(last.outcome), plain(told))


def _next(found: Explanation) -> Text | None:
    if found.next_fire is None:
        return None
    seconds = (found.next_fire - found.at).total_seconds()
    late = f"{duration(-seconds)} late" if seconds < 0 else f"in {duration(seconds)}"
    return plain(f"{clock(found.next_fire)} ({late})")


def _queue(found: Explanation) -> Text | None:
    queue = found.queue
    if queue is None:
        return None
    depth = "the broker does not answer" if queue.depth is None else f"{queue.depth} messages"
    served = f"{queue.slots} slots of live workers" if queue.slots else "no live worker serves it"
    return plain(f"{queue.name}: {depth}, {served}")
