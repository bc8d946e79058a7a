"""Views: models as text and tables for the terminal."""
