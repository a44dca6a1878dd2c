"""Models as data: the spec of an architecture, its graph, and where models come from."""
