"""Speed against others' code, side by side in one run: `make bench`."""
