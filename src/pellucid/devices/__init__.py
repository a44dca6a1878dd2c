"""Devices lower the graph and run it."""
