"""Every page on a living system: it shows all objects, stays up to date, and fits the window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from support.browser import opened
from support.shop import Shop
from support.wait import until

PAGES = {
    "overview": "",
    "jobs": "jobs",
    "timeline": "timeline?span=5m",
    "graph": "graph",
    "runs": "runs",
    "schedule": "schedule",
    "letters": "letters",
    "workers": "workers",
    "audit": "audit",
    "job": "job?name=support.apps.shop.process_data",
}


@pytest.fixture
def busy(living: Shop) -> Shop:
    """One run runs, one waits, and one failed for good."""
    shop = living
    shop.disable_by_failures()
    shop.client.trigger(shop.name("process_data"))
    shop.client.trigger(shop.name("charge_card"), ["3"], {"token": "tok_123"})
    for _ in range(2):
        shop.client.trigger(shop.name("import_catalogue"))
    until(lambda: shop.job("import_catalogue").running and shop.job("import_catalogue").waiting, message="one runs")
    until(lambda: shop.job("process_data").waiting and shop.job("charge_card").dead_letters, message="they are there")
    return shop


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_itself_and_is_live(busy: Shop, page: Page, name: str) -> None:
    opened(page, f"{busy.address}/{PAGES[name]}")
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    assert page.locator("nav[aria-label=Pages] a[aria-current=page]").count() == (0 if name == "job" else 1)
    assert page.title().endswith("· shop")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_a_phone(busy: Shop, browse: Callable[..., Page], name: str) -> None:
    page = opened(browse(width=360, height=780), f"{busy.address}/{PAGES[name]}")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [700, 960, 1004, 1024, 1280, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_reaches_beyond_its_column(busy: Shop, browse: Callable[..., Page], name: str, width: int) -> None:
    page = opened(browse(width=width), f"{busy.address}/{PAGES[name]}")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []


def test_the_workers_table_fits_however_long_its_figures_are(busy: Shop, browse: Callable[..., Page]) -> None:
    page = opened(browse(width=1280), f"{busy.address}/{PAGES['workers']}")
    page.evaluate(
        """() => document.querySelectorAll(".rows tbody tr").forEach((row) => [...row.cells].forEach((cell) => {
          if (cell.matches(".num")) cell.textContent = "1,000,000"; }))"""
    )
    assert page.evaluate(TOO_WIDE) == []


#: Tables that are wider than their parents.
TOO_WIDE = """() => [...document.querySelectorAll("main table")]
  .filter((one) => one.offsetWidth > one.parentElement.clientWidth + 1)
  .map((one) => `${one.className}: ${one.offsetWidth} in ${one.parentElement.clientWidth}`)"""


def test_the_overview_names_each_cause_once(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/")
    cause = page.locator(".findings li.wrong")
    expect(cause).to_have_count(1)
    expect(cause).to_contain_text("fetch_data is disabled after 5 failures")
    expect(cause).to_contain_text("ConnectionError: warehouse.internal:5432 refused the connection")
    expect(cause).to_contain_text("1 job and 1 run wait for it: process_data")


def test_a_system_without_problems_is_announced_in_large_type(living: Shop, page: Page) -> None:
    shop = living
    shop.client.trigger(shop.name("fetch_data"))
    until(lambda: shop.job("fetch_data").last_outcome == "succeeded", message="it has succeeded")
    opened(page, f"{shop.address}/")
    headline = page.get_by_role("heading", level=1)
    expect(headline).to_have_text("Everything is all right")
    assert headline.evaluate("(one) => parseFloat(getComputedStyle(one).fontSize)") >= 30


def test_the_timeline_has_a_lane_for_each_job_and_what_waits_has_its_cause(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/timeline?span=5m")
    expect(page.locator(".lane-name .job")).to_have_count(9)
    expect(page.locator(".lane .span.running")).to_have_count(1)
    expect(page.locator(".lane .wait.dependency").first).to_be_attached()
    expect(page.locator(".lane .wait.room").first).to_be_attached()
    page.locator(".lane .span.running").hover()
    expect(page.locator("#tip")).to_contain_text("running on first")
    page.locator(".lane .span.running").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Run ")


def test_the_timeline_zooms_by_its_address(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/timeline")
    page.get_by_role("link", name="15m").click()
    page.wait_for_url("**/timeline?span=15m")
    page.keyboard.press("-")
    page.wait_for_url("**/timeline?span=1h")


def test_the_graph_shows_who_waits_for_whom_with_their_states(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/graph")
    expect(page.locator(".node.state-disabled")).to_contain_text("fetch_data")
    expect(page.locator(".edge.broken")).to_have_count(1)
    page.locator(".node", has_text="process_data").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("process_data")


def test_a_job_is_explained_with_its_options_and_their_sources(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/job?name={busy.name('process_data')}")
    expect(page.locator(".explanation")).to_contain_text("waits for fetch_data")
    page.get_by_text("with the source of each value").click()
    row = page.locator(".options tr", has_text="depends_on")
    expect(row).to_contain_text("fetch_data")
    expect(row).to_contain_text("written")


def test_runs_are_found_by_one_filter(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/runs")
    page.locator("#filter").fill("state:waiting waits_for:fetch_data")
    page.locator("#filter").press("Enter")
    page.wait_for_url("**/runs?q=state%3Awaiting+waits_for%3Afetch_data")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    expect(page.locator("table.runs tbody tr")).to_contain_text("process_data")
    opened(page, f"{busy.address}/runs?q=stat:waiting")
    expect(page.locator(".mistake")).to_contain_text("stat: is no field here")


def test_secrets_in_arguments_are_not_shown(busy: Shop, page: Page) -> None:
    letter = busy.client.dead_letters(busy.name("charge_card"))[0]
    opened(page, f"{busy.address}/run?id={letter.id}")
    expect(page.locator("main")).to_contain_text("'token': •••")
    assert "tok_123" not in page.content()


@pytest.mark.parametrize("path", ["", "jobs", "graph", "runs"])
def test_a_change_appears_within_two_seconds(living: Shop, page: Page, path: str) -> None:
    opened(page, f"{living.address}/{path}")
    living.client.pause("for a moment")
    expect(page.locator(".banner.paused")).to_contain_text("for a moment", timeout=2000)
    living.client.resume()
    expect(page.locator(".banner.paused")).to_have_count(0, timeout=2000)


def test_a_page_nobody_looks_at_is_not_updated(living: Shop, page: Page) -> None:
    opened(page, f"{living.address}/")
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", True)
    expect(page.locator("#live")).to_have_text("paused")
    page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", False)
    expect(page.locator("#live")).to_have_text("live")


def test_by_keyboard_alone(busy: Shop, page: Page) -> None:
    opened(page, f"{busy.address}/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator(".findings li.chosen")).to_contain_text("fetch_data")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("fetch_data")
    page.wait_for_selector("body[data-updated]")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.wait_for_selector("body[data-updated]")
    page.keyboard.press("/")
    page.keyboard.type("import")
    page.keyboard.press("Enter")
    expect(page.locator("table.jobs th .job")).to_have_count(1)
    page.goto(f"{busy.address}/job?name={busy.name('fetch_data')}")
    enable = page.get_by_role("button", name="Enable", exact=True)
    for _ in range(40):
        if enable.evaluate("(one) => one === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("is enabled")


def test_light_and_dark_have_enough_contrast(busy: Shop, browse: Callable[..., Page]) -> None:
    for dark in (False, True):
        page = opened(browse(dark=dark), f"{busy.address}/")
        low = page.evaluate(CONTRAST)
        assert not low, f"{'dark' if dark else 'light'}: {low}"


#: Texts whose contrast with their background is lower than WCAG AA requires.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = rgba(getComputedStyle(node).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!own || !node.offsetParent || node.closest("svg")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgba(style.color)), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) low.push(`${contrast.toFixed(2)} ${node.className}: ${node.textContent.trim().slice(0, 30)}`);
  }
  return low;
}"""
