"""The dashboard over HTTP: access, refusals, mounting, and how often it reads the ledger.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from celery_orchestration.web.access import COOKIE
from celery_orchestration.web.actions import ACTIONS
from celery_orchestration.web.app import Dashboard, create_app
from celery_orchestration.web.auth import Credentials, Identity, hash_password, hash_token
from celery_orchestration.web.security import MOST_BYTES, MOST_FIELDS
from celery_orchestration.web.server import CannotServe, serve
from support.shop import Shop, shop
from support.visitor import HTML, Visitor
from support.wait import until

PAGES = ("", "jobs", "timeline", "graph", "runs", "schedule", "letters", "workers", "audit")
TOKEN = "t" * 40
USERS = Credentials.read(
    f"vera:viewer:{hash_password('look')}\nolaf:operator:{hash_password('act')}\nprobe:viewer:{hash_token(TOKEN)}"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("shop")) as found:
        found.worker(pool="threads", concurrency=2)
        yield found


@pytest.fixture
def visit(whole: Shop) -> Iterator[Callable[..., Visitor]]:
    """``visit(credentials=USERS)``: a visitor of a dashboard with these options."""
    visitors = []

    def make(app: Any = None, *, address: str = "http://localhost", **options: Any) -> Visitor:
        options = {"secure_cookies": False, **options} if app is None else options
        visitors.append(Visitor(app or create_app(whole.module.app, **options), address))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.close()


def addresses(app: Any, method: str) -> list[str]:
    """All addresses that the app serves, so that later ones are tested, too."""
    routes = [one for one in app.routes if isinstance(one, Route) and method in (one.methods or ())]
    whole = [one.path for one in routes if "{" not in one.path]
    actions = [one.path.replace("{action}", name) for one in routes if "{action}" in one.path for name in ACTIONS]
    assert len(whole) + len(actions) >= len(routes), "a route with another parameter: say here what it may be"
    return [*whole, *actions]


# -- every answer


def test_every_answer_has_the_headers_that_keep_others_out(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    for path in (*PAGES, "nothing/here", "static/app.js", "health", "metrics"):
        headers = visitor.get(f"/{path}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_no_page_has_inline_scripts_or_styles_or_anything_from_elsewhere(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    for path in PAGES:
        text = visitor.get(f"/{path}").text
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", text)
        assert not re.findall(r'(?:src|href|action)="(?:https?:)?//', text)


def test_errors_have_these_headers_too(visit: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = visit(credentials=USERS)
    answers = [
        visitor.get("/jobs"),
        visitor.do("GET", "/jobs"),
        visitor.do("PUT", "/jobs"),
        visitor.do("POST", "/do/pause"),
        visitor.do("POST", "/login", content=b"x" * (MOST_BYTES + 1)),
        visitor.get("/static/nothing.js"),
        visit(address="http://evil.example").get("/"),
    ]

    def break_down(*_: Any) -> None:
        raise RuntimeError("/srv/shop/secrets.py")

    monkeypatch.setattr("celery_orchestration.web.health.answer", break_down)
    answers.append(visitor.get("/health"))
    assert [one.status_code for one in answers] == [303, 401, 405, 401, 413, 404, 403, 500]
    assert "secrets.py" not in answers[-1].text
    for answer in answers:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_that_is_too_large_is_refused_wherever_one_is_taken(visit: Callable[..., Visitor], whole: Shop) -> None:
    visitor = visit(credentials=USERS)
    visitor.log_in("olaf", "act")
    headers = {"x-csrf-token": visitor.csrf(), "origin": "http://localhost"}
    for body in (b"reason=" + b"x" * MOST_BYTES, b"a=&" * (MOST_FIELDS + 1)):
        answers = {
            path: visitor.do("POST", path, content=body, headers=headers).status_code
            for path in addresses(visitor.app, "POST")
        }
        assert answers == dict.fromkeys(answers, 413)
    assert not whole.client.status(depths=False).paused


ODD = (
    "x",
    "-1",
    "0",
    "9" * 30,
    "0001-01-01",
    "9999-12-31T23:59",
    "2030-01-01T00:00+23:59",
    "1e9h",
    '"',
    "[",
    "job:",
    "\x00",
)


def test_an_odd_address_is_answered(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    for path in (*PAGES, "job", "run", "live"):
        for name in ("q", "skip", "span", "until", "name", "id", "page", "root", "self"):
            for value in ODD if path != "live" else ():
                answer = visitor.get(f"/{path}", params={name: value})
                assert answer.status_code in (200, 404), (path, name, value, answer.text)
    for action in ("requeue", "purge"):
        assert visitor.get(f"/do/{action}?until=yesterday").status_code == 404


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "..\\app.py"])
def test_only_static_files_are_served(visit: Callable[..., Visitor], name: str) -> None:
    answer = visit().get(f"/static/{name}")
    assert answer.status_code == 404
    assert "Starlette" not in answer.text


def test_a_host_or_an_origin_that_cannot_be_read_is_refused(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    for host in ("[::1", "]", "local host", "", "@localhost@evil.example"):
        assert visitor.get("/", headers={**HTML, "host": host}).status_code == 403
    assert visitor.act("pause", headers={"origin": "http://[::1"}).status_code == 403


def test_without_credentials_only_browsers_on_this_machine_are_served(visit: Callable[..., Visitor]) -> None:
    assert visit().get("/").status_code == 200
    for address in ("http://evil.example", "http://192.0.2.7", "http://localhost.evil.example"):
        assert visit(address=address).get("/").status_code == 403  # a name that leads to this machine: DNS rebinding


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "jobs.example", ""])
def test_a_host_that_others_can_reach_is_not_served_without_credentials(whole: Shop, host: str) -> None:
    with pytest.raises(CannotServe, match="give credentials"):
        serve(whole.module.app, host, 0, credentials=Credentials())


# -- who it is


def test_nothing_is_shown_without_credentials(visit: Callable[..., Visitor]) -> None:
    visitor = visit(credentials=USERS, address="http://jobs.example")
    open_to_all = {"/login", "/health"}
    for path in set(addresses(visitor.app, "GET")) - open_to_all:
        answer = visitor.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login?after=%2F")
        assert visitor.do("GET", path).status_code == 401, path
    for path in set(addresses(visitor.app, "POST")) - {"/login", "/logout"}:
        assert visitor.do("POST", path).status_code == 401, path
    assert visitor.get("/health").json()["ok"]


def test_a_password_lets_in_and_the_session_ends_with_a_log_out(visit: Callable[..., Visitor]) -> None:
    visitor = visit(credentials=USERS)
    answer = visitor.log_in("olaf", "act")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert visitor.get("/jobs").status_code == 200
    visitor.do("POST", "/logout", data={"csrf": visitor.csrf()}, headers=HTML)
    assert visitor.get("/jobs").status_code == 303


def test_cookies_are_for_https_only_unless_it_is_a_loopback_server(visit: Callable[..., Visitor]) -> None:
    assert "Secure" in visit(credentials=USERS, secure_cookies=True).get("/login").headers["set-cookie"]


def test_a_forged_or_foreign_session_is_none(visit: Callable[..., Visitor]) -> None:
    other = visit(credentials=USERS)
    other.log_in("olaf", "act")
    visitor = visit(credentials=USERS)
    visitor.client.cookies.set(COOKIE, other.client.cookies[COOKIE])  # signed with another secret
    assert visitor.get("/jobs").status_code == 303
    visitor.client.cookies.set(COOKIE, "e30.e30")
    assert visitor.get("/jobs").status_code == 303


def test_a_login_never_leads_to_another_site(visit: Callable[..., Visitor]) -> None:
    for after in ("//evil.example", "https://evil.example", "/\\evil.example", "", "@evil.example", ".evil.example"):
        visitor = visit(credentials=USERS)
        data = {"name": "olaf", "password": "act", "csrf": visitor.csrf("/login"), "after": after}
        assert visitor.do("POST", "/login", data=data, headers=HTML).headers["location"] == "/"
    for after in ("/\t/evil.example", "/\n//evil.example", "/\r\nset-cookie: a=b", "/./\\evil.example"):
        visitor = visit(credentials=USERS)
        data = {"name": "olaf", "password": "act", "csrf": visitor.csrf("/login"), "after": after}
        answer = visitor.do("POST", "/login", data=data, headers=HTML)
        assert not re.search(r"[\s\\]|^//", answer.headers["location"])  # browsers remove white space
        assert "a=b" not in answer.headers.get("set-cookie", "")


def test_guessing_is_slowed_down(visit: Callable[..., Visitor]) -> None:
    visitor = visit(credentials=USERS)
    answers = [visitor.log_in("olaf", f"guess {number}").status_code for number in range(6)]
    assert answers == [403] * 5 + [429]
    refused = visitor.log_in("olaf", "act")  # not even with the right one
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60


def test_simultaneous_guesses_are_slowed_down_too(visit: Callable[..., Visitor]) -> None:
    visitor = visit(credentials=USERS)
    token = visitor.csrf("/login")

    async def guess() -> list[int]:
        data = {"name": "olaf", "password": "guess", "csrf": token}
        some = [visitor.client.post("/login", data=data, headers=HTML) for _ in range(30)]
        return [one.status_code for one in await asyncio.gather(*some)]

    assert sorted(visitor.loop.run_until_complete(guess())) == [403] * 5 + [429] * 25


def test_a_token_lets_programs_in(visit: Callable[..., Visitor]) -> None:
    visitor = visit(credentials=USERS)
    good = {"authorization": f"Bearer {TOKEN}"}
    assert "celery_queue_length" in visitor.do("GET", "/metrics", headers=good).text
    assert visitor.do("POST", "/do/pause", headers=good).status_code == 403  # of a viewer
    assert visitor.do("GET", "/metrics", headers={"authorization": "Bearer wrong"}).status_code == 401


# -- who may do what


@pytest.mark.parametrize("options", [{"credentials": USERS}, {"read_only": True}])
def test_a_read_only_user_is_refused_every_action(
    visit: Callable[..., Visitor], whole: Shop, options: dict[str, Any]
) -> None:
    visitor = visit(**options)
    if "credentials" in options:
        visitor.log_in("vera", "look")
    job = whole.name("cleanup")
    asked = {"job": job, "entry": "x", "worker": "x", "run": "x"}
    headers = {"x-csrf-token": visitor.csrf(), "origin": "http://localhost"}
    for path in set(addresses(visitor.app, "POST")) - {"/login", "/logout"}:
        assert visitor.do("POST", path, params=asked, headers=headers).status_code == 403, path
        assert visitor.get(path, params=asked).status_code == 403, path
    for path in PAGES:
        assert "/do/" not in visitor.get(f"/{path}").text
    assert whole.job("cleanup").disabled is None


def test_an_action_needs_the_token_of_its_own_session_and_origin(visit: Callable[..., Visitor], whole: Shop) -> None:
    visitor, other = visit(credentials=USERS), visit(credentials=USERS)
    for one in (visitor, other):
        one.log_in("olaf", "act")
    for headers in (
        {},
        {"x-csrf-token": ""},
        {"x-csrf-token": "\xe9".encode("latin-1")},
        {"x-csrf-token": other.csrf()},
        {"x-csrf-token": visitor.csrf(), "origin": "http://evil.example"},
        {"x-csrf-token": visitor.csrf(), "origin": "null"},
        {"x-csrf-token": visitor.csrf(), "sec-fetch-site": "cross-site"},
    ):
        for path in addresses(visitor.app, "POST"):
            answer = visitor.do("POST", path, params={"job": whole.name("cleanup")}, headers=headers)
            assert answer.status_code == 403, (path, headers)
    assert not whole.client.status(depths=False).paused
    assert visitor.get("/jobs").status_code == 200  # not logged out either


def test_the_audit_has_the_name_of_who_acted(visit: Callable[..., Visitor], whole: Shop) -> None:
    visitor = visit(credentials=USERS)
    visitor.log_in("olaf", "act")
    assert visitor.act(f"disable?job={whole.name('cleanup')}", data={"reason": "x"}).json()["done"]
    assert visitor.act(f"enable?job={whole.name('cleanup')}").status_code == 200
    assert [one.who for one in whole.client.audit(2)] == ["olaf", "olaf"]


def test_an_unknown_job_or_action_is_reported(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    assert visitor.act("enable?job=nothing").status_code == 422
    assert visitor.act("explode").status_code == 404
    assert visitor.get("/job?name=nothing").status_code == 404


# -- arguments


@pytest.mark.parametrize(
    ("setting", "shown"), [("redacted", "•••"), ("hidden", "hidden"), ("builtins:repr", "hunter2")]
)
def test_how_arguments_are_shown_is_a_setting(
    visit: Callable[..., Visitor], whole: Shop, setting: str, shown: str
) -> None:
    app = whole.module.app
    whole.client.trigger(whole.name("charge_card"), ["3"], {"token": "hunter2"})
    letter = until(lambda: whole.client.dead_letters(whole.name("charge_card")), message="it failed")[0]
    app.conf.orchestration_dashboard_arguments = setting
    try:
        text = visit().get(f"/run?id={letter.id}").text
    finally:
        app.conf.orchestration_dashboard_arguments = None
    assert shown in text
    assert ("hunter2" in text) == (setting == "builtins:repr")


def test_errors_and_arguments_that_look_like_html_stay_text(visit: Callable[..., Visitor], whole: Shop) -> None:
    text, job = "0<script>alert('x')</script>", whole.name("charge_card")
    run = whole.client.trigger(job, [text], {"token": "hunter2"}).run_id
    until(lambda: any(one.id == run for one in whole.client.dead_letters(job)), message="it failed")
    visitor = visit()
    for path in ("", "jobs", "runs", "letters", f"run?id={run}", f"job?name={job}", f"runs?q={text}"):
        page = visitor.get(f"/{path}").text
        assert "&lt;script&gt;alert(" in page
        assert "<script>alert(" not in page
        assert "hunter2" not in page


# -- in other apps


def test_it_can_be_mounted_under_any_prefix_with_the_hosts_own_users(
    visit: Callable[..., Visitor], whole: Shop
) -> None:
    async def role_of(request: Any) -> Identity | None:
        name = request.headers.get("x-user")
        return None if name is None else Identity(name, "operator" if name == "olaf" else "viewer")

    inner = create_app(whole.module.app, role_of=role_of, secure_cookies=False)
    visitor = visit(Starlette(routes=[Mount("/ops/jobs", app=inner)]))
    assert visitor.get("/ops/jobs/").status_code == 403
    olaf = {**HTML, "x-user": "olaf"}
    for path in (*PAGES, f"job?name={whole.name('process_data')}", "do/pause"):
        page = visitor.get(f"/ops/jobs/{path}", headers=olaf)
        assert page.status_code == 200
        assert 'name="csrf"' in page.text
        links = re.findall(r'(?:href|src|action)="([^"#]+)"', page.text)
        assert [one for one in links if not urljoin(f"/ops/jobs/{path}", one).startswith("/ops/jobs/")] == []
        assert links
    page = visitor.get("/ops/jobs/", headers=olaf)
    assert visitor.get("/ops/jobs/static/style.css").status_code == 200
    token = re.search(r'name="csrf" content="([^"]+)"', page.text)
    assert token
    address = f"/ops/jobs/do/enable?job={whole.name('cleanup')}"
    for user, status in (("vera", 403), ("olaf", 200)):
        answer = visitor.do("POST", address, headers={"x-csrf-token": token[1], "x-user": user})
        assert answer.status_code == status
    assert whole.client.audit(1)[0].who == "olaf"
    visitor.loop.run_until_complete(inner.state.dashboard.close())


def test_a_login_under_a_prefix_stays_there(visit: Callable[..., Visitor], whole: Shop) -> None:
    inner = create_app(whole.module.app, credentials=USERS, secure_cookies=False)
    visitor = visit(Starlette(routes=[Mount("/ops", app=inner)]))
    answer = visitor.get("/ops/runs?q=state:waiting")
    assert answer.headers["location"] == "/ops/login?after=%2Fruns%3Fq%3Dstate%3Awaiting"
    assert "Path=/ops;" in answer.headers.get("set-cookie", "") or "set-cookie" not in answer.headers
    data = {"name": "olaf", "password": "act", "csrf": visitor.csrf("/ops/login"), "after": "/runs?q=state:waiting"}
    answer = visitor.do("POST", "/ops/login", data=data, headers=HTML)
    assert answer.headers["location"] == "/ops/runs?q=state:waiting"
    assert "Path=/ops;" in answer.headers["set-cookie"]
    assert visitor.get("/ops/jobs").status_code == 200
    visitor.loop.run_until_complete(inner.state.dashboard.close())


# -- looking


def test_nobody_looks_at_the_ledger_while_nobody_watches_and_one_look_serves_all(whole: Shop) -> None:
    async def play() -> None:
        dashboard: Dashboard = create_app(whole.module.app, secure_cookies=False).state.dashboard
        live = dashboard.live
        page = {"key": "overview"}

        async def render(_: Any) -> dict[str, str]:
            page["rendered"] = page.get("rendered", 0) + 1  # type: ignore[assignment,operator]
            return {"all": "the same"}

        streams = [live.events("overview", render) for _ in range(10)]
        for stream in streams:
            assert "retry" in await anext(stream)
        for stream in streams:
            assert '"all": "the same"' in await anext(stream)
        reads = live.reads
        assert reads <= 3
        assert page["rendered"] <= reads  # type: ignore[operator]
        assert live.watchers == 10
        for stream in streams:
            await stream.aclose()
        assert live.watchers == 0
        await asyncio.sleep(1.5)  # the time of two reads: none may come
        reads = live.reads
        await asyncio.sleep(1.5)
        assert live.reads == reads
        await dashboard.close()

    asyncio.run(play())


def test_an_outage_and_its_end_are_reported(tmp_path: Path) -> None:
    async def play(found: Shop) -> None:
        dashboard: Dashboard = create_app(found.module.app, secure_cookies=False).state.dashboard

        async def render(_: Any) -> dict[str, str]:
            return {"all": "well"}

        stream = dashboard.live.events("x", render)

        async def comes(kind: str) -> None:
            async for event in stream:
                if event.startswith(f"event: {kind}\n"):
                    return

        await asyncio.wait_for(comes("blocks"), 10)
        await asyncio.to_thread(found.broker.redis.stop)
        await asyncio.wait_for(comes("down"), 20)
        await asyncio.to_thread(found.broker.redis.start)
        await asyncio.wait_for(comes("up"), 20)
        await stream.aclose()
        await dashboard.close()

    with shop(tmp_path) as found:
        asyncio.run(play(found))
