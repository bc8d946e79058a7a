"""``python -m bench.fill COUNT BYTES``: queues this many empty tasks of the app that BENCH_APP names, and prints how
many of them it queued per second."""

from __future__ import annotations

import sys
import time

from bench.apps import app, empty


def main(count: int, size: int) -> float:
    arguments, begun = ("x" * size,) if size else (), time.perf_counter()
    with app.producer_or_acquire() as producer:
        for index in range(count):
            empty.apply_async((index, *arguments), producer=producer)
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2])))
