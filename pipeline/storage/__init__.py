"""Files that survive a crash: atomic writes, checksums, locks, checked reading. Plain Python."""
