"""The example before it used the extension: the same tasks, on the same queue."""

import os

from celery import Celery

app = Celery("pipeline", broker=os.environ.get("PIPELINE_REDIS"), backend=os.environ.get("PIPELINE_REDIS"))


@app.task(name="examples.pipeline.fetch_data")
def fetch_data():
    return "fetched"


@app.task(name="examples.pipeline.process_data")
def process_data():
    return "processed"
