"""Speed compared with other implementations: `make bench`.

steps: training steps; commands: whole commands; timing: interleaved measurements; scaling: cost by size; lm_eval:
scores and speed beside lm-evaluation-harness.
"""
