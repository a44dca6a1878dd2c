"""Probes: what may be watched, and the hub through which it is told."""
