"""Many runs: the comparison grid, data efficiency, the resume test."""
