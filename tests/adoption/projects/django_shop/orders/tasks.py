import os
import signal
import time

from celery import shared_task
from company.journal import recorded
from django.db import transaction

from orders.models import Order


@shared_task
def place_order(paid=True):
    """Its shipment is sent when the order is committed, not before."""
    with transaction.atomic():
        order = Order.objects.create(paid=paid)
        ship.delay_on_commit(order.pk)
        if not paid:
            raise ValueError("not paid")
    return order.pk


@shared_task(bind=True, priority="high", autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0)
def ship(self, order_id):
    with recorded(self.name, order=order_id, queue=self.request.delivery_info["routing_key"]):
        if self.request.retries == 0:
            raise ConnectionError("the carrier does not answer")
        Order.objects.filter(pk=order_id).update(shipped=True)


@shared_task
def charge_card(order_id):
    """Without written options: if its process dies, it must not run again by itself."""
    with recorded(charge_card.name, order=order_id):
        os.kill(os.getpid(), signal.SIGKILL)


@shared_task(max_running=1, key="{tenant}")
def import_orders(tenant, seconds=0.3):
    with recorded(import_orders.name, tenant=tenant):
        time.sleep(seconds)
    return tenant


@shared_task(bind=True)
def price(self, net):
    return round(net * 1.19, 2)


@shared_task
def total(prices):
    return round(sum(prices), 2)
