"""The engine: sequences, one scheduler, one step at a time."""
