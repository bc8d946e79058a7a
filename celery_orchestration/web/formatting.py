"""Values as text and HTML: the same words, shapes and times on every page. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape

from celery_orchestration.job.text import printable
from celery_orchestration.operate import clock
from celery_orchestration.operate.models import JobStatus
from celery_orchestration.operate.status.urgency import is_failing

#: Characters of a name that fit into a table.
NAME = 44


def finalize(value: Any) -> Any:
    """Applied to every value on a page: escapes control characters, and shows None as nothing."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def state_of(job: JobStatus) -> str:
    """The word that matters most about the job."""
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
    """A relative time that the browser keeps up to date, with the time itself on hover."""
    if at is None:
        return escape(otherwise)
    at = at.astimezone(timezone.utc)
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}" data-time="ago">{}</time>').format(
        at.isoformat(timespec="milliseconds"), text, text
    )


def since(at: datetime | None) -> Markup:
    """A duration that the browser keeps counting."""
    if at is None:
        return Markup("")
    at = at.astimezone(timezone.utc)
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="since {}" data-time="since">since {}</time>').format(
        at.isoformat(timespec="milliseconds"), text, text
    )


def clock_time(at: datetime | None) -> Markup:
    """The time of day in the viewer's time zone."""
    if at is None:
        return Markup("")
    at = at.astimezone(timezone.utc)
    return Markup('<time datetime="{}" data-time="clock">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%H:%M:%S")
    )


def common_prefix(names: Collection[str]) -> str:
    """The packages that all names share; lists leave them out."""
    if len(names) < 2:
        return ""
    shared = os.path.commonprefix([name.rpartition(".")[0] + "." for name in names])  # noqa: RUF071  (cut at the dot)
    return shared[: shared.rfind(".") + 1]


def short(name: str, prefix: str = "", most: int = NAME) -> str:
    """The name without the prefix, shortened in the middle, because names differ at the end."""
    name = printable(name.removeprefix(prefix) if prefix and name != prefix else name)
    if len(name) <= most:
        return name
    end = most * 2 // 3
    return f"{name[: most - end - 1]}…{name[-end:]}"


def brief(text: str | None, prefix: str) -> str:
    """The sentence with the prefix removed from jobs' names."""
    return re.sub(rf"(?<![\w.]){re.escape(prefix)}(?=\w)", "", text or "") if prefix else text or ""


def query(**values: Any) -> str:
    """The query string of an address, with any text encoded."""
    given: Mapping[str, Any] = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given, errors='surrogatepass')}" if given else ""
