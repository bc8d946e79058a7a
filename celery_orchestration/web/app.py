"""The dashboard as an ASGI app: served by ``server.py``, or mounted under any prefix of another one.

Every request is: who is it (``auth.py``), may they, then a page, a stream, or an action. Pages and actions ask the
ledger in threads (``desk.py``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from celery_orchestration.errors import LedgerError, OrchestrationError, WrongUse
from celery_orchestration.job.task import read_settings
from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.acting_user import current_user
from celery_orchestration.web import auth, health, metrics, security
from celery_orchestration.web.actions import ACTIONS, carry_out
from celery_orchestration.web.auth import Attempts, Credentials, Identity, Role, Session, Sessions
from celery_orchestration.web.desk import Desk
from celery_orchestration.web.live import Live, Snapshot
from celery_orchestration.web.pages import Look, Page
from celery_orchestration.web.pages.all import PAGES
from celery_orchestration.web.redaction import function_of
from celery_orchestration.web.rendering import Rendering
from celery_orchestration.web.show import query, state_of

logger = get_logger(__name__)

HERE = Path(__file__).parent
COOKIE = "orchestration_session"
#: Of the host app: who somebody is, from a request.
RoleOf = Callable[[Request], "Identity | Role | Awaitable[Identity | Role | None] | None"]


@dataclass(frozen=True)
class Guest:
    """Who makes a request, and the session for CSRF tokens; `cookie`: to be set, if the session is new."""

    identity: Identity | None
    session: Session
    cookie: str | None


class Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def create_app(
    celery_app: Celery,
    *,
    credentials: Credentials | None = None,
    role_of: RoleOf | None = None,
    read_only: bool = False,
    secure_cookies: bool = True,
    secret: bytes | None = None,
) -> Starlette:
    """`credentials`: who may log in. `role_of`: the host app's own authentication, instead. With neither, only browsers
    on this machine are served, and all of them may act.

    `read_only`: nobody may act. `secure_cookies`: browsers send them over HTTPS only. `secret`: signs the cookies; the
    same for several processes, and across restarts.
    """
    return Dashboard(celery_app, credentials, role_of, read_only, secure_cookies, secret).app


class Dashboard:
    def __init__(
        self,
        celery_app: Celery,
        credentials: Credentials | None,
        role_of: RoleOf | None,
        read_only: bool,
        secure_cookies: bool,
        secret: bytes | None,
    ) -> None:
        settings = read_settings(celery_app)
        self._celery = celery_app
        self._credentials = credentials or Credentials()
        self._role_of = role_of
        self._read_only = read_only
        self._secure = secure_cookies
        self._sessions, self._attempts = Sessions(secret), Attempts()
        self._redact = function_of(settings.dashboard_arguments)
        self._desk = Desk(celery_app)
        self._live: Live | None = None
        self._rendering = Rendering(HERE / "templates", settings.namespace, HERE / "static")
        self.app = Starlette(
            routes=self._routes(),
            middleware=[Middleware(security.SecurityHeaders)],
            exception_handlers={Exception: _failed},
            lifespan=self._lifespan,
        )
        self.app.state.dashboard = self

    def _routes(self) -> list[Route | Mount]:
        pages = [
            Route(f"/{page.path}", partial(self._answer, partial(self._page, page)), name=page.name) for page in PAGES
        ]
        return [
            *pages,
            Route("/live", partial(self._answer, self._stream)),
            Route("/do/{action}", partial(self._answer, self._plan), methods=["GET"]),
            Route("/do/{action}", partial(self._answer, self._act), methods=["POST"]),
            Route("/login", partial(self._answer, self._show_login), methods=["GET"]),
            Route("/login", partial(self._answer, self._login), methods=["POST"]),
            Route("/logout", partial(self._answer, self._logout), methods=["POST"]),
            Route("/health", self._health),
            Route("/metrics", partial(self._answer, self._metrics)),
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
        ]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        if self._live is not None:
            await self._live.close()
        self._desk.close()

    def end_streams(self) -> None:
        if self._live is not None:
            self._live.end_streams()

    @property
    def live(self) -> Live:
        """Made within the server's event loop. A host app may not tell us when that begins."""
        if self._live is None:
            self._live = Live(self._desk)
        return self._live

    # -- every request

    async def _answer(self, handler: Callable[[Request, Guest], Awaitable[Response]], request: Request) -> Response:
        try:
            self._check_host(request)
            guest = await self._guest(request)
            response = await handler(request, guest)
        except Refused as exc:
            return self._trouble(request, exc.status, str(exc))
        except security.TooLarge:
            return self._trouble(request, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request is too large.")
        except WrongUse as exc:
            return self._trouble(request, HTTPStatus.NOT_FOUND, str(exc))
        except OrchestrationError as exc:
            return self._trouble(request, HTTPStatus.SERVICE_UNAVAILABLE, str(exc), outage=isinstance(exc, LedgerError))
        if guest.cookie is not None and COOKIE not in _cookies_set(response):
            self._set_cookie(request, response, guest.cookie)
        return response

    def _check_host(self, request: Request) -> None:
        """Without credentials: a page elsewhere must not reach us through a name that leads to this machine."""
        if self._credentials or self._role_of:
            return
        client = request.client.host if request.client else ""
        if not security.is_loopback(security.named_host(request)) or not (security.is_loopback(client) or client == ""):
            raise Refused(
                HTTPStatus.FORBIDDEN, "Without credentials the dashboard serves browsers on its own machine only."
            )

    async def _guest(self, request: Request) -> Guest:
        session = self._sessions.read(request.cookies.get(COOKIE, ""))
        cookie = None
        if session is None:
            session, cookie = self._sessions.begin("")
        identity = await self._identity(request, session)
        if identity is not None and self._read_only:
            identity = Identity(identity.name, "viewer")
        return Guest(identity, session, cookie)

    async def _identity(self, request: Request, session: Session) -> Identity | None:
        if self._role_of is not None:
            found = self._role_of(request)
            who = await found if inspect.isawaitable(found) else found
            return Identity("", who) if isinstance(who, str) else who
        if not self._credentials:
            return Identity(current_user(), "operator")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._with_token(request, token.strip())
        return self._credentials.again(session.name) if session.name else None

    def _with_token(self, request: Request, token: str) -> Identity | None:
        tried = [_address(request)]
        if self._attempts.begin(tried):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "Too many attempts. Try again in a minute.")
        found = self._credentials.with_token(token)
        if found is not None:
            self._attempts.succeeded(tried)
        return found

    def _viewer(self, request: Request, guest: Guest) -> Identity:
        if guest.identity is None:
            if self._role_of is not None:
                raise Refused(HTTPStatus.FORBIDDEN, "You may not see this dashboard.")
            raise Refused(HTTPStatus.UNAUTHORIZED, "Log in first.")
        return guest.identity

    def _trouble(self, request: Request, status: HTTPStatus, why: str, outage: bool = False) -> Response:
        root = _root(request)
        if status == HTTPStatus.UNAUTHORIZED and _wants_page(request):
            after = f"{request.url.path.removeprefix(root)}{'?' + request.url.query if request.url.query else ''}"
            return RedirectResponse(f"{root}/login{query(after=after)}", HTTPStatus.SEE_OTHER)
        if not _wants_page(request):
            return JSONResponse({"problem": why}, status)
        return HTMLResponse(self._rendering.trouble(root, status.value, status.phrase, why, outage), status)

    def _set_cookie(self, request: Request, response: Response, value: str) -> None:
        response.set_cookie(
            COOKIE,
            value,
            max_age=auth.SESSION_SECONDS,
            path=_root(request) or "/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )

    # -- pages

    def _shell(self, request: Request, guest: Guest, page: Page) -> dict[str, Any]:
        """What a whole page needs beside what it shows: not in blocks that browsers share."""
        return {
            "csrf": self._sessions.csrf(guest.session),
            "identity": guest.identity,
            "may_log_out": bool(self._credentials),
            "live_query": query(**{**request.query_params, "page": page.name}),
            "read_only": self._read_only,
        }

    def _context(self, page: Page, root: str, asked: Mapping[str, str], may_act: bool) -> dict[str, Any]:
        return {"page": page, "root": root, "asked": asked, "may_act": may_act}

    async def _page(self, page: Page, request: Request, guest: Guest) -> Response:
        identity = self._viewer(request, guest)
        asked = dict(request.query_params)
        context = self._context(page, _root(request), asked, identity.may_act)
        snapshot = await self.live.snapshot()
        shell = self._shell(request, guest, page)

        def make(client: Orchestration) -> str:
            seen = self._view(page, client, snapshot, asked)
            look = Look(client, snapshot, self.live.histories, self._redact)
            return self._rendering.page(page, {**context, **shell, **seen, **page.extra(look, asked)})

        return HTMLResponse(await self._desk.ask(make))

    def _view(self, page: Page, client: Orchestration, snapshot: Snapshot, asked: Mapping[str, str]) -> dict[str, Any]:
        look = Look(client, snapshot, self.live.histories, self._redact)
        return {
            "status": snapshot.status,
            "causes": snapshot.causes,
            "prefix": look.prefix,
            "known": _states(snapshot),
            **page.view(look, asked),
        }

    async def _stream(self, request: Request, guest: Guest) -> Response:
        identity = self._viewer(request, guest)
        asked = dict(request.query_params)
        name = asked.pop("page", "")
        page = next((one for one in PAGES if one.name == name), PAGES[0])
        root, may_act = _root(request), identity.may_act
        context = self._context(page, root, asked, may_act)

        async def render(snapshot: Snapshot) -> Mapping[str, str]:
            return await self._desk.ask(
                lambda client: self._rendering.blocks(page, {**context, **self._view(page, client, snapshot, asked)})
            )

        key = root, page.name, tuple(sorted(asked.items())), may_act
        return StreamingResponse(
            self.live.events(key, render),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"},
        )

    async def _health(self, _: Request) -> Response:
        """For probes, which have no credentials."""
        status, document = await self._desk.ask(lambda client: health.answer(client.health()))
        return Response(document, status, media_type="application/json")

    async def _metrics(self, request: Request, guest: Guest) -> Response:
        self._viewer(request, guest)
        text = await self._desk.ask(lambda client: metrics.text(client.measured))
        return Response(text, media_type=metrics.CONTENT_TYPE_LATEST)

    # -- actions

    def _actor(self, request: Request, guest: Guest) -> Identity:
        identity = self._viewer(request, guest)
        if not identity.may_act:
            raise Refused(HTTPStatus.FORBIDDEN, "You may look, but not change anything.")
        if request.path_params["action"] not in ACTIONS:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such action.")
        return identity

    async def _plan(self, request: Request, guest: Guest) -> Response:
        self._actor(request, guest)
        name, asked = request.path_params["action"], dict(request.query_params)
        plan = await self._desk.ask(lambda client: ACTIONS[name].plan(client, asked))
        csrf, root = self._sessions.csrf(guest.session), _root(request)
        address = f"{root}/do/{name}{query(**asked)}"
        whole = _wants_page(request)
        return HTMLResponse(self._rendering.plan(plan, address, csrf, root, whole, back=_back(request)))

    async def _act(self, request: Request, guest: Guest) -> Response:
        identity = self._actor(request, guest)
        fields = await security.form(request)
        self._check_csrf(request, guest, fields)
        name = request.path_params["action"]
        given = {**fields, **dict(request.query_params)}
        try:
            said = await self._desk.ask(lambda client: carry_out(client, name, given), identity.name or None)
        except WrongUse as exc:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from None
        finally:
            self.live.soon()
        if _wants_page(request):
            return HTMLResponse(self._rendering.done(_root(request), said, back=_back(request)))
        return JSONResponse({"done": said})

    def _check_csrf(self, request: Request, guest: Guest, fields: Mapping[str, str]) -> None:
        token = request.headers.get("x-csrf-token") or fields.get("csrf", "")
        with_header = request.headers.get("authorization", "").lower().startswith("bearer ")  # no browser adds that
        if with_header and self._credentials:
            return
        if not security.is_same_origin(request) or not self._sessions.is_csrf(guest.session, token):
            raise Refused(HTTPStatus.FORBIDDEN, "This page is too old, or not ours. Load it again.")

    # -- who it is

    async def _show_login(self, request: Request, guest: Guest) -> Response:
        if not self._credentials:
            return RedirectResponse(f"{_root(request)}/", HTTPStatus.SEE_OTHER)
        return self._login_page(request, guest, "")

    def _login_page(
        self, request: Request, guest: Guest, problem: str, status: HTTPStatus = HTTPStatus.OK, wait: int = 0
    ) -> Response:
        plain = request.url.scheme == "http" and request.headers.get("x-forwarded-proto") != "https"
        if self._secure and plain and not security.is_loopback(security.named_host(request)):
            problem = problem or "Browsers keep the login over HTTPS only: put a proxy with TLS before this server."
        after = request.query_params.get("after", "")
        text = self._rendering.login(_root(request), self._sessions.csrf(guest.session), after, problem)
        return HTMLResponse(text, status, {"retry-after": str(wait)} if wait else None)

    async def _login(self, request: Request, guest: Guest) -> Response:
        if not self._credentials:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no login here.")
        fields = await security.form(request)
        self._check_csrf(request, guest, fields)
        name = fields.get("name", "")
        tried = [_address(request), f"name {name[:100]}"]
        if wait := math.ceil(self._attempts.begin(tried)):
            text = f"Too many attempts. Try again in {wait} seconds."
            return self._login_page(request, guest, text, HTTPStatus.TOO_MANY_REQUESTS, wait)
        password = fields.get("password", "")
        found = await self._desk.run(lambda: self._credentials.with_password(name, password))
        if found is None:
            return self._login_page(request, guest, "Name or password is wrong.", HTTPStatus.FORBIDDEN)
        self._attempts.succeeded(tried)
        _, cookie = self._sessions.begin(found.name)
        after = fields.get("after", "")
        inside = after if after.startswith("/") and not after.startswith(("//", "/\\")) else "/"
        response = RedirectResponse(f"{_root(request)}{inside}", HTTPStatus.SEE_OTHER)
        self._set_cookie(request, response, cookie)
        return response

    async def _logout(self, request: Request, guest: Guest) -> Response:
        self._check_csrf(request, guest, await security.form(request))
        response = RedirectResponse(f"{_root(request)}/login", HTTPStatus.SEE_OTHER)
        self._set_cookie(request, response, self._sessions.begin("")[1])
        return response


async def _failed(_: Request, __: Exception) -> Response:
    """An error that nobody expected. The server logs it; the middleware is not asked any more."""
    return PlainTextResponse("Something went wrong here: see the log of the dashboard.\n", 500, security.HEADERS)


def _root(request: Request) -> str:
    """The prefix under which it is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _address(request: Request) -> str:
    return f"address {request.client.host if request.client else '?'}"


def _wants_page(request: Request) -> bool:
    """Scripts of ours, streams and programs want no whole page."""
    return "text/html" in request.headers.get("accept", "") and "x-csrf-token" not in request.headers


def _back(request: Request) -> str:
    """The page that somebody came from, if it is one of ours."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    came = request.headers.get("referer", "")
    inside = came.startswith(f"{origin}{_root(request)}/") and "/do/" not in came
    return came.removeprefix(origin) if inside else f"{_root(request)}/"


def _cookies_set(response: Response) -> str:
    return " ".join(value for name, value in response.headers.items() if name == "set-cookie")


def _states(snapshot: Snapshot) -> dict[str, str]:
    return {job.name: state_of(job) for job in snapshot.status.jobs}
