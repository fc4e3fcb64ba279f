"""Zero-shot and few-shot evaluation.

`scoring.py` chooses one of the scorers `causal.py`, `masked.py`, `bidirectional.py`, `seq2seq.py`, which share
`requests.py`; `evaluate.py` fills prompts (`few_shot.py`), scores them (`calibration.py`) and counts (`metrics.py`);
`run.py` makes a run of it, `report.py` its tables.
"""

from pipeline.prompting.requests import Request, Scored
from pipeline.prompting.scoring import log_likelihoods, score

__all__ = ["Request", "Scored", "log_likelihoods", "score"]
