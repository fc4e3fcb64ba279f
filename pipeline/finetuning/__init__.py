"""An encoder with a head: features, heads, metrics, predictions. torch only."""
