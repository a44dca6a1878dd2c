"""Sampling: from one row of logits to one token."""
