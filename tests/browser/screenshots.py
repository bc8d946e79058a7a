"""Pictures of the dashboard: ``python -m browser.screenshots docs/images`` takes the two that the README shows.

A shop works for four minutes. Then its warehouse cannot be reached, until fetch_data has been disabled and other jobs
wait for it. ``--all`` takes every page, light, dark and as wide as a phone, for people to look at.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from support.browser import ARGUMENTS, opened
from support.shop import Shop, shop
from support.wait import until

#: A minute of the shop's schedule takes six seconds.
LIVELY = {"TEST_PACE": "10", "TEST_INTERVALS": "1"}
WORKING_SECONDS = 230

README = {"overview": "", "timeline": "timeline?span=5m"}
EVERY = {
    **README,
    **{name: name for name in ("jobs", "graph", "runs", "schedule", "letters", "workers", "audit")},
    "job": "job?name=support.apps.shop.process_data",
    "waits": "runs?q=state%3Awaiting",
}
#: Width, height, whether it is dark.
LOOKS = {"": (1280, 800, False), "-dark": (1280, 800, True), "-phone": (360, 780, False)}


def play(whole: Shop, seconds: float) -> None:
    """The content of the pictures: a shop at work, then one cause that holds back several jobs."""
    client = whole.client
    whole.worker(name="first@shop-1", concurrency=4)
    whole.beat()
    ends = time.monotonic() + seconds
    order = 0
    while time.monotonic() < ends:
        order += 1
        client.trigger(whole.name("send_newsletter"), kwargs={"customer": f"customer-{order}", "password": "secret"})
        client.trigger(whole.name("charge_card"), [str(order)])
        until(lambda: not whole.job("send_newsletter").waiting, 30, "the newsletter is sent")
        time.sleep(min(8.0, max(0.0, ends - time.monotonic())))  # the shop's own pace
    whole.touch("down")
    client.trigger(whole.name("import_catalogue"))
    waiting = ("process_data", "daily_report", "update_search_index")
    until(
        lambda: whole.job("fetch_data").disabled and all(whole.job(name).waiting for name in waiting),
        180,
        "fetch_data is disabled, and others wait for it",
        poll=0.5,
    )


def take(browser: Browser, address: str, target: Path, pages: dict[str, str], looks: dict[str, Any]) -> None:
    for suffix, (width, height, dark) in looks.items():
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        page = context.new_page()
        for name, path in pages.items():
            opened(page, f"{address}/{path}")
            page.screenshot(path=target / f"{name}{suffix}.png", full_page=bool(pages is EVERY))
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--all", action="store_true", help="every page, light, dark and on a phone")
    parser.add_argument("--seconds", type=float, default=WORKING_SECONDS, help="how long the shop works before")
    asked = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("chromium is not installed: apt install chromium")
    asked.target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, shop(Path(directory) / "shop", LIVELY) as whole:
        address = whole.dashboard(env={"LOGNAME": "anna"})
        play(whole, asked.seconds)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            pages, looks = (EVERY, LOOKS) if asked.all else (README, {"": LOOKS[""]})
            take(browser, address, asked.target, pages, looks)
            browser.close()


if __name__ == "__main__":
    main()
