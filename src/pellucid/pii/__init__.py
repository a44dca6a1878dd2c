"""Personal data in text: what it looks like, where it stands, and names that stand in for it."""
