"""Why a job or a run does not run, down to the root cause."""
