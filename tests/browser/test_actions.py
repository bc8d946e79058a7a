"""Every action changes the system, reports its effect, and is in the audit under the name of the person."""

from __future__ import annotations

import getpass

import pytest
from playwright.sync_api import Page, expect

from support.browser import opened
from support.shop import Shop
from support.wait import until


def done(page: Page, text: str) -> None:
    expect(page.locator(".toast", has_text=text)).to_be_visible()


def confirm(page: Page, button: str, says: str = "") -> None:
    dialog = page.locator("#dialog")
    expect(dialog).to_be_visible()
    if says:
        expect(dialog).to_contain_text(says)
    dialog.get_by_role("button", name=button, exact=True).last.click()


def last_change(shop: Shop) -> tuple[str, str]:
    change = shop.client.audit(1)[0]
    assert change.who.startswith(f"{getpass.getuser()}@")
    return change.what, change.about


def test_someone_new_finds_out_why_process_data_does_not_run_and_fixes_it(living: Shop, page: Page) -> None:
    shop = living
    shop.disable_by_failures()
    shop.client.trigger(shop.name("process_data"))
    until(lambda: shop.job("process_data").waiting, message="it waits")
    opened(page, f"{shop.address}/")
    cause = page.locator(".findings li.wrong")
    expect(cause).to_contain_text("process_data")
    shop.remove("down")  # the warehouse is back
    cause.get_by_role("button", name="Enable").click()
    done(page, "fetch_data is enabled")
    assert ("enable", shop.name("fetch_data")) in [(one.what, one.about) for one in shop.client.audit(3)]
    expect(page.locator(".findings li.wrong", has_text="disabled")).to_have_count(0, timeout=2000)
    shop.client.trigger(shop.name("fetch_data"))
    until(lambda: shop.job("process_data").last_outcome == "succeeded", message="it has run")
    expect(page.get_by_role("heading", level=1)).to_have_text("Everything is all right")


def test_disable_with_a_reason_and_enable(living: Shop, page: Page) -> None:
    opened(page, f"{living.address}/job?name={living.name('sync_inventory')}")
    page.get_by_role("button", name="Disable").click()
    page.locator("#dialog input[name=reason]").fill("stocktaking <b>today</b>")
    confirm(page, "Disable", "No run of it starts")
    done(page, "is disabled")
    found = living.job("sync_inventory").disabled
    assert found is not None
    assert found.why == "stocktaking <b>today</b>"
    assert last_change(living) == ("disable", living.name("sync_inventory"))
    page.get_by_role("button", name="Enable", exact=True).first.click()
    done(page, "is enabled")
    assert living.job("sync_inventory").disabled is None


def test_run_now_with_arguments(living: Shop, page: Page) -> None:
    opened(page, f"{living.address}/job?name={living.name('charge_card')}")
    page.get_by_role("button", name="Run now").click()
    page.locator("#dialog textarea[name=args]").fill("no json")
    confirm(page, "Run now")
    expect(page.locator("#dialog .problem")).to_contain_text("args: ")
    page.locator("#dialog textarea[name=args]").fill('["6"]')
    confirm(page, "Run now")
    done(page, "was sent")
    letters = until(lambda: living.client.dead_letters(living.name("charge_card")), message="it ran with its argument")
    assert "order 6" in letters[0].error


def test_cancel_a_run_that_waits(living: Shop, page: Page) -> None:
    for _ in range(3):
        living.client.trigger(living.name("import_catalogue"))
    until(lambda: living.job("import_catalogue").waiting == 2, message="two wait")
    opened(page, f"{living.address}/runs?q=state:waiting")
    page.locator("table.runs tbody tr").first.get_by_role("button", name="Cancel").click()
    confirm(page, "Cancel run", "ends as revoked")
    done(page, "was cancelled")
    assert living.job("import_catalogue").waiting == 1
    opened(page, f"{living.address}/job?name={living.name('import_catalogue')}")
    page.get_by_role("button", name="Cancel waiting").click()
    confirm(page, "Cancel 1 run", "1 run of it has not started")
    done(page, "1 run of")
    assert living.job("import_catalogue").waiting == 0


def test_kill_a_run(living: Shop, page: Page) -> None:
    run = living.client.trigger(living.name("import_catalogue")).run_id
    until(lambda: living.job("import_catalogue").running, message="it runs")
    until(lambda: any(one.state == "running" for one in living.client.status(depths=False).runs), message="it runs")
    opened(page, f"{living.address}/run?id={run}")
    page.get_by_role("button", name="Cancel").first.click()
    expect(page.locator("#dialog input[name=terminate]")).to_be_checked()
    confirm(page, "Cancel run")
    done(page, "is being killed")
    until(lambda: not living.job("import_catalogue").running, message="it is gone")


