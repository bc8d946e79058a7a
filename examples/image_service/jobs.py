"""The work. Every job counts itself in Redis, so that ``load.py`` can report which were lost and which ran twice."""

import csv
import functools
import io
import json
import smtplib
import urllib.request
from email.message import EmailMessage
from pathlib import Path

import redis
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

from celery_orchestration import OrchestratedTask
from examples.image_service.app import OUTPUT, SMTP_PORT, WEBHOOK_PORT, WORLD, app

PHOTO, THUMBNAIL = (640, 480), (160, 120)
#: The other server may be unavailable for a while.
AGAIN = {"autoretry_for": (OSError,), "max_retries": 8, "retry_backoff": True}


@app.task(base=OrchestratedTask, pool="images")
def thumbnail(load: str, number: int) -> None:
    """Scales a photo down, stamps it and writes it as JPEG."""
    photo = Image.open(io.BytesIO(uploaded(number % 10)))
    small = ImageOps.autocontrast(ImageOps.fit(photo, THUMBNAIL, Image.Resampling.LANCZOS))
    ImageDraw.Draw(small).text((4, 104), f"photo {number}", fill="white")
    small.save(file_for("thumbnails", f"{number}.jpg"), quality=80)
    count(load, "thumbnail", number)


@app.task(base=OrchestratedTask, pool="documents")
def invoice(load: str, number: int) -> None:
    """Writes an invoice as PDF."""
    page = io.BytesIO()
    canvas = Canvas(page, pagesize=A4)
    canvas.setFont("Helvetica-Bold", 18)
    canvas.drawString(72, 760, f"Invoice {number}")
    canvas.setFont("Helvetica", 11)
    for line in range(20):
        canvas.drawString(72, 720 - 24 * line, f"{line + 1}. Photo {number * 20 + line}, resized")
        canvas.drawRightString(520, 720 - 24 * line, f"{(number * 7 + line * 3) % 100 + 1:.2f} EUR")
    canvas.save()
    file_for("invoices", f"{number}.pdf").write_bytes(page.getvalue())
    count(load, "invoice", number)


@app.task(base=OrchestratedTask, pool="email", priority="high", **AGAIN)
def mail(load: str, number: int) -> None:
    """Tells a customer that the photos are ready."""
    message = EmailMessage()
    message["From"], message["To"] = "photos@example.com", f"customer-{number}@example.com"
    message["Subject"] = f"Your photos are ready ({number})"
    message["X-Load"] = load
    message.set_content(f"Order {number} is complete.\n")
    with smtplib.SMTP(WORLD, SMTP_PORT, timeout=10, local_hostname="localhost") as server:
        server.send_message(message)
    count(load, "mail", number)


@app.task(base=OrchestratedTask, pool="webhooks", **AGAIN)
def webhook(load: str, number: int) -> None:
    """Tells a shop's server."""
    body = json.dumps({"load": load, "order": number, "state": "complete"}).encode()
    request = urllib.request.Request(f"http://{WORLD}:{WEBHOOK_PORT}/orders", body, method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()
    count(load, "webhook", number)


@app.task(base=OrchestratedTask, pool="documents", max_running=1)
def export(load: str, number: int) -> None:
    """Writes a table of orders. One at a time: they all write to the same archive."""
    with file_for("exports", f"{number}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["order", "state", "price"])
        rows.writerows([order, "complete", f"{order % 100}.00"] for order in range(20_000))
    count(load, "export", number)


@app.task(base=OrchestratedTask, interval_seconds=60, priority="low")
def usage_report() -> dict[str, int]:
    """Counts the files of each kind. The scheduler fires this job."""
    directories = [one for one in Path(OUTPUT).glob("*") if one.is_dir()]
    return {one.name: sum(1 for _ in one.iterdir()) for one in directories}


@functools.cache
def uploaded(kind: int) -> bytes:
    """A customer's photo."""
    bands = [Image.effect_noise(PHOTO, 60 + kind + band) for band in range(3)]
    file = io.BytesIO()
    Image.merge("RGB", bands).filter(ImageFilter.GaussianBlur(3)).save(file, "JPEG")
    return file.getvalue()


def file_for(kind: str, name: str) -> Path:
    directory = Path(OUTPUT) / kind
    directory.mkdir(parents=True, exist_ok=True)
    return directory / name


def count(load: str, kind: str, number: int) -> None:
    store().hincrby(counts_of(load), f"{kind} {number}", 1)


def counts_of(load: str) -> str:
    """The key of a hash that counts how often each job of a load ended."""
    return f"image_service:{load}"


@functools.cache
def store() -> "redis.Redis":
    return redis.Redis.from_url(app.conf.broker_url)
