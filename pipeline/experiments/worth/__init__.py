"""How many labels a prompt is worth (`prompt.py`), and how many pretraining (`pretraining.py`).

On one task, or on those of a comparison (`tasks.py`). `few_rows.py` is what both have in common; `labels_saved.py` has
the statistics, `report.py` the words and numbers, `plot.py` the plot.
"""
