"""``python -m bench.fill COUNT BYTES``: queues that many empty tasks, by the app that BENCH_APP names."""

from __future__ import annotations

import sys

from bench.apps import app, empty


def main(count: int, size: int) -> None:
    arguments = ("x" * size,) if size else ()
    with app.producer_or_acquire() as producer:
        for index in range(count):
            empty.apply_async((index, *arguments), producer=producer)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
