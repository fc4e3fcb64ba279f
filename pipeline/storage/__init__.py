"""Files that survive a crash. Plain Python.

atomic: files written whole or not at all; folders: the same of folders; checksums: SHA256SUMS and hashes of content;
locks: between processes; json_lines: rows of JSON; validation: JSON and YAML checked as they are read; paths.
"""
