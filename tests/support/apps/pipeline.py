"""The example as another release has it: PIPELINE_RELEASE has the options of its jobs, as JSON."""

import json
import os

from examples.pipeline import app

app.conf.task_annotations = {
    f"examples.pipeline.{job}": options for job, options in json.loads(os.environ.get("PIPELINE_RELEASE", "{}")).items()
}
app.conf.orchestration_lease_seconds = float(os.environ.get("PIPELINE_LEASE", "30"))
