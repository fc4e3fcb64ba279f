"""Runs: one of each stage, grids of them, and what they show.

- `pretraining_run.py`, `finetuning_run.py`: a request and its configuration -> a finished run folder.
- `run_cache.py`: a run that is finished, and made of the same, is not run again.
- `grid.py`: models x tasks x arms x seeds. `comparison.py` says what pretraining gained, `score_table.py` makes the
  table of it, `comparison_files.py` and `comparison_plot.py` its files.
- `data_efficiency.py`: how many labels a prompt is worth.
- `ladder.py`: a ladder of language models as its YAML file has it. `ladder_run.py` plans (`ladder_plan.py`), trains
  (`ladder_training.py`) and measures them (`ladder_measures.py`); the results (`ladder_results.py`) become tables and a
  plot (`ladder_table.py`, `ladder_plot.py`), and `claims.py` says what holds.
- `recipes.py`: a recipe of pretraining and its ingredients, as their YAML file has them. `recipes_run.py` trains them,
  `recipes_report.py` says what each buys. `pretraining_cell.py` is what ladders and recipes have in common.
- `resume_test.py`: a killed run ends as the uninterrupted one.
"""
