"""Values as text and HTML: the same words, shapes and times on every page. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape

from celery_orchestration.job.policy import printable
from celery_orchestration.operate import clock
from celery_orchestration.operate.models import JobStatus
from celery_orchestration.operate.status.urgency import is_failing

#: Letters of a name that fit into a table.
NAME = 44


def finalize(value: Any) -> Any:
    """Everything that is written on a page: control characters are shown as what they are, None as nothing."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def state_of(job: JobStatus) -> str:
    """In the word that matters most."""
    if job.disabled is not None:
        return "disabled"
    if job.overdue and job.state == "idle":
        return "overdue"
    if is_failing(job) and job.state == "idle":
        return "failing"
    return job.state


def many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def lasting(seconds: float | None) -> str:
    return (
        "" if seconds is None else clock.took(seconds) if seconds >= 0.1 or seconds == 0 else f"{seconds * 1000:.0f} ms"
    )


def moment(at: datetime | None, otherwise: str = "") -> Markup:
    """Relative, kept up to date by the browser, with the time itself on hover."""
    if at is None:
        return escape(otherwise)
    at = at.astimezone(timezone.utc)
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}" data-time="ago">{}</time>').format(
        at.isoformat(timespec="milliseconds"), text, text
    )


def since(at: datetime | None) -> Markup:
    """How long it has been, counting."""
    if at is None:
        return Markup("")
    at = at.astimezone(timezone.utc)
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="since {}" data-time="since">since {}</time>').format(
        at.isoformat(timespec="milliseconds"), text, text
    )


def clock_time(at: datetime | None) -> Markup:
    """The time of day, in the viewer's zone."""
    if at is None:
        return Markup("")
    at = at.astimezone(timezone.utc)
    return Markup('<time datetime="{}" data-time="clock">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%H:%M:%S")
    )


def common_prefix(names: Collection[str]) -> str:
    """The packages that all names share: left out where they are listed."""
    if len(names) < 2:
        return ""
    shared = os.path.commonprefix([name.rpartition(".")[0] + "." for name in names])  # noqa: RUF071  (cut at the dot)
    return shared[: shared.rfind(".") + 1]


def short(name: str, prefix: str = "", most: int = NAME) -> str:
    """Without the prefix, and shortened in the middle: the end tells names apart."""
    name = printable(name.removeprefix(prefix) if prefix and name != prefix else name)
    if len(name) <= most:
        return name
    end = most * 2 // 3
    return f"{name[: most - end - 1]}…{name[-end:]}"


def brief(text: str | None, prefix: str) -> str:
    """A sentence in which jobs are named without their prefix."""
    return re.sub(rf"(?<![\w.]){re.escape(prefix)}(?=\w)", "", text or "") if prefix else text or ""


def query(**values: Any) -> str:
    """Of an address. Any text can be in it."""
    given: Mapping[str, Any] = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given, errors='surrogatepass')}" if given else ""
