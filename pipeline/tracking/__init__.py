"""Metrics of runs: kept, sent, drawn, and traced to their origin.

- `history.py`: metrics.csv and metrics.json. `metric_names.py`: what their names mean. `groups.py`: scores by group.
- `lineage.py`: the stages that led to a result. `words_seen.py`: encoders that were saved on the way.
- `plots.py`: PNGs. `tables.py`: Markdown. `amounts.py`: counts and times. `public.py`: settings without secrets.
- `wandb.py`: a run in Weights & Biases. `wandb_environment.py`: its mode and key. `wandb_artifacts.py`,
  `wandb_charts.py`, `wandb_grid.py`: folders, charts of a test, and the table of a grid there.
"""
