"""Post-training of a language model, planned: generation, log-probabilities, training and weight synchronisation of one
step."""
