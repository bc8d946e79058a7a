"""Drawings: SVG text from plain values. Pure. No colours (style classes have them), no scripts, all text escaped."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from celery_orchestration.job.text import printable


def tag(name: str, *inside: Markup, **attributes: Any) -> Markup:
    """An element. A trailing underscore of a name is dropped, others become dashes; None omits the attribute."""
    written = "".join(
        [
            f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
            for key, value in attributes.items()
            if value is not None
        ]
    )
    return Markup(f"<{name}{written}>{''.join(inside)}</{name}>")


def text(value: str) -> Markup:
    return escape(printable(value))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value) if isinstance(value, int) else str(text(value))


def drawing(box_width: float, box_height: float, label: str, /, *inside: Markup, **attributes: Any) -> Markup:
    """A whole drawing, which scales with its box."""
    return tag(
        "svg",
        tag("title", text(label)),
        *inside,
        viewBox=f"0 0 {box_width:g} {box_height:g}",
        role="img",
        **attributes,
    )
