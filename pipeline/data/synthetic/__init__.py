"""A built-in corpus about a small world, and labelled tasks about it: nothing is downloaded."""
