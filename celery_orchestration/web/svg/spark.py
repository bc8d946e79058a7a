"""Small drawings inside tables: lines, ticks and bars."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from celery_orchestration.operate.models import Ended
from celery_orchestration.web.svg import drawing, tag, text

WIDTH, HEIGHT = 96, 20
#: How many runs have a tick, and the width of each.
TICKS, TICK = 16, 6
#: Outcomes that may need a person.
BAD = ("failed", "crashed", "missed")
QUIET = ("skipped", "revoked", "expired", "rejected", "ignored", "requeued", "released")


def line(values: Sequence[float], label: str) -> Markup:
    """A line with the latest value on the right. Empty for fewer than two values."""
    if len(values) < 2:
        return Markup("")
    top = max(*values, 1)
    step = WIDTH / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{HEIGHT - 1 - value / top * (HEIGHT - 3):.1f}" for at, value in enumerate(values)
    )
    area = f"0,{HEIGHT} {points} {WIDTH},{HEIGHT}"
    return drawing(
        WIDTH,
        HEIGHT,
        label,
        tag("polygon", points=area, class_="area"),
        tag("polyline", points=points, class_="line", fill="none"),
        class_="spark",
        width=WIDTH,
        height=HEIGHT,
        preserveAspectRatio="none",
    )


def outcome_class(outcome: str) -> str:
    return "bad" if outcome in BAD else "quiet" if outcome in QUIET else "good"


def ticks(runs: Sequence[Ended]) -> Markup:
    """The last runs, latest on the right: duration and outcome of each. Failed ones hang lower."""
    shown = list(reversed(runs[:TICKS]))
    longest = max((run.seconds or 0 for run in shown), default=0) or 1
    bars = []
    for at, run in enumerate(shown):
        height = 3 + (run.seconds or 0) / longest * (HEIGHT - 7)
        kind = outcome_class(run.outcome)
        bars.append(
            tag(
                "rect",
                x=WIDTH - (len(shown) - at) * TICK + 1,
                y=HEIGHT - height - (0 if kind == "bad" else 3),
                width=TICK - 2,
                height=height,
                class_=kind,
            )
        )
    failed = sum(outcome_class(run.outcome) == "bad" for run in shown)
    label = f"last {len(shown)} runs, {failed} failed"
    return drawing(WIDTH, HEIGHT, label, *bars, class_="ticks", width=WIDTH, height=HEIGHT) if shown else Markup("")


def share(done: float, total: float, label: str) -> Markup:
    """A bar that shows `done` of `total`."""
    part = min(1.0, max(0.0, done / total)) if total else 1.0
    return tag(
        "svg",
        tag("title", text(label)),
        tag("rect", x=0, y=0, width=100, height=6, rx=3, class_="track"),
        tag("rect", x=0, y=0, width=part * 100, height=6, rx=3, class_="fill"),
        viewBox="0 0 100 6",
        class_="share",
        role="img",
        width=100,
        height=6,
    )
