"""Permissions, hostile names, and outages of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from celery_orchestration.web.auth import hash_password
from support.browser import opened
from support.hostile import TEXTS
from support.shop import Shop, shop
from support.wait import until

PATHS = ("", "jobs", "timeline", "graph", "runs", "schedule", "letters", "workers", "audit")


@pytest.fixture(scope="module")
def guarded(whole_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("credentials") / "users"
    path.write_text(
        f"# who may look\nvera:viewer:{hash_password('look only')}\nolaf:operator:{hash_password('may act')}\n"
    )
    return whole_shop.dashboard("--credentials", str(path))


def log_in(page: Page, address: str, name: str, password: str) -> None:
    page.goto(f"{address}/jobs")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_nobody_sees_anything_without_logging_in(living: Shop, guarded: str, page: Page) -> None:
    for path in (*PATHS, "job?name=x", "run?id=x", "do/pause"):
        page.goto(f"{guarded}/{path}")
        expect(page.get_by_label("Password")).to_be_visible()
        assert "shop.fetch_data" not in page.content()
    for path in ("live?page=overview", "metrics"):
        assert page.request.get(f"{guarded}/{path}").status == 401


def test_a_wrong_password_is_refused(living: Shop, guarded: str, page: Page) -> None:
    log_in(page, guarded, "olaf", "guess")
    expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
    assert not any("olaf" in one["value"] for one in page.context.cookies())


def test_a_viewer_sees_no_button_and_is_refused_by_the_server(living: Shop, guarded: str, page: Page) -> None:
    log_in(page, guarded, "vera", "look only")
    page.wait_for_url(f"{guarded}/jobs")
    for path in (*PATHS, f"job?name={living.name('fetch_data')}"):
        opened(page, f"{guarded}/{path}")
        assert page.locator("a[href*='/do/']").count() == 0
    token = page.locator("meta[name=csrf]").get_attribute("content")
    headers = {"x-csrf-token": token or "", "accept": "application/json"}
    answer = page.request.post(f"{guarded}/do/pause", headers=headers)
    assert answer.status == 403
    assert not living.client.status(depths=False).paused


def test_an_operator_acts_under_their_own_name_and_logs_out(living: Shop, guarded: str, page: Page) -> None:
    log_in(page, guarded, "olaf", "may act")
    opened(page, f"{guarded}/job?name={living.name('cleanup')}")
    page.get_by_role("button", name="Disable").click()
    page.locator("#dialog").get_by_role("button", name="Disable").click()
    expect(page.locator(".toast")).to_contain_text("is disabled")
    assert living.client.audit(1)[0].who == "olaf"
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    page.get_by_role("button", name="Log out").click()
    page.goto(f"{guarded}/audit")
    expect(page.get_by_label("Password")).to_be_visible()


def test_read_only_has_no_buttons_for_anybody(living: Shop, page: Page) -> None:
    address = living.dashboard("--read-only")
    opened(page, f"{address}/")
    expect(page.locator(".who")).to_contain_text("read-only")
    assert page.locator("a[href*='/do/']").count() == 0
    assert page.request.get(f"{address}/do/pause").status == 403


# -- names


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("hostile"), env={"TEST_HOSTILE": "1"}) as found:
        found.worker(pool="threads")
        found.beat()
        found.address = found.dashboard()
        for text in TEXTS.values():
            found.client.trigger(text)
        until(lambda: len(found.client.dead_letters()) == len(TEXTS), message="all have failed")
        found.client.disable(TEXTS["script"], "<img src=x onerror='window.hacked=1'>")
        yield found


@pytest.mark.parametrize("path", PATHS)
def test_hostile_names_stay_text(hostile: Shop, page: Page, path: str) -> None:
    opened(page, f"{hostile.address}/{path}")
    assert page.evaluate("() => window.hacked === undefined")
    assert page.evaluate("() => document.querySelectorAll('main script, main img, main style').length") == 0
    assert "\u202e" not in page.locator("main").inner_text()


@pytest.mark.parametrize("name", TEXTS)
def test_a_job_of_a_hostile_name_can_be_opened_and_enabled(hostile: Shop, page: Page, name: str) -> None:
    text = TEXTS[name]
    hostile.client.disable(text)
    page.goto(f"{hostile.address}/jobs")
    address = page.evaluate("(name) => `job?${new URLSearchParams({ name })}`", text)
    opened(page, f"{hostile.address}/{address}")
    page.get_by_role("button", name="Enable", exact=True).first.click()
    expect(page.locator(".toast")).to_contain_text("is enabled")
    assert next(one for one in hostile.client.status(depths=False).jobs if one.name == text).disabled is None


# -- Redis away


def test_an_outage_is_shown_and_the_page_recovers_by_itself(tmp_path: Path, browse: Callable[..., Page]) -> None:
    with shop(tmp_path, appendonly=True) as found:
        found.worker(pool="threads")
        address = found.dashboard()
        page = opened(browse(), f"{address}/jobs")
        found.broker.redis.stop()
        expect(page.locator("#outage")).to_be_visible()
        expect(page.locator("#live")).to_have_text("no answer")
        expect(page.locator("table.jobs tbody tr").first).to_be_visible()  # what was known last
        other = browse()
        other.goto(f"{address}/")
        expect(other.get_by_role("heading", level=1)).to_have_text("The ledger does not answer")
        found.broker.redis.start()
        expect(page.locator("#outage")).to_be_hidden()
        expect(page.locator("#live")).to_have_text("live")
        expect(other.get_by_role("heading", name="Jobs")).to_be_visible()


def test_an_empty_shop_says_what_would_be_here(tmp_path: Path, browse: Callable[..., Page]) -> None:
    with shop(tmp_path) as found:
        address = found.dashboard()
        for path in PATHS:
            page = opened(browse(), f"{address}/{path}")
            expect(page.locator("main h1")).to_be_visible()
        page = opened(browse(), f"{address}/")
        expect(page.get_by_role("heading", level=1)).to_have_text("No worker has registered a job yet")
