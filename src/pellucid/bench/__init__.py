"""How fast a model runs here, and how near that is to what the machine can do."""
