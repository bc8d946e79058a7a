"""What the tasks did, one line each, for the tests."""

import json
import os
import time
from contextlib import contextmanager


def write(event, **what):
    line = json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **what})
    with open(os.environ["SHOP_JOURNAL"], "a", encoding="utf-8") as journal:
        journal.write(line + "\n")


@contextmanager
def recorded(task, **what):
    what = {"task": task, **what}
    write("start", **what)
    yield
    write("end", **what)
