"""What ended, what was changed, and what jobs did over time."""
