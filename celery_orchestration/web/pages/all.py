"""The pages, in the order of the menu."""

from celery_orchestration.web.pages import (
    Page,
    audit,
    dead_letters,
    graph,
    job,
    jobs,
    overview,
    run,
    runs,
    schedule,
    timeline,
    workers,
)

PAGES = (
    Page("overview", "Overview", overview.view),
    Page("jobs", "Jobs", jobs.view),
    Page("timeline", "Timeline", timeline.view),
    Page("graph", "Graph", graph.view),
    Page("runs", "Runs", runs.view),
    Page("schedule", "Schedule", schedule.view, extra=schedule.extra),
    Page("letters", "Dead letters", dead_letters.view),
    Page("workers", "Workers", workers.view),
    Page("audit", "Audit", audit.view),
    Page("job", "Job", job.view, listed=False),
    Page("run", "Run", run.view, listed=False),
)
