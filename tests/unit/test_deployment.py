"""docker-compose.yml and examples/kubernetes fit the app, each other, and the published schemas.

Neither a Docker engine nor a cluster is needed: the files are read, not applied.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from celery_orchestration.job.app import settings_of
from celery_orchestration.job.pool import Pool
from celery_orchestration.job.queues import granted_name, pool_queues
from celery_orchestration.worker.drain import CLOSING_SECONDS
from support.workers import PROJECT, close_app

KUBERNETES = PROJECT / "examples" / "kubernetes"
FILES = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
#: Versions of Kubernetes: the oldest that is still common, and the newest that there are schemas of.
VERSIONS = ("1.30.0", kubernetes_validate.latest_version())
KEDA = "keda.sh/v1alpha1"
APP = "examples.image_service"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    sys.path.insert(0, str(PROJECT))
    module: ModuleType = importlib.import_module(APP)
    yield module.app
    close_app(module.app)
    sys.path.remove(str(PROJECT))
    for name in [name for name in sys.modules if name.startswith("examples.image_service")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pools(app: Any) -> dict[str, Pool]:
    return dict(settings_of(app).pools)


def documents(path: Path) -> list[Document]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def all_documents(kind: str) -> dict[str, Document]:
    """By name."""
    found = [one for path in FILES for one in documents(path) if one["kind"] == kind]
    return {one["metadata"]["name"]: one for one in found}


def pod(deployment: Document) -> Document:
    found: Document = deployment["spec"]["template"]["spec"]
    return found


def words(container: Document) -> list[str]:
    return [*container.get("command", []), *container.get("args", [])]


def after(option: str, command: list[str]) -> str:
    return command[command.index(option) + 1]


# -- Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_fits_the_schema_of_kubernetes(path: Path, version: str) -> None:
    checked = [one for one in documents(path) if one["apiVersion"] != KEDA]
    assert checked
    for one in checked:
        kubernetes_validate.validate(one, version, strict=True)


def test_kustomize_applies_every_file() -> None:
    [listed] = documents(KUBERNETES / "kustomization.yaml")
    assert sorted(listed["resources"]) == [path.name for path in FILES]


def test_each_pool_has_a_deployment_with_its_queues_and_its_kind(pools: dict[str, Pool]) -> None:
    deployments = {name: one for name, one in all_documents("Deployment").items() if name.startswith("pool-")}
    assert set(deployments) == {f"pool-{name}" for name in pools}
    for name, pool in pools.items():
        [container] = pod(deployments[f"pool-{name}"])["containers"]
        command = words(container)
        assert command[:4] == ["celery", "-A", APP, "worker"]
        queues = after("-Q", command).split(",")
        expected = [granted_name(name), *pool_queues(name)]
        assert queues[: len(expected)] == expected
        assert queues[len(expected) :] == (["celery"] if name == "default" else [])
        assert (after("-P", command), int(after("-c", command))) == (pool.kind, pool.concurrency)


def test_each_pool_is_scaled_between_its_min_and_max_by_its_own_figure(pools: dict[str, Pool]) -> None:
    """KEDA's schema is in no package: its fields are checked here."""
    scaled = all_documents("ScaledObject")
    assert set(scaled) == {f"pool-{name}" for name in pools}
    [service] = [one for one in all_documents("Service").values() if one["metadata"]["name"] == "image-service-desired"]
    [port] = service["spec"]["ports"]
    for name, pool in pools.items():
        one = scaled[f"pool-{name}"]
        assert one["apiVersion"] == KEDA
        spec = one["spec"]
        assert set(spec) <= {
            "scaleTargetRef",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "cooldownPeriod",
            "fallback",
            "triggers",
            "advanced",
        }
        assert spec["scaleTargetRef"] == {"name": f"pool-{name}"}
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (pool.min, pool.max)
        assert spec["cooldownPeriod"] == pool.quiet_seconds
        assert set(spec["fallback"]) == {"failureThreshold", "replicas"}
        assert max(1, pool.min) <= spec["fallback"]["replicas"] <= pool.max
        [trigger] = spec["triggers"]
        assert trigger == {
            "type": "metrics-api",
            "metricType": "AverageValue",
            "metadata": {
                "url": f"http://image-service-desired:{port['port']}/",
                "valueLocation": f"pools.{name}.wanted",
                "targetValue": "1",
            },
        }
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        # The HPA of a ScaledObject has Kubernetes' own schema again.
        kubernetes_validate.validate(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "x"},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
                    "maxReplicas": 1,
                    "behavior": behavior,
                },
            },
            VERSIONS[-1],
            strict=True,
        )


