"""Language models of many years on one text.

`rungs.py` has a ladder as its YAML file has it. `run.py` plans (`plan.py`), trains (`training.py`) and measures
(`measures.py`) its models; the results (`results.py`) become tables and a plot (`table.py`, `plot.py`), and `claims.py`
says what holds.
"""
