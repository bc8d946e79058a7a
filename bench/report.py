"""The figures as tables: for a terminal, and as Markdown for ``RESULTS.md``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import figures, kills


@dataclass(frozen=True)
class Sheet:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def sheets(results: dict[str, Any]) -> list[Sheet]:
    size = results["size"]
    of_part: dict[str, Callable[[Any], list[Sheet]]] = {
        "throughput": lambda part: [_throughput(part, size)],
        "exclusive": lambda part: [_exclusive(part, size)],
        "ledger": lambda part: [_ledger(part), _memory(part["memory"])],
        "times": lambda part: [_times(part)],
        "schedule": _schedule,
        "plugin": lambda part: [_plugin(part, size)],
        "commands": lambda part: [_commands(part, size)],
        "pools": lambda part: [_pools(part)],
        "dashboard": lambda part: [_dashboard(part)],
        "idle": lambda part: [_idle(part)],
        "scale": _scale,
        "kills": lambda part: [_kills(part)],
    }
    found = [sheet for name, made in of_part.items() if name in results for sheet in made(results[name])]
    goals = figures.goals(results)
    if goals:
        rows = [(goal.part, goal.what, goal.found, goal.must, goal.verdict) for goal in goals]
        found.append(Sheet("Must reach", ("part", "figure", "found", "must", ""), rows))
    return found


def _throughput(part: dict[str, Any], size: dict[str, Any]) -> Sheet:
    rows = []
    for one in part.values():
        if "ratio" in one:
            of_plain = f"{one['ratio']:.2f} ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
            cpu_of_plain = f"{one['cpu_ratio']:.2f}"
        else:
            of_plain = cpu_of_plain = "-"
        cpu = tuple(f"{one[name]:.0f}" for name in ("main_us", "children_us", "redis_us", "total_us"))
        rows.append((one["title"], f"{one['per_second']:.0f}", of_plain, *cpu, cpu_of_plain))
    columns = ("empty task", "tasks/s", "of plain", "main", "children", "redis", "CPU us/task", "CPU of plain")
    return Sheet(
        f"(a) Throughput: prefork, 2 slots, {size['tasks']} tasks, medians of {size['rounds']} alternating rounds",
        columns,
        rows,
        ("Of plain: tasks per second divided by those of plain Celery in the same round; median (lowest to highest).",),
    )


def _exclusive(part: dict[str, Any], size: dict[str, Any]) -> Sheet:
    rows = [
        (
            one["title"],
            f"{one['ms']:.2f} ({one['ms_low']:.2f} to {one['ms_high']:.2f})",
            f"{one['of_floor']:.2f}",
            f"{one['of_blocking']:.2f}",
            str(one["overlaps"]),
            f"{one['probe_ms']:.1f} (idle {one['probe_idle_ms']:.1f})",
        )
        for one in part.values()
    ]
    return Sheet(
        f"(b) {size['exclusive_runs']} exclusive runs of 10 ms, 2 workers with 2 slots each, "
        f"medians of {size['rounds']} rounds",
        ("", "ms a run", "of the floor", "of blocking", "overlaps", "plain tasks begin after, ms"),
        rows,
        (
            "Plain tasks that were sent to the same queue: the median time until they began; "
            "and the same on idle workers.",
        ),
    )


def _ledger(part: dict[str, Any]) -> Sheet:
    rows = [
        (
            f"{one['waiting']:,}",
            f"{one['script_us']:.0f}",
            f"{one['ratio']:.2f}",
            f"{one['wall_us']:.0f}",
            f"{one['picks_per_turn']:g}",
            f"{one['free_script_us']:.0f}",
            f"{one['free_wall_us']:.0f}",
        )
        for one in part["sizes"]
    ]
    least = f"{part['sizes'][0]['waiting']:,}"
    return Sheet(
        "(c) Ledger: one settle + one admit (one round trip), 1,000 jobs in one ring of blocks",
        (
            "waiting runs",
            "script us",
            f"of {least}",
            "round trip us",
            "picks",
            "uncapped job: script us",
            "round trip us",
        ),
        rows,
        ("Script: Redis's own account. Round trip: measured by the client, including its own work.",),
    )


def _memory(part: dict[str, Any]) -> Sheet:
    rows = [
        ("waiting run", f"{part['waiting_bytes']:.0f}"),
        ("running run", f"{part['running_bytes']:.0f}"),
        ("ended run (its done-marker expires after 2 h)", f"{part['ended_bytes']:.0f}"),
    ]
    return Sheet(f"Memory of Redis, message of {part['message_bytes']} B", ("", "bytes"), rows)


def _times(part: dict[str, Any]) -> Sheet:
    rows = []
    for one in part.values():
        late = (f"{one[kind]['median']:.3f} ({one[kind]['worst']:.3f})" for kind in ("countdown", "retry"))
        memory = one["memory"]
        rows.append((one["title"], *late, f"{memory['grown_bytes'] / 1e6:.1f}"))
    columns = ("", "countdown=1 starts after s (worst)", "retry after 1 s (worst)", "worker grows, MB")
    runs = next(iter(part.values()))["memory"]["runs"]
    return Sheet(
        "(d) Runs with a start time",
        columns,
        rows,
        (f"Worker grows: when it has received {runs:,} calls that are not due yet.",),
    )


def _schedule(part: dict[str, Any]) -> list[Sheet]:
    fires, cpu, late, takeover = part["fires"], part["cpu"], part["late"], part["takeover"]
    locked, rounds = takeover["redbeat_lock_seconds"], len(cpu["ours"]["rounds"])
    return [
        Sheet(
            f"(e) Fires of a schedule; a plain apply_async loop sends {fires['loop']:.0f}/s",
            ("scheduler", "entries", "every s", "sent of due", "fires/s", ""),
            [
                (
                    one["title"],
                    f"{one['entries']:,}",
                    f"{one['every']:g}",
                    f"{one['sent']:,} of {one['due']:,}",
                    f"{one['per_second']:.0f}",
                    one["ended"].strip("; "),
                )
                for one in fires["cases"].values()
            ],
            (
                "Entries with an interval of 10 s are all due at once: fires/s is the rate of sending then. "
                "Otherwise it is the number of fires that are sent in a second. "
                f"Ours: {rounds} rounds; the others, here and below: one.",
            ),
        ),
        Sheet(
            "CPU of a scheduler at 10 fires/s, ms a second",
            ("scheduler", "100 entries", "10,000 entries", "ratio"),
            [(name, f"{one['few']:.1f}", f"{one['many']:.1f}", f"{one['ratio']:.2f}") for name, one in cpu.items()],
        ),
        Sheet(
            "Lateness at 100 fires/s, ms: median, 99 %, worst",
            ("", "in the ledger", "in the broker"),
            [
                (title, *(_lateness(late[name].get(where)) for where in ("ledger", "broker")))
                for name, title in (
                    ("one by one", "ours, due one by one"),
                    ("at once", "ours, 100 due at once each second"),
                    ("stock", "PersistentScheduler, 100 one-second entries"),
                    ("redbeat", "celery-redbeat, 100 one-second entries"),
                )
            ],
            (
                "The due times of the other schedulers are not known: they count each interval from the time at which "
                "they sent the last message. Their figure is how much later than that a message comes; these delays "
                "add up.",
            ),
        ),
        Sheet(
            "Takeover by a scheduler that stands by",
            ("leader", "leads after s (worst)", "fires after s (worst)", "due times", "lost", "passed over", "twice"),
            [
                (
                    name,
                    *(f"{median(one[what]):.2f} ({max(one[what]):.2f})" for what in ("leads", "fires")),
                    *(str(one[what]) for what in ("due", "lost", "passed", "twice")),
                )
                for name, one in takeover.items()
                if isinstance(one, dict)
            ],
            (
                "Passed over: due times of entries with an interval shorter than the takeover, after which another due "
                'time had come when a scheduler led again: catch_up="latest" makes one run of them, as the history '
                f"says. celery-redbeat's lock stays for {locked:.0f} s at default settings; PersistentScheduler has no "
                "standby.",
            ),
        ),
    ]


def _plugin(part: dict[str, Any], size: dict[str, Any]) -> Sheet:
    rows = [
        (
            f"celery {command}",
            f"{one['without_ms']:.0f}",
            f"{one['with_ms']:.0f}",
            f"{one['added_ms']:.0f} ({one['added_low']:.0f} to {one['added_high']:.0f})",
            f"{one['added_cpu_ms']:.0f}",
        )
        for command, one in part.items()
    ]
    return Sheet(
        f"(f) The plugin, ms: medians of {size['plugin_rounds']} alternating rounds",
        ("command", "without", "with", "added", "CPU added"),
        rows,
        (
            "Added: the difference between with and without the entry point in the same round, "
            "median (lowest to highest).",
        ),
    )


def _commands(part: dict[str, Any], size: dict[str, Any]) -> Sheet:
    rows = [
        (one["title"], f"{one['seconds']:.2f} ({one['best']:.2f} to {one['worst']:.2f})", f"{one['cpu']:.2f}")
        for one in part["commands"].values()
    ]
    return Sheet(
        f"(g) Commands on {part['jobs']:,} jobs, {part['workers']} workers and {part['waiting']:,} waiting runs, "
        f"medians of {size['command_rounds']}",
        ("whole process", "s", "CPU s"),
        rows,
        ("Celery loads no app for --help; inspect ping waits a second for more answers.",),
    )


def _dashboard(part: dict[str, Any]) -> Sheet:
    return Sheet(
        f"(l) Dashboard on {part['jobs']:,} jobs, {part['workers']} workers and {part['waiting']:,} waiting runs",
        ("figure", ""),
        [
            ("first page, median of 3, ms", f"{part['first_ms']:.0f}"),
            ("browser time of an update, longest of 9, ms", f"{part['update_ms']:.1f}"),
            (f"timeline of {part['runs']:,} runs, first load, ms", f"{part['timeline_ms']:.0f}"),
            ("/metrics, median of 5, ms", f"{part['metrics_ms']:.0f}"),
            ("share of a core with no open page", f"{part['idle_share']:.1%}"),
            ("share of a core with ten open pages", f"{part['ten_share']:.1%}"),
            (f"longest read of Redis ({part['redis_verb']}), ms", f"{part['redis_ms']:.1f}"),
        ],
    )


def _scale(part: dict[str, Any]) -> list[Sheet]:
    crowd, death = part["crowd"], part["death"]
    size = f"{crowd['workers']:,} workers, {crowd['jobs']:,} jobs, {crowd['waiting']:,} waiting runs, simulated"
    died = (
        f"All workers but one died: {death['recovered']:,} runs were recovered in {death['calls']} calls, "
        f"{death['seconds']:.1f} s."
    )
    return [
        Sheet(
            f"(j) Longest script of each verb: {size}",
            ("verb", "ms"),
            [(verb, f"{ms:.1f}") for verb, ms in sorted(part["longest_ms"].items())],
            (died,),
        ),
        Sheet(
            "(j) What one Redis core carries, by single turns",
            ("runs", "a second"),
            [(name, f"{rate:,}") for name, rate in part["ceilings"].items()],
        ),
    ]


def _pools(part: dict[str, Any]) -> Sheet:
    scale, apart, kills, idle = (part[name] for name in ("scale", "apart", "kills", "idle"))
    jobs = scale["jobs"]
    waits = [f"{apart[name]['median']:.1f}, {apart[name]['p99']:.1f}" for name in ("alone", "beside", "shared")]
    unfinished = apart["shared"]["unfinished"]
    return Sheet(
        "(h) Pools",
        ("", ""),
        [
            (f"{jobs:,} jobs of 5 ms on four fixed workers", f"{jobs / scale['fixed_seconds']:.0f}/s"),
            ("the same on a pool of min 1, max 4", f"{jobs / scale['seconds']:.0f}/s ({scale['ratio']:.2f})"),
            ("at max after their arrival, at min after their end", f"{scale['at_max']:.1f} s, {scale['at_min']:.1f} s"),
            ("wait of a quick job alone, ms: median, 99 %", waits[0]),
            (f"beside {apart['heavy']:,} heavy jobs in another pool", waits[1]),
            (
                "beside them on one shared worker of stock Celery; "
                f"{unfinished} had not begun when the measurement ended",
                waits[2],
            ),
            (
                f"{kills['workers']} workers and {kills['supervisors']} supervisors killed in {kills['seconds']} s, "
                f"{kills['sent']:,} jobs: lost, run again, dead letters",
                f"{kills['lost']}, {kills['again']}, {kills['dead']}",
            ),
            (
                "full strength after the last kill; after a supervisor died for good",
                f"{kills['full_after']:.1f} s, {kills['taken_over_after']:.1f} s",
            ),
            (f"an idle supervisor with {idle['pools']} pools, of a core", f"{idle['share']:.2%}"),
        ],
    )


def _idle(part: dict[str, Any]) -> Sheet:
    rows = [
        (one["title"], f"{one['commands']:.2f}", f"{one['resting']:.1%}", f"{one['share']:.1%}")
        for one in part.values()
    ]
    rate = min(one["rate"] for one in part.values())
    columns = ("", "commands a second each", "Redis, of a core", f"at {rate:.0f} messages a second")
    return Sheet("(i) 100 idle workers, by their consuming connections", columns, rows)


def _kills(part: dict[str, Any]) -> Sheet:
    rows = []
    for one in part.values():
        for pool, found in one["pools"].items():
            counts = (str(found[name]) for name in ("kills", "sent", "lost", "stuck", "late"))
            rows.append((f"{one['title']}, {pool}", *counts, f"{found['latest']:.1f}"))
    return Sheet(
        "(k) Workers are killed under load",
        ("", "kills", "messages", "have not run", "of these stuck for an hour", "late", "longest wait, s"),
        rows,
        (
            f"Late: later than {kills.back_after():g} s (lease, sweep and a second). Stuck: recorded in Redis, "
            "and back after visibility_timeout; all others that have not run are lost for good.",
        ),
    )


def _lateness(spread: dict[str, float] | None) -> str:
    return f"{spread['median']:.1f}, {spread['p99']:.1f}, {spread['worst']:.1f}" if spread else "-"


def _machine(results: dict[str, Any]) -> str:
    m = results["machine"]
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; "
        f"Python {m['python']}, Celery {m['celery']}, "
        f"kombu {m['kombu']}, Redis {m['redis']}, redis-py {m['redis-py']} with hiredis {m['hiredis']}, "
        f"celery-singleton {m['celery-singleton']}, celery-redbeat {m['celery-redbeat']}; {m['date']}"
    )


def _warnings(results: dict[str, Any]) -> list[str]:
    found = []
    if results["quick"]:
        found.append("A quick run: these figures are rough.")
    others = figures.busiest(results)
    if others > figures.QUIET:
        found.append(f"The machine was busy, so times mean little: other programs took {others:.0%} of a core.")
    return found + [f"Problem: {text}" for text in results["problems"]]


def show(results: dict[str, Any]) -> None:
    console = Console(width=None if Console().is_terminal else 150)
    console.print(f"\n[bold]Machine[/bold]: {_machine(results)}", highlight=False)
    for sheet in sheets(results):
        table = Table(title=sheet.title, title_justify="left", title_style="bold", caption_justify="left")
        for number, column in enumerate(sheet.columns):
            table.add_column(column, justify="left" if number == 0 or sheet.title == "Must reach" else "right")
        for row in sheet.rows:
            table.add_row(*row, style="red" if row[-1].startswith("falls short") else None)
        console.print()
        console.print(table)
        for note in sheet.notes:
            console.print(note, style="dim", highlight=False)
    for warning in _warnings(results):
        console.print(warning, style="yellow", highlight=False)


def markdown(results: dict[str, Any]) -> str:
    lines = ["# Benchmark", "", f"Measured by `make bench` on: {_machine(results)}.", ""]
    lines += [f"**{warning}**\n" for warning in _warnings(results)]
    for sheet in sheets(results):
        lines += [f"## {sheet.title}", ""]
        lines.append("| " + " | ".join(sheet.columns) + " |")
        lines.append("|" + " --- |" * len(sheet.columns))
        lines += ["| " + " | ".join(row) + " |" for row in sheet.rows]
        lines += ["", *sheet.notes, ""] if sheet.notes else [""]
    return "\n".join(lines).rstrip() + "\n"
