"""The dashboard as an ASGI app: served by ``server.py``, or mounted under any prefix of another one.

Every request is identified and authorized (``access.py``), then answered by a page, a stream, or an action. Pages and
actions read the ledger in threads (``client_pool.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
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
from celery_orchestration.job.app import read_settings
from celery_orchestration.operate import Orchestration
from celery_orchestration.web import health, metrics, security
from celery_orchestration.web.access import COOKIE, Access, Guest, Refused, RoleOf
from celery_orchestration.web.actions import ACTIONS, carry_out
from celery_orchestration.web.auth import Credentials, Identity
from celery_orchestration.web.client_pool import ClientPool
from celery_orchestration.web.formatting import query, state_of
from celery_orchestration.web.live import Live, Snapshot
from celery_orchestration.web.login import Login
from celery_orchestration.web.pages import Page, PageData
from celery_orchestration.web.pages.all import PAGES
from celery_orchestration.web.redaction import function_of
from celery_orchestration.web.rendering import Rendering
from celery_orchestration.web.security import root_path

logger = get_logger(__name__)

HERE = Path(__file__).parent


def create_app(
    celery_app: Celery,
    *,
    credentials: Credentials | None = None,
    role_of: RoleOf | None = None,
    read_only: bool = False,
    secure_cookies: bool = True,
    secret: bytes | None = None,
) -> Starlette:
    """`credentials`: who may log in. `role_of`: the host app's own authentication, instead of credentials. With
    neither, only browsers on this machine are served, and all of them may act.

    `read_only`: nobody may act. `secure_cookies`: browsers send cookies over HTTPS only. `secret`: signs the cookies;
    give the same one to several processes, or to keep sessions across restarts.
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
        self._access = Access(credentials, role_of, read_only, secure_cookies, secret)
        self._redact = function_of(settings.dashboard_arguments)
        self._clients = ClientPool(celery_app)
        self._live: Live | None = None
        self._rendering = Rendering(HERE / "templates", settings.namespace, HERE / "static")
        self._login = Login(self._access, self._rendering, self._clients)
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
            Route("/login", partial(self._answer, self._login.show), methods=["GET"]),
            Route("/login", partial(self._answer, self._login.log_in), methods=["POST"]),
            Route("/logout", partial(self._answer, self._login.log_out), methods=["POST"]),
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
        self._clients.close()

    def end_streams(self) -> None:
        if self._live is not None:
            self._live.end_streams()

    @property
    def live(self) -> Live:
        """Created inside the server's event loop. A host app may not run our startup, so this is done on first use."""
        if self._live is None:
            self._live = Live(self._clients)
        return self._live

    # -- every request

    async def _answer(self, handler: Callable[[Request, Guest], Awaitable[Response]], request: Request) -> Response:
        try:
            self._access.check_host(request)
            guest = await self._access.guest(request)
            response = await handler(request, guest)
        except Refused as exc:
            return self._error_answer(request, exc.status, str(exc))
        except security.TooLarge:
            return self._error_answer(request, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request is too large.")
        except WrongUse as exc:
            return self._error_answer(request, HTTPStatus.NOT_FOUND, str(exc))
        except OrchestrationError as exc:
            return self._error_answer(
                request, HTTPStatus.SERVICE_UNAVAILABLE, str(exc), outage=isinstance(exc, LedgerError)
            )
        if guest.cookie is not None and COOKIE not in _cookies_set(response):
            self._access.set_cookie(request, response, guest.cookie)
        return response

    def _error_answer(self, request: Request, status: HTTPStatus, why: str, outage: bool = False) -> Response:
        root = root_path(request)
        if status == HTTPStatus.UNAUTHORIZED and _wants_page(request):
            after = f"{request.url.path.removeprefix(root)}{'?' + request.url.query if request.url.query else ''}"
            return RedirectResponse(f"{root}/login{query(after=after)}", HTTPStatus.SEE_OTHER)
        if not _wants_page(request):
            return JSONResponse({"problem": why}, status)
        return HTMLResponse(self._rendering.error_page(root, status.value, status.phrase, why, outage), status)

    # -- pages

    def _shell(self, request: Request, guest: Guest, page: Page) -> dict[str, Any]:
        """The values of one browser's whole page, which the blocks shared by several browsers must not contain."""
        return {
            "csrf": self._access.sessions.csrf(guest.session),
            "identity": guest.identity,
            "may_log_out": bool(self._access.credentials),
            "live_query": query(**{**request.query_params, "page": page.name}),
            "read_only": self._access.read_only,
        }

    def _context(self, page: Page, root: str, asked: Mapping[str, str], may_act: bool) -> dict[str, Any]:
        return {"page": page, "root": root, "asked": asked, "may_act": may_act}

    async def _page(self, page: Page, request: Request, guest: Guest) -> Response:
        identity = self._access.viewer(guest)
        asked = dict(request.query_params)
        context = self._context(page, root_path(request), asked, identity.may_act)
        snapshot = await self.live.snapshot()
        shell = self._shell(request, guest, page)

        def make(client: Orchestration) -> str:
            seen = self._view(page, client, snapshot, asked)
            data = PageData(client, snapshot, self.live.histories, self._redact)
            return self._rendering.page(page, {**context, **shell, **seen, **page.extra(data, asked)})

        return HTMLResponse(await self._clients.ask(make))

    def _view(self, page: Page, client: Orchestration, snapshot: Snapshot, asked: Mapping[str, str]) -> dict[str, Any]:
        data = PageData(client, snapshot, self.live.histories, self._redact)
        return {
            "status": snapshot.status,
            "causes": snapshot.causes,
            "prefix": data.prefix,
            "known": _states(snapshot),
            **page.view(data, asked),
        }

    async def _stream(self, request: Request, guest: Guest) -> Response:
        identity = self._access.viewer(guest)
        asked = dict(request.query_params)
        name = asked.pop("page", "")
        page = next((one for one in PAGES if one.name == name), PAGES[0])
        root, may_act = root_path(request), identity.may_act
        context = self._context(page, root, asked, may_act)

        async def render(snapshot: Snapshot) -> Mapping[str, str]:
            return await self._clients.ask(
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
        status, document = await self._clients.ask(lambda client: health.answer(client.health()))
        return Response(document, status, media_type="application/json")

    async def _metrics(self, request: Request, guest: Guest) -> Response:
        self._access.viewer(guest)
        text = await self._clients.ask(lambda client: metrics.text(client.measured))
        return Response(text, media_type=metrics.CONTENT_TYPE_LATEST)

    # -- actions

    def _actor(self, request: Request, guest: Guest) -> Identity:
        identity = self._access.operator(guest)
        if request.path_params["action"] not in ACTIONS:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such action.")
        return identity

    async def _plan(self, request: Request, guest: Guest) -> Response:
        self._actor(request, guest)
        name, asked = request.path_params["action"], dict(request.query_params)
        plan = await self._clients.ask(lambda client: ACTIONS[name].plan(client, asked))
        csrf, root = self._access.sessions.csrf(guest.session), root_path(request)
        address = f"{root}/do/{name}{query(**asked)}"
        whole = _wants_page(request)
        return HTMLResponse(self._rendering.plan(plan, address, csrf, root, whole, back=_back(request)))

    async def _act(self, request: Request, guest: Guest) -> Response:
        identity = self._actor(request, guest)
        fields = await security.form(request)
        self._access.check_csrf(request, guest, fields)
        name = request.path_params["action"]
        given = {**fields, **dict(request.query_params)}
        try:
            message = await self._clients.ask(lambda client: carry_out(client, name, given), identity.name or None)
        except WrongUse as exc:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from None
        finally:
            self.live.read_soon()
        if _wants_page(request):
            return HTMLResponse(self._rendering.done(root_path(request), message, back=_back(request)))
        return JSONResponse({"done": message})


async def _failed(_: Request, __: Exception) -> Response:
    """An unexpected error. The server logs it. The middleware does not run for it, so the headers are set here."""
    return PlainTextResponse("Something went wrong here: see the log of the dashboard.\n", 500, security.HEADERS)


def _wants_page(request: Request) -> bool:
    """Whether the answer should be a whole page: not for our scripts, streams and other programs."""
    return "text/html" in request.headers.get("accept", "") and "x-csrf-token" not in request.headers


def _back(request: Request) -> str:
    """The previous page, if it is one of ours."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    came = request.headers.get("referer", "")
    inside = came.startswith(f"{origin}{root_path(request)}/") and "/do/" not in came
    return came.removeprefix(origin) if inside else f"{root_path(request)}/"


def _cookies_set(response: Response) -> str:
    return " ".join(value for name, value in response.headers.items() if name == "set-cookie")


def _states(snapshot: Snapshot) -> dict[str, str]:
    return {job.name: state_of(job) for job in snapshot.status.jobs}
