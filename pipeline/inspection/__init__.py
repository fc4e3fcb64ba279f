"""Looking into a model: audit, evaluation, generation, samples."""
