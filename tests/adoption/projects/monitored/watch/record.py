import json
import os


def write(**what):
    """Writes the data that a monitor would send, for the tests."""
    with open(os.environ["WATCH_FILE"], "a", encoding="utf-8") as file:
        file.write(json.dumps(what, default=str) + "\n")
