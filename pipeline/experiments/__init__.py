"""Runs: one of each stage, grids of them, and what they show.

- `pretraining_run.py`, `finetuning_run.py`: a request and its configuration -> a finished run folder.
- `run_cache.py`: a run that is finished, and made of the same, is not run again.
- `feasible.py`: what a model can do in a comparison. `many_runs.py`: what all comparisons of many runs have in common.
- `grid.py`: models x tasks x arms x seeds, as their YAML file has them. `grid_run.py` trains them. `comparison.py` says
  what pretraining gained, `score_table.py` makes the table of it, `comparison_files.py` and `comparison_plot.py` its
  files. `conditions.py` says with which versions and machines.
- `worth_prompt.py`, `worth_pretraining.py`: how many labels a prompt is worth, and how many pretraining, on one task
  or on those of a grid (`worth_tasks.py`). `few_rows.py` is what both have in common; `labels_saved.py` has the
  statistics, `worth_report.py` the words and numbers, `worth_plot.py` the plot.
- `words_curve.py`, `words_plot.py`: zero-shot accuracy over the words that pretraining has seen.
- `ladder.py`: a ladder of language models as its YAML file has it. `ladder_run.py` plans (`ladder_plan.py`), trains
  (`ladder_training.py`) and measures them (`ladder_measures.py`); the results (`ladder_results.py`) become tables and a
  plot (`ladder_table.py`, `ladder_plot.py`), and `claims.py` says what holds.
- `recipes.py`: a recipe of pretraining and its ingredients, as their YAML file has them. `recipes_run.py` trains them,
  `recipes_report.py` says what each buys. `token_runs.py` is what ladders and recipes have in common.
- `resume_test.py`: a killed run ends as the uninterrupted one.
"""
