"""Runs: one of each stage, grids of them, and what they show.

- `pretraining_run.py`, `finetuning_run.py`: a request and its configuration -> a finished run folder.
- `run_cache.py`: a run that is finished, and made of the same, is not run again.
- `grid.py`, `comparison.py`: models x tasks x arms x seeds in one table of what pretraining gained.
- `data_efficiency.py`: how many labels a prompt is worth.
- `ladder.py`: a ladder of language models as its YAML file has it; `ladder_run.py` trains and measures them
  (`ladder_training.py`, `ladder_measures.py`) into results (`ladder_results.py`, `ladder_table.py`, `ladder_plot.py`).
- `claims.py`: what papers claim of language models, tested on a ladder.
- `resume_test.py`: a killed run ends as the uninterrupted one.
"""
