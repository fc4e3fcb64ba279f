"""Configurations by name: models, corpora, tasks, comparisons.

- `files.py`: `configs/KIND/NAME.yaml` by name, what is in it, and what is taken where none is named.
- `tasks.py`: TASK= -> its file and the task itself. `arms.py`: the ways to fine-tune it that are compared.
- `parsing.py`: how YAML files are read; `former_names.py`: what older versions called things.
"""