def test_pause_and_resume_everything(living: Shop, page: Page) -> None:
    opened(page, f"{living.address}/")
    page.get_by_role("button", name="Pause everything").click()
    page.locator("#dialog input[name=reason]").fill("deploy")
    confirm(page, "Pause everything")
    done(page, "Everything is paused")
    assert living.client.status(depths=False).paused
    page.locator(".banner").get_by_role("button", name="Resume").click()
    done(page, "Everything is resumed")
    assert not living.client.status(depths=False).paused
    assert last_change(living)[0] == "resume"


def test_dead_letters_are_requeued_and_removed_by_filter_with_the_count_before(living: Shop, page: Page) -> None:
    shop = living
    for order in ("3", "6", "9"):
        shop.client.trigger(shop.name("charge_card"), [order])
    until(lambda: len(shop.client.dead_letters()) == 3, message="three failed")
    opened(page, f"{shop.address}/letters")
    expect(page.locator("tr", has_text="order #: the bank declined the card")).to_contain_text("3")
    opened(page, f"{shop.address}/letters?q=key:6")
    page.get_by_role("button", name="Remove 1", exact=True).click()
    confirm(page, "Remove 1 dead letter", "cannot be restored")
    done(page, "1 dead letter removed")
    assert {letter.key for letter in shop.client.dead_letters()} == {"3", "9"}
    before = len(shop.client.history(shop.name("charge_card")))
    opened(page, f"{shop.address}/letters")
    page.get_by_role("button", name="Requeue 2", exact=True).click()
    confirm(page, "Requeue 2 dead letters", "run again from the beginning")
    done(page, "2 dead letters requeued")
    failed = before + 2
    until(lambda: len(shop.client.history(shop.name("charge_card"))) == failed, message="both ran once more")


def test_a_mistyped_filter_never_means_all(living: Shop, page: Page) -> None:
    living.client.trigger(living.name("charge_card"), ["3"])
    until(living.client.dead_letters, message="it failed")
    opened(page, f"{living.address}/letters?q=jib:nothing")
    assert page.get_by_role("button", name="Remove").count() == 0
    page.goto(f"{living.address}/do/purge?q=jib:nothing")
    expect(page.locator("form.plan")).to_contain_text("Remove 0 dead letters")
    assert page.locator("button[type=submit]").count() == 0


def test_an_entry_is_added_paused_resumed_and_removed(living: Shop, page: Page) -> None:
    opened(page, f"{living.address}/schedule")
    page.get_by_role("button", name="Add an entry").click()
    page.locator("#dialog input[name=name]").fill("nightly newsletter")
    page.locator("#dialog input[name=task]").fill(living.name("send_newsletter"))
    page.locator("#dialog input[name=when]").fill("not a crontab")
    confirm(page, "Add entry")
    expect(page.locator("#dialog .problem")).not_to_be_empty()
    page.locator("#dialog input[name=when]").fill("0 3 * * *")
    page.locator("#dialog textarea[name=kwargs]").fill('{"customer": "all", "password": "hunter2"}')
    confirm(page, "Add entry")
    done(page, "is added")
    row = page.locator("tr", has_text="nightly newsletter").first
    expect(row).to_contain_text("added by people", timeout=2000)
    assert "hunter2" not in page.content()
    row.get_by_role("button", name="Pause").click()
    confirm(page, "Pause entry")
    done(page, "is paused")
    assert living.client.schedule.get("nightly newsletter").paused is not None
    row.get_by_role("button", name="Resume").click()
    done(page, "fires again")
    row.get_by_role("button", name="Remove").click()
    confirm(page, "Remove entry")
    done(page, "is removed")
    assert "nightly newsletter" not in [one.name for one in living.client.schedule.list()]


def test_drain_a_worker(living: Shop, page: Page) -> None:
    worker = living.worker(name="second", concurrency=1)
    opened(page, f"{living.address}/workers")
    page.locator("tr", has_text="second").get_by_role("button", name="Drain").click()
    confirm(page, "Drain worker", "takes no new runs")
    done(page, "drains")
    until(lambda: not worker.running, 30, "it has stopped")
    expect(page.locator("tr[data-key^='worker second']")).to_have_count(0, timeout=5000)
    assert ("drain", worker.hostname) in [(one.what, one.about) for one in living.client.audit(5)]


def test_an_object_that_is_gone_by_then_is_reported(living: Shop, page: Page) -> None:
    page.goto(f"{living.address}/run?id=nothing-like-it")
    expect(page.get_by_role("heading", level=1)).to_contain_text("there is no job 'nothing-like-it'")


@pytest.mark.parametrize("action", ["enable", "pause"])
def test_actions_work_without_scripts(living: Shop, chromium: object, action: str) -> None:
    context = chromium.new_context(java_script_enabled=False)  # type: ignore[attr-defined]
    page = context.new_page()
    page.goto(f"{living.address}/do/{action}?job={living.name('cleanup')}")
    page.locator("button[type=submit]").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    context.close()
