"""The audit: who changed what, and when."""

from __future__ import annotations

from typing import Any

from celery_orchestration.web.filters import parse
from celery_orchestration.web.pages import PageData, Query

FIELDS = ("who", "what", "about", "since")
#: How many changes are searched, and listed.
MOST, LISTED = 1000, 200


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    since = wanted.since(data.now)
    changes = data.client.audit(MOST)
    found = [
        one
        for one in changes
        if wanted.holds("who", one.who)
        and wanted.holds("what", one.what)
        and wanted.holds("about", one.about, one.why)
        and (since is None or one.at >= since)
        and wanted.mentions(one.who, one.what, one.about, one.why)
    ]
    words = sorted(
        {f"what:{one.what}" for one in changes if " " not in one.what} | {f"who:{one.who}" for one in changes}
    )
    return {
        "changes": found[:LISTED],
        "found": len(found),
        "mistakes": wanted.mistakes,
        "suggestions": ["since:1h", "since:1d", *words[:100]],
    }
