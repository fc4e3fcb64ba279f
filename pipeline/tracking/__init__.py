"""Metric history, Weights & Biases, lineage, plots."""
