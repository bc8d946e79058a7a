"""The goal of each figure, and whether it is reached. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.apps import RUN_SECONDS

#: The share of a core that other programs may take. Above it, measured times mean little.
QUIET = 0.10


@dataclass(frozen=True)
class Goal:
    part: str
    what: str
    found: str
    must: str
    reached: bool
    #: Whether the machine was idle enough for a verdict.
    sure: bool = True

    @property
    def verdict(self) -> str:
        return ("ok" if self.reached else "falls short") + ("" if self.sure else " (unsure: machine busy)")


def goals(results: dict[str, Any]) -> list[Goal]:
    """The goals of the parts that were measured."""
    return [
        *_throughput(results.get("throughput", {})),
        *_exclusive(results.get("exclusive", {})),
        *_ledger(results.get("ledger", {})),
        *_times(results.get("times", {})),
        *_schedule(results.get("schedule", {})),
        *_plugin(results.get("plugin", {})),
        *_commands(results.get("commands", {})),
        *_pools(results.get("pools", {})),
        *_dashboard(results.get("dashboard", {})),
        *_idle(results.get("idle", {})),
        *_scale(results.get("scale", {})),
        *_kills(results.get("kills", {})),
    ]


def _throughput(part: dict[str, Any]) -> list[Goal]:
    wanted = (
        ("job", "throughput of an empty job, divided by plain Celery's", 1.40),
        ("job10k", "the same with a 10 kB argument", 1.30),
        ("beside", "throughput of plain tasks beside jobs, divided by plain Celery's", 1.60),
    )
    found = []
    for name, what, least in wanted:
        one = part.get(name, {})
        if "ratio" in one:
            sure = max(one["others"], part[one["against"]]["others"]) <= QUIET
            found.append(Goal("a", what, f"{one['ratio']:.2f}", f">= {least:.2f}", one["ratio"] >= least, sure))
    if "cpu_ratio" in part.get("job", {}):
        cpu = part["job"]["cpu_ratio"]
        what = "processor time of an empty job (worker, children, Redis), divided by plain Celery's"
        found.append(Goal("a", what, f"{cpu:.2f}", "<= 0.90", cpu <= 0.9))
    return found


def _exclusive(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    ours, blocking = part["ours"], part["blocking"]
    sure = ours["others"] <= QUIET
    floor, of_blocking, probe = ours["of_floor"], ours["of_blocking"], ours["probe_ms"]
    # A plain task waits at most for the one run that executes.
    prompt = ours["probe_idle_ms"] + RUN_SECONDS * 1000
    promptly = f"no slot blocked: plain tasks begin after (recipe that blocks: {blocking['probe_ms']:.0f} ms)"
    idle, stock = ours["probe_idle_ms"], blocking["probe_idle_ms"]
    return [
        Goal(
            "b",
            "from delay() to the start on idle workers",
            f"{idle:.1f} ms",
            f"<= {stock:.1f} ms (stock)",
            idle <= stock,
            sure,
        ),
        Goal("b", "exclusive runs of 10 ms, times the floor", f"{floor:.2f}", "<= 1.15", floor <= 1.15, sure),
        Goal(
            "b",
            "the same, divided by that of the recipe that blocks",
            f"{of_blocking:.2f}",
            "<= 0.88",
            of_blocking <= 0.88,
            sure,
        ),
        Goal("b", "runs that overlap", str(ours["overlaps"]), "0", ours["overlaps"] == 0),
        Goal("b", "runs that ran more than once", str(ours["again"]), "0", ours["again"] == 0),
        Goal("b", promptly, f"{probe:.1f} ms", f"<= {prompt:.1f} ms (idle + one run)", probe <= prompt, sure),
    ]


def _ledger(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    few, many = part["sizes"][0], part["sizes"][-1]
    what = f"script time of settle + admit at {many['waiting']:,} waiting runs, divided by that at {few['waiting']}"
    return [Goal("c", what, f"{many['ratio']:.2f}", "<= 1.30", many["ratio"] <= 1.3, part["others"] <= QUIET)]


def _times(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    ours = part["later"]
    sure, memory = ours["others"] <= QUIET, ours["memory"]
    found = []
    kinds = ("countdown", "a countdown of 1 s beside 1,000 waiting runs"), ("retry", "a retry after 1 s beside them")
    for kind, what in kinds:
        half, worst = ours[kind]["median"], ours[kind]["worst"]
        found += [
            Goal("d", f"{what}, median", f"{half:.3f} s", "<= 1.05 s", half <= 1.05, sure),
            Goal("d", f"{what}, worst", f"{worst:.3f} s", "<= 1.20 s", worst <= 1.2, sure),
        ]
    grown = memory["grown_bytes"] / 1e6
    put_off = f"{memory['runs']:,} calls with countdown={memory['seconds']}"
    return [
        *found,
        Goal("d", f"{put_off}: the worker grows by", f"{grown:.1f} MB", "< 10 MB", grown < 10),
        Goal("d", f"{put_off}: lost when the worker is killed", str(memory["lost"]), "0", memory["lost"] == 0),
    ]


def _schedule(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    found = []
    rate = f"{part['fires']['rate']:,} fires/s (0.8 of apply_async, at most 1,000)"
    for name, where in (("ledger", "no worker"), ("broker", "handed over to the broker")):
        one = part["fires"]["cases"][name]
        sent, due, sure = one["sent"], one["due"], one["others"] <= QUIET
        found.append(Goal("e", f"{rate}, {where}: sent of {due:,} due", f"{sent:,}", "all", sent >= due, sure))
    cpu = part["cpu"]["ours"]
    what = "CPU at 10 fires/s, 10,000 entries, divided by that with 100"
    found.append(Goal("e", what, f"{cpu['ratio']:.2f}", "< 2.00", cpu["ratio"] < 2, cpu["others"] <= QUIET))
    for name, where, how in (
        ("one by one", "broker", "due one by one, until its message is in the broker"),
        ("at once", "ledger", "100 due at once, until its run is in the ledger"),
        ("at once", "broker", "100 due at once, until its message is in the broker"),
    ):
        one = part["late"][name]
        what, sure = f"lateness at 100 fires/s, {how}", one["others"] <= QUIET
        half, nearly_all = one[where]["median"], one[where]["p99"]
        found += [
            Goal("e", f"{what}, median", f"{half:.1f} ms", "< 20 ms", half < 20, sure),
            Goal("e", f"{what}, 99 %", f"{nearly_all:.1f} ms", "< 100 ms", nearly_all < 100, sure),
        ]
    for name, most in (("terminated", 1), ("killed", 15)):
        one = part["takeover"][name]
        worst, what = max(one["fires"]), f"a leader is {name}"
        found += [
            Goal("e", f"{what}: another one fires after, worst", f"{worst:.2f} s", f"< {most} s", worst < most),
            Goal("e", f"{what}: fires lost, of {one['due']}", str(one["lost"]), "0", one["lost"] == 0),
            Goal("e", f"{what}: fires that made two runs", str(one["twice"]), "0", one["twice"] == 0),
        ]
    return found


def _plugin(part: dict[str, Any]) -> list[Goal]:
    found = []
    for command, one in part.items():
        added, what = one["added_ms"], f"celery {command}: added by the plugin"
        found.append(Goal("f", what, f"{added:.0f} ms", "< 150 ms", added < 150, one["others"] <= QUIET))
    return found


def _commands(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    seconds, sure = part["commands"]["status"]["seconds"], part["others"] <= QUIET
    size = f"{part['jobs']:,} jobs, {part['workers']} workers and {part['waiting']:,} waiting runs"
    return [Goal("g", f"status with {size}, from the shell, median", f"{seconds:.2f} s", "< 1 s", seconds < 1, sure)]


def _pools(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    scale, apart, kills, idle = (part[name] for name in ("scale", "apart", "kills", "idle"))
    sure = scale["others"] <= QUIET
    jobs, latest, within = f"{scale['jobs']:,} jobs of 5 ms", scale["quiet_seconds"] + 30, kills["lease"] + 5
    most = 2 * apart["alone"]["p99"] + 20
    shared = f"{'over ' if apart['shared']['unfinished'] else ''}{apart['shared']['p99']:,.0f} ms"
    beside, alone = apart["beside"]["p99"], apart["alone"]["p99"]
    quick = f"p99 wait of a quick job beside {apart['heavy']:,} heavy ones (alone {alone:.0f} ms, shared pool {shared})"
    died = f"{kills['workers']} workers and {kills['supervisors']} supervisors killed"
    longest = max(kills["full_after"], kills["taken_over_after"])
    return [
        Goal("h", f"{jobs}, min 1, max 4: at max after", f"{scale['at_max']:.1f} s", "<= 10 s", scale["at_max"] <= 10),
        Goal(
            "h",
            f"{jobs}: throughput, divided by that of four fixed workers",
            f"{scale['ratio']:.2f}",
            ">= 0.85",
            scale["ratio"] >= 0.85,
            sure,
        ),
        Goal(
            "h", f"{jobs}: back at min after", f"{scale['at_min']:.0f} s", f"<= {latest} s", scale["at_min"] <= latest
        ),
        Goal(
            "h",
            f"{jobs}: lost, twice",
            f"{scale['lost']}, {scale['twice']}",
            "0, 0",
            scale["lost"] == scale["twice"] == 0,
        ),
        Goal("h", quick, f"{beside:.0f} ms", f"<= {most:.0f} ms", beside <= most, apart["others"] <= QUIET),
        Goal("h", f"{died}: lost of {kills['sent']:,} jobs", str(kills["lost"]), "0", kills["lost"] == 0),
        Goal("h", f"{died}: places held twice", str(kills["twice_held"]), "0", kills["twice_held"] == 0),
        Goal("h", f"{died}: full strength after", f"{longest:.1f} s", f"<= {within:.0f} s", longest <= within),
        Goal("h", f"idle supervisor, {idle['pools']} pools", f"{idle['share']:.2%}", "< 1 %", idle["share"] < 0.01),
    ]


def _dashboard(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    size = f"{part['jobs']:,} jobs, {part['workers']} workers and {part['waiting']:,} waiting runs"
    first, update, timeline = part["first_ms"], part["update_ms"], part["timeline_ms"]
    idle, ten, metrics, redis = part["idle_share"], part["ten_share"], part["metrics_ms"], part["redis_ms"]
    return [
        Goal("l", f"dashboard with {size}: first page", f"{first:.0f} ms", "< 1 s", first < 1000),
        Goal("l", "browser time of an update", f"{update:.0f} ms", "< 100 ms", update < 100),
        Goal("l", "share of a core with no open page", f"{idle:.1%}", "< 1 %", idle < 0.01),
        Goal("l", "share of a core with ten open pages", f"{ten:.1%}", "< 10 %", ten < 0.1),
        Goal("l", f"timeline of {part['runs']:,} runs", f"{timeline:.0f} ms", "< 1 s", timeline < 1000),
        Goal("l", "/metrics, median", f"{metrics:.0f} ms", "< 200 ms", metrics < 200),
        Goal("l", f"longest read of Redis ({part['redis_verb']})", f"{redis:.1f} ms", "<= 20 ms", redis <= 20),
    ]


def _scale(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    crowd, death, longest = part["crowd"], part["death"], part["longest_ms"]
    size = f"{crowd['workers']:,} workers, {crowd['jobs']:,} jobs, {crowd['waiting']:,} waiting runs"
    worst = max(longest, key=lambda verb: longest[verb])
    recovered, runs = death["recovered"], crowd["workers"] * crowd["runs_per_worker"]
    all_died = f"all workers but one die: runs recovered of {runs:,}, seconds after the leases ran out"
    return [
        Goal("j", f"{size}: longest script ({worst})", f"{longest[worst]:.1f} ms", "<= 20 ms", longest[worst] <= 20),
        Goal(
            *("j", all_died, f"{recovered:,} in {death['seconds']:.1f} s", "all within 10 s (two sweeps)"),
            recovered == runs and death["seconds"] <= 10,
        ),
        *(
            Goal("j", f"single turns on one Redis core, {load}: runs/s", f"{rate:,}", f">= {must:,}", rate >= must)
            for load, must in (("uncapped", 10_000), ("exclusive", 4_500))
            for rate in (part["ceilings"][load],)
        ),
    ]


def _idle(part: dict[str, Any]) -> list[Goal]:
    if not part:
        return []
    ours = part["reliable"]
    looks, share = ours["commands"], ours["share"]
    return [
        Goal("i", "100 idle workers at 50 messages a second: Redis", f"{share:.1%}", "< 10 %", share < 0.1),
        Goal("i", "an idle worker's commands a second: no polling", f"{looks:.2f}", "< 5", looks < 5),
    ]


def _kills(part: dict[str, Any]) -> list[Goal]:
    pools = part.get("killed", {}).get("pools", {}).values()
    if not pools:
        return []
    killed = sum(one["kills"] for one in pools)
    lost, late = (sum(one[what] for one in pools) for what in ("lost", "late"))
    return [
        Goal("k", f"messages lost by {killed} kills under load", str(lost), "0", lost == 0),
        Goal("k", "the same: later than lease + sweep + 1 s", str(late), "0", late == 0),
    ]


def busiest(results: dict[str, Any]) -> float:
    """The largest share of a core that other programs took during any measurement."""
    parts = ("throughput", "exclusive", "times", "plugin")
    shares = [one["others"] for name in parts for one in results.get(name, {}).values()]
    schedule = results.get("schedule", {})
    measured = (schedule.get("fires", {}).get("cases", {}), schedule.get("cpu", {}), schedule.get("late", {}))
    shares += [one["others"] for part in measured for one in part.values()]
    return max([*shares, *(results.get(name, {}).get("others", 0.0) for name in ("ledger", "commands"))])
