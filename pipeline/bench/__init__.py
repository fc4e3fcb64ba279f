"""Speed compared with other implementations: `make bench`.

- `steps.py`: training steps. `commands.py`: whole commands. `decoding.py`: beam search. `output.py`: output layers.
- `scaling.py`: cost by size. `lm_eval.py`: scores and speed beside lm-evaluation-harness.
- `timing.py`: interleaved measurements.
"""
