"""What the figures must reach, and whether they do. Takes values and returns values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.apps import RUN_SECONDS


@dataclass(frozen=True)
class Goal:
    part: str
    what: str
    found: str
    must: str
    reached: bool

    @property
    def verdict(self) -> str:
        return "ok" if self.reached else "falls short"


def goals(results: dict[str, Any]) -> list[Goal]:
    """Of the parts that were measured."""
    return [
        *_throughput(results.get("throughput", {})),
        *_exclusive(results.get("exclusive", {})),
        *_ledger(results.get("ledger", {})),
    ]


def _throughput(part: dict[str, Any]) -> list[Goal]:
    wanted = (
        ("job", "throughput of an empty job, of plain Celery's", 0.90),
        ("job10k", "the same with a 10 kB argument", 0.90),
        ("beside", "throughput of plain tasks beside jobs, of those without", 0.98),
    )
    return [
        Goal("a", what, f"{part[name]['ratio']:.2f}", f">= {least:.2f}", part[name]["ratio"] >= least)
        for name, what, least in wanted
        if "ratio" in part.get(name, {})
    ]


def _exclusive(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    ours, blocking = part["ours"], part["blocking"]
    # A plain task waits for no more than the one run that is at work.
    prompt = ours["probe_idle_ms"] + RUN_SECONDS * 1000
    return [
        Goal(
            "b",
            "exclusive runs of 10 ms, times the floor",
            f"{ours['of_floor']:.2f}",
            "<= 1.20",
            ours["of_floor"] <= 1.2,
        ),
        Goal(
            "b",
            "the same, of the recipe that blocks",
            f"{ours['of_blocking']:.2f}",
            "<= 0.90",
            ours["of_blocking"] <= 0.9,
        ),
        Goal("b", "runs that overlap", str(ours["overlaps"]), "0", ours["overlaps"] == 0),
        Goal(
            "b",
            f"no slot blocked: plain tasks begin after (recipe that blocks: {blocking['probe_ms']:.0f} ms)",
            f"{ours['probe_ms']:.1f} ms",
            f"<= {prompt:.1f} ms (idle + one run)",
            ours["probe_ms"] <= prompt,
        ),
    ]


def _ledger(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    few, many = part["sizes"][0], part["sizes"][-1]
    what = f"script time of settle + admit at {many['waiting']:,} waiting runs, of that at {few['waiting']}"
    return [Goal("c", what, f"{many['ratio']:.2f}", "<= 1.30", many["ratio"] <= 1.3)]
