"""Finds common problems, and shows how to fix them."""
