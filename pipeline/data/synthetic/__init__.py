"""A built-in corpus about a small world, and labeled tasks about it: nothing is downloaded."""
