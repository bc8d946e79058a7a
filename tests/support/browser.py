"""Headless Chromium, as Debian has it: for the tests in a browser, and for the pictures in the README."""

from __future__ import annotations

from typing import Any

#: It needs neither a display nor a sandbox, and speaks to nobody but the dashboard.
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def opened(page: Any, address: str) -> Any:
    """Loaded, and told something by its stream."""
    page.goto(address)
    page.wait_for_selector("body[data-updated]")
    return page
