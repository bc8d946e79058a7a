"""Runs over time, with a lane for each job. Positions are shares of the width, so it fits any window undistorted.

Runs are above; below is a thin strip of the waits, coloured by cause. Shapes that are too close to distinguish are
merged and counted, so that a lane has a bounded number of shapes, however many runs there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from markupsafe import Markup

from celery_orchestration.operate.clock import took
from celery_orchestration.web.svg import tag, text

#: Shares of the width: the narrowest shape, and the gap that is closed.
NARROW = 0.0025
#: The most shapes of one kind in a lane.
MOST = 100
#: Heights of a lane, a bar and a strip, in pixels.
LANE, BAR, STRIP = 30, 14, 5
#: Round steps of the axis.
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class Window:
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()

    def share(self, at: datetime) -> float:
        return (at - self.begin).total_seconds() / self.seconds


@dataclass(frozen=True)
class Span:
    """`kind`: its style class. Without an end it is a point in time. `count`: how many runs it stands for."""

    kind: str
    begin: datetime
    end: datetime | None
    label: str
    href: str
    count: int = 1


def merged(spans: Sequence[Span], window: Window, most_href: str) -> list[Span]:
    """Merge touching shapes of one kind. `most_href`: the link of a merged shape."""
    narrow, found = NARROW, list(spans)
    while len(found := _merged(found, window, most_href, narrow)) > MOST and narrow < 1:
        narrow *= 2
    return found


def _merged(spans: Sequence[Span], window: Window, most_href: str, narrow: float) -> list[Span]:
    gap = timedelta(seconds=window.seconds * narrow)
    latest: dict[str, Span] = {}
    done: list[Span] = []
    for span in sorted(spans, key=lambda one: one.begin):
        end = span.end or span.begin
        if end < window.begin or span.begin > window.end:
            continue
        before = latest.get(span.kind)
        if before is not None and span.begin <= (before.end or before.begin) + gap:
            latest[span.kind] = replace(
                before,
                end=max(before.end or before.begin, end) if span.end or before.end else None,
                count=before.count + span.count,
                href=most_href,
            )
        else:
            done += [before] if before else []
            latest[span.kind] = span
    return sorted([*done, *latest.values()], key=lambda one: one.begin)


def lane(
    bars: Sequence[Span], strips: Sequence[Span], points: Sequence[Span], window: Window, now: datetime, label: str
) -> Markup:
    middle = (LANE - STRIP - BAR) / 2
    shapes = [_grid(window, LANE), _now(window, now, LANE)]
    shapes += [_shape(span, window, middle, BAR) for span in bars]
    shapes += [_shape(span, window, LANE - STRIP - 2, STRIP) for span in strips]
    shapes += [_point(span, window, middle + BAR / 2) for span in points]
    return tag("svg", tag("title", text(label)), *shapes, class_="lane", width="100%", height=LANE, role="group")


def _shape(span: Span, window: Window, y: float, height: float) -> Markup:
    begin = max(0.0, window.share(span.begin))
    width = max(NARROW, min(1.0, window.share(span.end or span.begin)) - begin)
    rect = tag("rect", x=_percent(begin), y=y, width=_percent(width), height=height, rx=2, class_=f"span {span.kind}")
    return tag("a", tag("title", text(_label(span))), rect, href=span.href)


def _point(span: Span, window: Window, y: float) -> Markup:
    x = window.share(span.begin)
    if span.kind == "upcoming":
        mark = tag("circle", cx=_percent(x), cy=y, r=3, class_="span upcoming")
    else:  # a cross needs its own origin
        cross = tag("path", d="M-4-4 4 4M4-4-4 4", class_=f"span {span.kind}")
        mark = tag("svg", cross, x=_percent(x), y=y, overflow="visible")
    return tag("a", tag("title", text(_label(span))), mark, href=span.href)


def _label(span: Span) -> str:
    times = f"{span.count:,} runs · " if span.count > 1 else ""
    begin = span.begin.astimezone(timezone.utc).strftime("%H:%M:%S")
    if span.end is None:
        return f"{times}{span.label} · {begin} UTC"
    lasting = took((span.end - span.begin).total_seconds())
    return f"{times}{span.label} · from {begin} UTC, {lasting}"


def axis(window: Window, now: datetime) -> Markup:
    step, times = ticks(window)
    shown = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
    labels = [
        tag(
            "text",
            text(at.astimezone(timezone.utc).strftime(shown)),
            x=_percent(window.share(at)),
            y=14,
            class_="axis",
            text_anchor="middle",
            data_clock=at.isoformat(),
            data_step=step,
        )
        for at in times
        if 0.03 < window.share(at) < 0.97
    ]
    return tag(
        "svg", *labels, _now(window, now, 20), class_="lane axis-lane", width="100%", height=20, role="presentation"
    )


def ticks(window: Window) -> tuple[int, list[datetime]]:
    """Six or seven round times."""
    step = next((one for one in STEPS if window.seconds / one <= 7), STEPS[-1])
    first = -(-window.begin.timestamp() // step) * step
    count = int((window.end.timestamp() - first) // step) + 1
    return step, [datetime.fromtimestamp(first + at * step, timezone.utc) for at in range(count)]


def _grid(window: Window, height: float) -> Markup:
    lines = [
        tag("line", x1=_percent(window.share(at)), x2=_percent(window.share(at)), y1=0, y2=height, class_="grid")
        for at in ticks(window)[1]
    ]
    return tag("g", *lines)


def _now(window: Window, now: datetime, height: float) -> Markup:
    x = window.share(now)
    return tag("line", x1=_percent(x), x2=_percent(x), y1=0, y2=height, class_="now") if 0 <= x <= 1 else Markup("")


def _percent(share: float) -> str:
    return f"{share * 100:.2f}%"
