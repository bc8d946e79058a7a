import os

from celery_orchestration import OrchestratedTask
from proj.celery import app

if os.environ.get("TEST_BREAK") == "import":
    import there_is_no_such_module  # noqa: F401


@app.task(base=OrchestratedTask, priority="high", max_running=4)
def add(x, y):
    return x + y


@app.task(base=OrchestratedTask, pool="images", depends_on=["proj.tasks.add"])
def draw(): ...


if os.environ.get("TEST_BREAK") == "name":

    @app.task(base=OrchestratedTask, depends_on=["proj.tasks.ad"])
    def misspelt(): ...
