"""Files that survive a crash; without numpy and torch.

- `atomic.py`: files written whole or not at all. `folders.py`: the same of folders. `locks.py`: between processes.
- `checksums.py`: SHA256SUMS, and hashes of content. `paths.py`: paths as users write them.
- `json_lines.py`, `csv_table.py`: rows as text. `validation.py`: JSON and YAML, checked as they are read.
"""
