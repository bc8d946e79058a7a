"""The pages to log in and out."""

from __future__ import annotations

import math
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from celery_orchestration.web import security
from celery_orchestration.web.access import Access, Guest, Refused
from celery_orchestration.web.client_pool import ClientPool
from celery_orchestration.web.rendering import Rendering


class Login:
    def __init__(self, access: Access, rendering: Rendering, clients: ClientPool) -> None:
        self._access, self._rendering, self._clients = access, rendering, clients

    async def show(self, request: Request, guest: Guest) -> Response:
        if not self._access.credentials:
            return RedirectResponse(f"{security.root_path(request)}/", HTTPStatus.SEE_OTHER)
        return self._page(request, guest, "")

    def _page(
        self, request: Request, guest: Guest, problem: str, status: HTTPStatus = HTTPStatus.OK, wait: int = 0
    ) -> Response:
        plain = request.url.scheme == "http" and request.headers.get("x-forwarded-proto") != "https"
        if self._access.secure_cookies and plain and not security.is_loopback(security.named_host(request)):
            problem = problem or "Browsers keep the login over HTTPS only: put a proxy with TLS before this server."
        after = request.query_params.get("after", "")
        csrf = self._access.sessions.csrf(guest.session)
        text = self._rendering.login(security.root_path(request), csrf, after, problem)
        return HTMLResponse(text, status, {"retry-after": str(wait)} if wait else None)

    async def log_in(self, request: Request, guest: Guest) -> Response:
        access = self._access
        if not access.credentials:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no login here.")
        fields = await security.form(request)
        access.check_csrf(request, guest, fields)
        name = fields.get("name", "")
        tried = [security.client_address(request), f"name {name[:100]}"]
        if wait := math.ceil(access.attempts.begin(tried)):
            text = f"Too many attempts. Try again in {wait} seconds."
            return self._page(request, guest, text, HTTPStatus.TOO_MANY_REQUESTS, wait)
        password = fields.get("password", "")
        found = await self._clients.run(lambda: access.credentials.with_password(name, password))
        if found is None:
            return self._page(request, guest, "Name or password is wrong.", HTTPStatus.FORBIDDEN)
        access.attempts.succeeded(tried)
        _, cookie = access.sessions.begin(found.name)
        after = fields.get("after", "")
        inside = after if after.startswith("/") and not after.startswith(("//", "/\\")) else "/"
        response = RedirectResponse(f"{security.root_path(request)}{inside}", HTTPStatus.SEE_OTHER)
        access.set_cookie(request, response, cookie)
        return response

    async def log_out(self, request: Request, guest: Guest) -> Response:
        self._access.check_csrf(request, guest, await security.form(request))
        response = RedirectResponse(f"{security.root_path(request)}/login", HTTPStatus.SEE_OTHER)
        self._access.set_cookie(request, response, self._access.sessions.begin("")[1])
        return response
