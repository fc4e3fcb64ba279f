"""Looking into a model: audit, evaluation, mixtures, loss by context, decoding, retrieval, neighbors."""
