"""examples/monitoring matches the metrics, and Prometheus accepts it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from celery_orchestration.web import metrics
from support.servers import missing
from support.workers import PROJECT

MONITORING = PROJECT / "examples" / "monitoring"
FILES = ("alerts.yml", "alerts_test.yml", "grafana.json")
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "summary": ("_sum", "_count"),
    "histogram": ("_bucket", "_sum", "_count"),
}


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Of Debian's package prometheus."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool (apt install prometheus)")
    return subprocess.run(
        [str(program), *arguments], cwd=MONITORING, input=text, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_prometheus_takes_the_files(arguments: tuple[str, ...]):
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_metrics():
    class Everything:
        """A sample of each."""

        def collect(self) -> Any:
            for spec in metrics.METRICS.values():
                family = metrics._FAMILIES[spec.kind](spec.name, spec.help, labels=spec.labels)
                labels = ["x"] * len(spec.labels)
                if spec.kind == "histogram":
                    family.add_metric(labels, [("1.0", 1), ("+Inf", 2)], 3.0)
                elif spec.kind == "summary":
                    family.add_metric(labels, count_value=2, sum_value=3.0)
                else:
                    family.add_metric(labels, 1)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Everything())  # type: ignore[arg-type]
    done = promtool("check", "metrics", text=generate_latest(registry).decode())
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "celery_orchestration" in line]
    assert complaints == [], "celery-exporter's names are as they are"


@pytest.mark.parametrize("file", FILES)
def test_alerts_and_panels_use_only_metrics_that_exist(file: str):
    known = {spec.name + suffix for spec in metrics.METRICS.values() for suffix in SUFFIXES[spec.kind]}
    text = (MONITORING / file).read_text()
    used = set(re.findall(r"\bcelery_[a-z_]+(?=[{\[\s)=,])", text)) - {"celery_orchestration"}
    assert used
    assert used - known == set()


def test_every_alert_says_what_is_wrong_and_what_to_do():
    text = (MONITORING / "alerts.yml").read_text()
    alerts = text.count("- alert:")
    assert (text.count("summary:"), text.count("action:"), text.count("severity:")) == (alerts, alerts, alerts)


def test_the_dashboard_is_one_that_grafana_can_import():
    board = json.loads((MONITORING / "grafana.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    assert {name["name"] for name in board["templating"]["list"]} == {"source", "app", "job"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
