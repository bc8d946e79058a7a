"""Explanations: why something does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import ago, console_to, hanging, many, plain, print_to, state, to_type
from celery_orchestration.operate.clock import clock, lasting, took
from celery_orchestration.operate.explain.models import Explanation, Link, OptionValue
from celery_orchestration.operate.models import Ended

#: Width of the names of facts.
_FACT = 9
#: The sources of options, as they are shown.
_SOURCES = {
    "written": "options written",
    "recurring default": "recurring defaults",
    "exclusive": "implied by exclusive",
    "default": "defaults",
    "default with options": "default of a job with options",
    "acks_late": "because of acks_late",
    "reject_on_worker_lost": "because of reject_on_worker_lost",
    "retry_on_worker_lost": "because of retry_on_worker_lost",
    "orchestration_on_crash": "by orchestration_on_crash",
    "orchestration_recurring_defaults": "by orchestration_recurring_defaults",
    "Celery's": "Celery's",
}


def print_explanation(found: Explanation, file: IO[str]) -> None:
    print_to(Group(*explanation_lines(found, console_to(file).width)), file)


def explanation_lines(found: Explanation, width: int) -> list[Text]:
    """The answer and its reasons; short enough for a small screen."""
    root = found.root
    parts = hanging(plain(found.summary, "bold red" if root.wrong else "bold"), width, 0)
    if root.fix:
        parts.append(to_type(root.fix))
    if len(found.chain) > 1:
        parts.append(Text())
        for depth, link in enumerate(found.chain):
            parts += hanging(_link(depth, link), width, min(3 * (depth + 1), width // 2))
    facts = [
        ("last run", _last(found)),
        ("next run", _next(found)),
        ("queue", _queue(found)),
    ]
    parts.append(Text())
    parts += [line for name, text in facts if text is not None for line in hanging(_fact(name, text), width, _FACT)]
    return parts + _options(found.options, width)


def _options(options: Sequence[OptionValue], width: int) -> list[Text]:
    """Options grouped by the source of their values: first those that were written."""
    texts: list[Text] = []
    for source, name in _SOURCES.items():
        some = [option for option in options if option.source == source]
        values = Text(", ").join(Text.assemble((option.name, "bold"), " ", plain(option.value)) for option in some)
        texts += [Text.assemble((f"{name}: ", "dim"), values)] if some else []
    texts += [
        plain(f"in force: {option.name} {option.in_force}, as several releases are live", "yellow")
        for option in options
        if option.in_force is not None
    ]
    return [line for text in texts for line in hanging(text, width, 4)]


def _link(depth: int, link: Link) -> Text:
    arrow = "   " * (depth - 1) + "└─ " if depth else ""
    run = f" (run {link.run.id})" if link.run else ""
    return Text.assemble(Text(arrow, "dim"), plain(link.job, "bold"), plain(run, "dim"), plain(f": {link.text}"))


def _fact(name: str, text: Text) -> Text:
    return Text.assemble(Text(f"{name:{_FACT}}", "dim"), text)


def _last(found: Explanation) -> Text | None:
    last: Ended | None = found.last
    if last is None:
        return None if found.run else Text("none that the ledger remembers")
    after = "" if last.seconds is None else f", took {took(last.seconds)}"
    where = f" on {last.worker}" if last.worker else ""
    error = f": {last.error}" if last.error else ""
    details = f" {clock(last.ended)} ({ago(found.at, last.ended)}){where}{after}{error}"
    return Text.assemble(state(last.outcome), plain(details))


def _next(found: Explanation) -> Text | None:
    if found.next_fire is None:
        return None
    seconds = (found.next_fire - found.at).total_seconds()
    late = f"{lasting(-seconds)} late" if seconds < 0 else f"in {lasting(seconds)}"
    return plain(f"{clock(found.next_fire)} ({late})")


def _queue(found: Explanation) -> Text | None:
    queue = found.queue
    if queue is None:
        return None
    depth = "the broker does not answer" if queue.depth is None else many(queue.depth, "message")
    served = f"{many(queue.slots, 'slot')} of live workers" if queue.slots else "no live worker serves it"
    return plain(f"{queue.name}: {depth}, {served}")
