"""Measurements of what the project promises; each prints its table: `python -m benchmarks.NAME`."""
