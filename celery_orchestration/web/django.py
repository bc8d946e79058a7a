"""The dashboard in a Django project, under ASGI, with Django's own users.

In ``asgi.py``::

    from celery_orchestration.web.django import with_dashboard

    application = with_dashboard(get_asgi_application(), celery_app, prefix="/jobs")

Users who may log in to the admin site (staff) may look, superusers may act. ``role_of`` replaces this rule.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from celery import Celery
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from celery_orchestration.web.app import create_app
from celery_orchestration.web.auth import Identity, Role


def role_of_user(user: Any) -> Role | None:
    if not user.is_active or not user.is_staff:
        return None
    return "operator" if user.is_superuser else "viewer"


def with_dashboard(
    django: ASGIApp,
    celery_app: Celery,
    *,
    prefix: str,
    role_of: Callable[[Any], Role | None] = role_of_user,
    **options: Any,
) -> ASGIApp:
    """Django's application with the dashboard at `prefix`. `role_of`: returns the role of a Django user. `options`:
    those of :func:`celery_orchestration.web.app.create_app`."""
    prefix = f"/{prefix.strip('/')}"

    async def identity(request: Request) -> Identity | None:
        return await run_in_threadpool(_identity, request, role_of)

    dashboard = create_app(celery_app, role_of=identity, **options)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == prefix or path.startswith(f"{prefix}/")):
            inside = {**scope, "root_path": f"{scope.get('root_path', '')}{prefix}"}
            if path == prefix:
                inside["path"] = f"{prefix}/"
            await dashboard(inside, receive, send)
        else:
            await django(scope, receive, send)

    return application


def _identity(request: Request, role_of: Callable[[Any], Role | None]) -> Identity | None:
    key = request.cookies.get(settings.SESSION_COOKIE_NAME)
    if not key:
        return None
    asked = HttpRequest()
    asked.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(asked)
    role = role_of(user) if user.is_authenticated else None
    return None if role is None else Identity(user.get_username(), role)
