"""The graph of a model: ops, names, the NumPy reference, fusion and memory."""
