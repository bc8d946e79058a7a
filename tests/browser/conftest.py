"""Headless Chromium, as Debian has it, on a living system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from support.browser import ARGUMENTS
from support.shop import Shop, shop

IN_CI = bool(os.environ.get("CI"))

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:
    if IN_CI:
        raise
    pytest.skip("needs playwright: make browser", allow_module_level=True)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        assert not IN_CI, "chromium is not installed"
        pytest.skip("needs chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def whole_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("shop"), appendonly=True) as found:
        found.worker(name="first")
        found.beat()
        found.address = found.dashboard()
        yield found


@pytest.fixture
def living(whole_shop: Shop) -> Shop:
    """One shop for all tests. At the beginning of each it is idle, everything is enabled, and there are no dead
    letters."""
    whole_shop.settle()
    return whole_shop


@pytest.fixture
def browse(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """``browse(width=360, dark=True)``: a page in a browser of its own. At the end the browser must have logged no
    error."""
    contexts, complaints = [], []

    def make(width: int = 1440, dark: bool = False, height: int = 900) -> Page:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        page.on("console", lambda said: said.type == "error" and complaints.append(f"{page.url}: {said.text}"))
        page.on("dialog", lambda dialog: (complaints.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        return page

    make.complaints = complaints
    yield make
    for context in contexts:
        context.close()
    # Browsers log refused requests and closed servers as errors, too.
    assert not [one for one in complaints if "Failed to load resource" not in one], complaints


@pytest.fixture
def page(browse: Callable[..., Page]) -> Page:
    return browse()
