"""Durations over time: the median, and a band from there to the 95th percentile, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup

from celery_orchestration.operate.clock import took
from celery_orchestration.web.svg import drawing, tag, text

WIDTH, HEIGHT, LEFT, BELOW = 520, 132, 48, 18
#: The least number of runs for each point.
_PER_POINT, _MOST_POINTS = 4, 40


def bands(values: Sequence[tuple[datetime, float]], label: str) -> Markup:
    """Empty for fewer than four runs."""
    if len(values) < 4:
        return Markup("")
    order = sorted(values)
    size = max(1 if len(order) < _MOST_POINTS else _PER_POINT, math.ceil(len(order) / _MOST_POINTS))
    parts = [order[at : at + size] for at in range(0, len(order), size)]
    top = nice(max(seconds for _, seconds in order))
    step = (WIDTH - LEFT) / max(1, len(parts) - 1)

    def y(seconds: float) -> float:
        return 4 + (HEIGHT - BELOW - 8) * (1 - seconds / top)

    middles, highs = [], []
    for at, part in enumerate(parts):
        seconds = sorted(one for _, one in part)
        x = LEFT + at * step
        middles.append((x, y(seconds[len(seconds) // 2])))
        highs.append((x, y(seconds[min(len(seconds) - 1, math.ceil(0.95 * len(seconds)) - 1)])))
    ticks = [_tick(value, y(value)) for value in (0, top / 2, top)]
    ends = [
        tag("text", text(when), x=x, y=HEIGHT - 3, text_anchor=anchor, class_="axis", data_clock=at.isoformat())
        for at, when, x, anchor in (
            (order[0][0], order[0][0].strftime("%H:%M"), LEFT, "start"),
            (order[-1][0], order[-1][0].strftime("%H:%M"), WIDTH, "end"),
        )
    ]
    return drawing(
        WIDTH,
        HEIGHT,
        f"{label}: {len(order)} runs, middle and 95th percentile",
        *ticks,
        tag("polygon", points=_points([*middles, *reversed(highs)]), class_="band"),
        tag("polyline", points=_points(highs), class_="high", fill="none"),
        tag("polyline", points=_points(middles), class_="middle", fill="none"),
        *ends,
        class_="bands",
    )


def _tick(value: float, y: float) -> Markup:
    return tag(
        "g",
        tag("line", x1=LEFT, x2=WIDTH, y1=y, y2=y, class_="grid"),
        tag("text", text(_axis(value)), x=LEFT - 6, y=y + 3.5, text_anchor="end", class_="axis"),
    )


def _axis(seconds: float) -> str:
    if seconds == 0:
        return "0"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s" if seconds < 120 else took(seconds)


def _points(found: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in found)


def nice(value: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten; for minutes and hours, whole ones."""
    if value <= 0:
        return 1.0
    for round_one in (60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 12 * 3600, 86400):
        if 50 < value <= round_one:
            return float(round_one)
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * 1.0000001)
