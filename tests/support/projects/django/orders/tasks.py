import os

from celery import shared_task

if os.environ.get("TEST_BREAK") == "import":
    import there_is_no_such_module  # noqa: F401


@shared_task(priority="high", max_running=4)
def add(x, y):
    return x + y


@shared_task(pool="images", depends_on=["orders.tasks.add"])
def draw(): ...


if os.environ.get("TEST_BREAK") == "name":

    @shared_task(depends_on=["orders.tasks.ad"])
    def misspelt(): ...
