"""The settings of the Django project that ``django_shop`` belongs to."""

import os

SECRET_KEY = "of a test"
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("TEST_DATABASE", ":memory:")},
}
