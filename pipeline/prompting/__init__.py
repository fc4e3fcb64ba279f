"""Zero-shot and few-shot evaluation: scorers, calibration, evaluation, report."""

from pipeline.prompting.scoring import Request, Scored, log_likelihoods, score

__all__ = ["Request", "Scored", "log_likelihoods", "score"]
