"""Models x tasks x arms x seeds: what pretraining gains.

`grid.py` has the grid as its YAML file has it, `runs.py` trains it. `gains.py` says what pretraining gained, `table.py`
makes the table of it, `files.py` and `plot.py` the files.
"""
