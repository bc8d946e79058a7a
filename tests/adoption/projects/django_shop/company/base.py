"""The class of all tasks of the company, which is older than this package, with a request class of its own."""

from celery import Task
from celery.worker.request import Request

from celery_orchestration.django import OrchestratedTask
from company import journal


class CompanyRequest(Request):
    def on_accepted(self, pid, time_accepted):
        journal.write("accepted", task=self.name)
        return super().on_accepted(pid, time_accepted)


class CompanyTask(Task):
    abstract = True
    Request = CompanyRequest

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        journal.write("company heard", task=self.name)


class CompanyFirst(CompanyTask, OrchestratedTask):
    abstract = True


class CompanyLast(OrchestratedTask, CompanyTask):
    abstract = True