def test_the_figures_are_served_where_keda_asks() -> None:
    deployment = all_documents("Deployment")["image-service-desired"]
    [container] = pod(deployment)["containers"]
    command = words(container)
    assert command[:6] == ["celery", "-A", APP, "orchestration", "pools", "--desired"]
    [port] = container["ports"]
    assert after("--serve", command) == f"0.0.0.0:{port['containerPort']}"


def test_a_pod_has_time_to_drain(app: Any, pools: dict[str, Pool]) -> None:
    needed = settings_of(app).drain_seconds + CLOSING_SECONDS
    for name in pools:
        assert pod(all_documents("Deployment")[f"pool-{name}"])["terminationGracePeriodSeconds"] > needed


def test_two_schedulers_run_and_a_disruption_leaves_one() -> None:
    assert all_documents("Deployment")["scheduler"]["spec"]["replicas"] == 2
    assert all_documents("PodDisruptionBudget")["scheduler"]["spec"]["minAvailable"] == 1


def test_a_disruption_takes_one_worker_of_a_pool_at_a_time(pools: dict[str, Pool]) -> None:
    budgets, deployments = all_documents("PodDisruptionBudget"), all_documents("Deployment")
    for name in pools:
        budget = budgets[f"pool-{name}"]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployments[f"pool-{name}"]["spec"]["selector"]


def test_every_part_is_probed_with_health(pools: dict[str, Pool]) -> None:
    deployments = all_documents("Deployment")
    for name in pools:
        [container] = pod(deployments[f"pool-{name}"])["containers"]
        node = after("-n", words(container)).replace("$(POD_NAME)", "$POD_NAME")
        asked = ["sh", "-c", f"celery -A {APP} orchestration health --worker {node}"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["exec"]["command"] == asked
    [container] = pod(deployments["scheduler"])["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"][3:] == ["orchestration", "health", "--scheduler"]


def test_no_outage_of_a_few_minutes_gets_a_worker_killed(pools: dict[str, Pool]) -> None:
    for name in pools:
        [container] = pod(all_documents("Deployment")[f"pool-{name}"])["containers"]
        probe = container["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_redis_is_written_to_disk_and_never_evicts() -> None:
    [container] = pod(all_documents("StatefulSet")["redis"])["containers"]
    assert after("--appendonly", words(container)) == "yes"
    assert after("--maxmemory-policy", words(container)) == "noeviction"
    assert container["volumeMounts"][0]["mountPath"] == after("--dir", words(container))


# -- Docker Compose


@pytest.fixture
def compose() -> Document:
    found: Document = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
    return found


def test_compose_has_redis_two_schedulers_and_the_pools(compose: Document) -> None:
    services = compose["services"]
    assert set(services) == {"redis", "install", "scheduler", "pools", "load"}
    assert "--appendonly yes" in services["redis"]["command"]
    assert "--maxmemory-policy noeviction" in services["redis"]["command"]
    assert services["scheduler"]["deploy"]["replicas"] == 2
    # The project is mounted read-only.
    assert services["pools"]["command"] == f"celery -A {APP} orchestration pools --state /tmp/orchestration"


def test_compose_checks_the_health_of_every_long_running_service(compose: Document) -> None:
    checks = {name: one["healthcheck"]["test"] for name, one in compose["services"].items() if "healthcheck" in one}
    assert checks == {
        "redis": "redis-cli ping",
        "scheduler": f"celery -A {APP} orchestration health --scheduler",
        "pools": f"celery -A {APP} orchestration health",
    }


def test_compose_gives_the_pools_time_to_drain(compose: Document, app: Any) -> None:
    seconds = int(compose["services"]["pools"]["stop_grace_period"].removesuffix("s"))
    assert seconds > settings_of(app).drain_seconds + CLOSING_SECONDS


def test_compose_names_only_what_it_has(compose: Document) -> None:
    services, volumes = compose["services"], set(compose["volumes"])
    for one in services.values():
        assert set(one.get("depends_on", {})) <= set(services)
        named = {volume.split(":")[0] for volume in one.get("volumes", [])}
        assert {name for name in named if re.match(r"\w", name)} <= volumes
    assert services["load"]["environment"]["IMAGE_SERVICE_WORLD"] == "load"
