"""Metrics of runs: kept, sent, drawn, and traced to their origin.

history: metrics.csv and metrics.json; wandb: Weights & Biases; lineage: the stages that led to a result; plots: PNGs;
tables: Markdown; rank: which process of a run this is.
"""
