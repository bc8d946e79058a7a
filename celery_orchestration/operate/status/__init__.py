"""What runs, waits and is wrong now."""
