"""Ways of pretraining: rows, corruption, loss, metrics."""
