"""What the ingredients of a recipe of pretraining buy.

`ingredients.py` has them as their YAML file has them, `run.py` trains them, `report.py` says what each buys.
"""
