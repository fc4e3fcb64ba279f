"""An encoder with a head: features, heads, predictions, scores; without Lightning."""
