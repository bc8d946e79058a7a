"""``python -m bench [--quick] [--only a,b,c,d,e,f,g,h,i,j,k,l] [--rounds N] [--tasks N] [--variants plain,job]``"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from typing import Any

from bench import (
    PROJECT,
    commands,
    dashboard,
    exclusive,
    figures,
    idle,
    kills,
    ledger,
    plugin,
    pools,
    report,
    scale,
    schedule,
    throughput,
    times,
)
from bench.stage import FULL, QUICK, Size, Stage, machine, stage

#: The modules by the letters of their parts. ``measure(stage)`` returns the results; they are stored under the module's
#: name.
PARTS = {
    **{"a": throughput, "b": exclusive, "c": ledger, "d": times, "e": schedule, "f": plugin, "g": commands},
    **{"h": pools, "i": idle, "j": scale, "k": kills, "l": dashboard},
}


def main() -> None:
    arguments = parse(sys.argv[1:])
    # SIGTERM ends the processes of a run, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with stage(size_of(arguments)) as where:
        results = run(where, arguments)
    results["must_reach"] = [dataclasses.asdict(goal) for goal in figures.goals(results)]
    scratch = PROJECT / ".bench"
    scratch.mkdir(exist_ok=True)
    (scratch / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    # Only a complete run replaces the figures that the README shows.
    whole = not (arguments.quick or arguments.variants) and set(arguments.only) == set(PARTS)
    page = PROJECT / "bench" / "RESULTS.md" if whole else scratch / "RESULTS.md"
    page.write_text(report.markdown(results))
    report.show(results)
    print(f"Written: {page.relative_to(PROJECT)}, .bench/results.json")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures what the extension costs.")
    parser.add_argument("--quick", action="store_true", help="about a minute, one round: to see that it works")
    parser.add_argument(
        "--only",
        type=parts,
        default=list(PARTS),
        metavar="a,b,c,d,e,f,g,h,i,j,k,l",
        help="a: throughput, b: exclusive runs, c: ledger, d: times, e: schedule, f: plugin, g: commands of operators, "
        "h: pools, i: idle workers, j: a large installation, simulated, k: workers that are killed, l: the dashboard",
    )
    parser.add_argument("--rounds", type=positive, help="rounds of each part")
    parser.add_argument("--tasks", type=positive, help="tasks of each throughput measurement")
    parser.add_argument("--kills", type=positive, help="workers that are killed, of each execution pool")
    parser.add_argument("--variants", type=variants, help="of the throughput: " + ",".join(_names()))
    return parser.parse_args(argv)


def parts(text: str) -> list[str]:
    chosen = [part for part in text.split(",") if part]
    if not chosen or any(part not in PARTS for part in chosen):
        raise argparse.ArgumentTypeError(f"choose from {','.join(PARTS)}")
    return chosen


def variants(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in _names()]:
        raise argparse.ArgumentTypeError(f"no such variant: {', '.join(unknown)}")
    return chosen


def _names() -> list[str]:
    return [variant.name for variant in throughput.VARIANTS]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def size_of(arguments: argparse.Namespace) -> Size:
    size = QUICK if arguments.quick else FULL
    chosen = {"rounds": arguments.rounds, "tasks": arguments.tasks, "kills": arguments.kills}
    if arguments.rounds:
        size = dataclasses.replace(size, schedule=dataclasses.replace(size.schedule, rounds=arguments.rounds))
    return dataclasses.replace(size, **{name: value for name, value in chosen.items() if value})


def run(where: Stage, arguments: argparse.Namespace) -> dict[str, Any]:
    with where.redis() as server:
        info = server.client().info("server")
        results: dict[str, Any] = {"machine": machine(info["redis_version"]), "quick": arguments.quick}
    results["size"] = dataclasses.asdict(where.size)
    for letter, part in PARTS.items():
        if letter in arguments.only:
            chosen = (arguments.variants,) if part is throughput else ()
            results[part.__name__.removeprefix("bench.")] = part.measure(where, *chosen)
    results["problems"] = where.problems
    return results


if __name__ == "__main__":
    main()
