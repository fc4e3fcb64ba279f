"""Everything that imports lightning: modules, data modules, runs, checkpoints."""
