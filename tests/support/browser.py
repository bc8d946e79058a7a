"""Headless Chromium, as Debian has it: for the tests in a browser, and for the pictures in the README."""

from __future__ import annotations

from typing import Any

#: It needs neither a display nor a sandbox, and connects only to the dashboard.
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def opened(page: Any, address: str) -> Any:
    """The page is loaded, and its stream has sent an event."""
    page.goto(address)
    page.wait_for_selector("body[data-updated]")
    return page
