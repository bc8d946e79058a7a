"""Whole projects with the packages that they use. All foreign code runs in processes of its own."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adoption.project import Project
from support.servers import missing

#: The logs of a module's tests, for the report if one fails.
_open: list[Project] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The default of `make test` is too short for several starts of whole projects."""
    for item in items:
        item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        report.sections += [("logs of the project", found.logs()) for found in _open]
    return report


@pytest.fixture(autouse=True, scope="module")
def _needed_packages(request: pytest.FixtureRequest) -> None:
    """A module lists its packages in ``NEEDS``: if one is missing, it is skipped on a laptop, and fails in CI."""
    for package in getattr(request.module, "NEEDS", ()):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} (pip install 'celery_orchestration[adoption]')")


@pytest.fixture(scope="module")
def open_project(tmp_path_factory: pytest.TempPathFactory, _needed_packages: None) -> Iterator[Callable[..., Project]]:
    """``open_project("tutorial", "proj")``: a copy of that project, with a Redis of its own, for this module."""
    with contextlib.ExitStack() as cleanups:

        def make(name: str, app: str, **options: Any) -> Project:
            made = Project(name, app, tmp_path_factory.mktemp(name), **options)
            cleanups.callback(made.close)
            _open.append(made)
            cleanups.callback(_open.remove, made)
            return made

        yield make


@pytest.fixture(scope="module")
def open_shop(open_project: Callable[..., Project]) -> Callable[..., Project]:
    """``open_shop(env={...})``: the Django project, with its database."""

    def make(**options: Any) -> Project:
        shop = open_project("django_shop", "shop", **options)
        shop.run("python", "manage.py", "migrate", "--verbosity", "0")
        return shop

    return make
