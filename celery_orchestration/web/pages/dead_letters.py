"""Dead letters: grouped by error, searched, and selected by a filter for actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_orchestration.errors import BadCall
from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.models import DeadLetter
from celery_orchestration.web.filters import Filter, moment, parse, quoted
from celery_orchestration.web.pages import PageData, Query

FIELDS = ("job", "error", "key", "queue", "worker", "since")
#: How many are read at a time, and listed; how many groups are listed.
PART, LISTED, MOST_GROUPS = 200, 100, 20


@dataclass(frozen=True)
class Group:
    """Dead letters of one job whose errors differ only by numbers and ids."""

    job: str
    error: str
    #: The common form of their errors.
    shape: str
    count: int
    first: datetime
    last: datetime
    #: The filter that finds them.
    filter: str


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    every = read(data.client)
    found = [one for one in every if _holds(one, wanted, data.now)]
    groups = grouped(found)
    return {
        "total": len(every),
        "found": len(found),
        "groups": groups[:MOST_GROUPS],
        "more_groups": max(0, len(groups) - MOST_GROUPS),
        "letters": found[:LISTED],
        "listed": LISTED,
        "mistakes": wanted.mistakes,
        "until": max((one.at for one in found), default=data.now).isoformat(),
        "suggestions": sorted({quoted("job", one.job) for one in every} | {"since:1h", "since:1d", "error:"}),
    }


def read(client: Orchestration) -> list[DeadLetter]:
    """Read dead letters, latest first."""
    found: dict[str, DeadLetter] = {}
    skip = 0
    while part := client.dead_letters(None, PART, skip):
        found |= {one.id: one for one in part}
        skip += len(part)
    return list(found.values())


def chosen(client: Orchestration, given: Mapping[str, str]) -> list[DeadLetter]:
    """Select one by its id, or those of a group (`job` and the `shape` of its error) or of a filter that existed when
    the page was shown (`until`)."""
    if given.get("id"):
        return [client.dead_letter(given["id"])]
    wanted = parse(given.get("q", ""), FIELDS)
    if wanted.mistakes:
        return []  # a mistyped filter must not select all of them
    now = client.status(depths=False).at
    until = moment(given["until"], now) if given.get("until") else now
    if until is None:
        raise BadCall("until is no time")
    found = [one for one in read(client) if one.at <= until]
    if given.get("job"):  # the exact name: a filter also finds jobs whose names only contain it
        group = given["job"], given.get("shape", "")
        return [one for one in found if (one.job, shape(one.error)) == group]
    return [one for one in found if _holds(one, wanted, now)]


def _holds(one: DeadLetter, wanted: Filter, now: datetime) -> bool:
    since = wanted.since(now)
    return (
        wanted.holds("job", one.job)
        and wanted.holds("error", one.error, shape(one.error))
        and wanted.holds("key", one.key)
        and wanted.holds("queue", one.queue)
        and wanted.holds("worker", one.worker)
        and (since is None or one.at >= since)
        and wanted.mentions(one.id, one.job, one.error, one.key)
    )


_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27,}|\d+", re.IGNORECASE)


def shape(error: str) -> str:
    """An error without its numbers and ids."""
    return _VARIES.sub("#", error)


def grouped(letters: Sequence[DeadLetter]) -> list[Group]:
    """The groups, largest first."""
    found: dict[tuple[str, str], list[DeadLetter]] = {}
    for one in letters:
        found.setdefault((one.job, shape(one.error)), []).append(one)
    groups = [
        Group(
            job=job,
            error=some[0].error if len({one.error for one in some}) == 1 else error,
            shape=error,
            count=len(some),
            first=min(one.at for one in some),
            last=max(one.at for one in some),
            filter=f'{quoted("job", job)} error:"{error.replace(chr(34), "*")}"',
        )
        for (job, error), some in found.items()
    ]
    return sorted(groups, key=lambda one: (-one.count, one.job, one.error))
