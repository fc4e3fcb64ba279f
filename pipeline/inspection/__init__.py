"""Looking into a model: audit, evaluation, generation, neighbors."""
