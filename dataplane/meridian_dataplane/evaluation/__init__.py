"""Offline evaluation: the data plane's own pipeline over a golden set, judged by exact measures. Runs as a Job."""
