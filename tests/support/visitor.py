"""Requests to the dashboard over HTTP, within the test's own process."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx

HTML = {"accept": "text/html"}


class Visitor:
    """A browser without a window."""

    def __init__(self, app: Any, address: str = "http://localhost") -> None:
        self.app = app
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=address)
        self.loop = asyncio.new_event_loop()

    def do(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.loop.run_until_complete(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.do("GET", path, **{"headers": HTML, **options})

    def csrf(self, path: str = "/jobs") -> str:
        found = re.search(r'name="csrf" (?:content|value)="([^"]+)"', self.get(path).text)
        assert found
        return found[1]

    def log_in(self, name: str, password: str) -> httpx.Response:
        data = {"name": name, "password": password, "csrf": self.csrf("/login"), "after": "/jobs"}
        return self.do("POST", "/login", data=data, headers=HTML)

    def act(self, action: str, path: str = "/jobs", **options: Any) -> httpx.Response:
        headers = {"x-csrf-token": self.csrf(path), "origin": "http://localhost", **options.pop("headers", {})}
        return self.do("POST", f"/do/{action}", headers=headers, **options)

    def close(self) -> None:
        async def end() -> None:
            await self.client.aclose()
            dashboard = getattr(self.app.state, "dashboard", None) if hasattr(self.app, "state") else None
            if dashboard is not None:
                await dashboard.close()

        self.loop.run_until_complete(end())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
