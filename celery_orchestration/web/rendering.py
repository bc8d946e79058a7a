"""Renders templates: whole pages, and the blocks of them that change.

A block named ``live_x`` is the content of the element with ``data-live="x"``. The streams render blocks alone, so that
a loaded page and its updates come from the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from celery_orchestration.job import reasons
from celery_orchestration.ledger.records import FIGURES
from celery_orchestration.web import formatting
from celery_orchestration.web.actions import Plan
from celery_orchestration.web.pages import Page
from celery_orchestration.web.pages.all import PAGES
from celery_orchestration.web.svg import spark

_LIVE = "live_"


class Rendering:
    def __init__(self, templates: Path, namespace: str, static: Path) -> None:
        self._env = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=formatting.finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._env.globals |= {
            "menu": [page for page in PAGES if page.listed],
            "namespace": namespace,
            "version": _version(static),
            "many": formatting.many,
            "query": formatting.query,
            "state_of": formatting.state_of,
            "kind_of": reasons.kind_of,
            "figures": FIGURES,
            "waits_for": lambda rule: reasons.past([rule]),
            "spark": spark,
            "min": min,
            "max": max,
        }
        self._env.filters |= {
            "number": formatting.number,
            "lasting": formatting.lasting,
            "moment": formatting.moment,
            "since": formatting.since,
            "clock_time": formatting.clock_time,
            "short": formatting.short,
            "brief": formatting.brief,
        }
        self._env.globals["ui"] = self._env.get_template("ui.html").module

    def page(self, page: Page, context: Mapping[str, Any]) -> str:
        return self._env.get_template(page.template).render(context)

    def blocks(self, page: Page, context: Mapping[str, Any]) -> dict[str, str]:
        """The parts that may change, by name."""
        template = self._env.get_template(page.template)
        found = {
            name.removeprefix(_LIVE): _block(template, name, context)
            for name in template.blocks
            if name.startswith(_LIVE)
        }
        return {**found, "shell": self._env.get_template("shell.html").render(context)}

    def plan(self, plan: Plan, address: str, csrf: str, root: str, whole: bool, back: str) -> str:
        template = "do.html" if whole else "plan.html"
        return self._env.get_template(template).render(plan=plan, address=address, csrf=csrf, root=root, back=back)

    def done(self, root: str, message: str, back: str) -> str:
        return self._env.get_template("done.html").render(root=root, message=message, back=back)

    def login(self, root: str, csrf: str, after: str, problem: str) -> str:
        return self._env.get_template("login.html").render(root=root, csrf=csrf, after=after, problem=problem)

    def error_page(self, root: str, status: int, phrase: str, why: str, outage: bool) -> str:
        template = self._env.get_template("error.html")
        return template.render(root=root, status=status, phrase=phrase, why=why, outage=outage)


def _block(template: Template, name: str, context: Mapping[str, Any]) -> str:
    return "".join(template.blocks[name](template.new_context(dict(context)))).strip()


def _version(static: Path) -> str:
    """The version of the static files, for browsers' caches."""
    found = hashlib.sha256()
    for path in sorted(static.glob("*")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
