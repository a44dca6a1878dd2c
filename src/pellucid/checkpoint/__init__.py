"""From model files to a ModelSpec, canonical weights and the raw material of a tokenizer. Vendors' quirks stop here."""

from pellucid.checkpoint.open import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
