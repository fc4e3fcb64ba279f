"""Runs: one of each stage, many of them, and what they show.

- `pretraining_run.py`, `finetuning_run.py`: a request and its configuration -> a finished run folder.
- `run_cache.py`: a run that is finished, and made of the same, is not run again.
- `feasible.py`: what a model can do in a comparison. `many_runs.py`: what all comparisons of many runs have in common.
  `token_runs.py`: what those of pretraining have. `conditions.py`: with which versions and machines they were made.
- `comparison/`, `ladder/`, `recipes/`, `worth/`, `words/`: the experiments.
- `resume_test.py`: a killed run ends as the uninterrupted one.
"""
