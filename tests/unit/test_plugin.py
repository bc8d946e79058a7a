"""Every ``celery`` command loads the plugin: it imports nothing that a command does not need."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from kombu.utils.imports import symbol_by_name

import celery_orchestration
from celery_orchestration import operate
from celery_orchestration.operate import schema
from support.workers import environment

MODULES = "import sys, celery.bin.celery as cli; print('orchestration' in cli.celery.commands, *sys.modules, sep='\\n')"


def loaded_by_celery(*paths: Path) -> tuple[bool, set[str]]:
    """Whether the plugin was loaded, and the modules that the command line has imported before it does anything."""
    python = [sys.executable, "-c", MODULES]
    done = subprocess.run(python, env=environment(*paths), capture_output=True, text=True, check=True)
    plugin, *modules = done.stdout.splitlines()
    return plugin == "True", set(modules)


def test_the_plugin_loads_nothing_but_its_commands(tmp_path):
    """Without it: the same environment, in which metadata that hides ours has no entry point."""
    ours = distribution("celery_orchestration")
    hides = tmp_path / f"celery_orchestration-{ours.version}.dist-info" / "METADATA"
    hides.parent.mkdir()
    hides.write_text(f"Metadata-Version: 2.1\nName: celery_orchestration\nVersion: {ours.version}\n")
    (is_there, with_it), (is_hidden, without) = loaded_by_celery(), loaded_by_celery(tmp_path)
    assert (is_there, is_hidden) == (True, False)
    added = with_it - without
    assert {name for name in added if not name.startswith("celery_orchestration")} == set()
    assert {name for name in added if name.split(".")[1:2] not in ([], ["cli"])} <= {
        "celery_orchestration.commands",
        "celery_orchestration.errors",
        "celery_orchestration.worker",
        "celery_orchestration.worker.remote",  # a command of celery inspect
    }
    assert {"rich", "pydantic", "celery_orchestration.cli.show"} & with_it <= without


@pytest.mark.parametrize("name", celery_orchestration.__all__)
def test_public_names_are_found_as_if_they_were_there(name):
    found = getattr(celery_orchestration, name)
    assert found.__name__ == name
    assert symbol_by_name(f"celery_orchestration:{name}") is found
    assert name in dir(celery_orchestration)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="has no attribute 'OrchestratedTsk'"):
        _ = celery_orchestration.OrchestratedTsk
    with pytest.raises(ImportError):
        exec("from celery_orchestration import OrchestratedTsk")


def test_every_model_that_a_command_prints_is_public():
    printed = {model.__name__ for model in schema.models()}
    assert printed <= {*operate.__all__}
    assert all(getattr(operate, name) for name in operate.__all__)
