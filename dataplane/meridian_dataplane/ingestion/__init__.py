"""Builds an index epoch: sources in, atomically published documents out. Runs as an Indexed Job."""
