"""Models: ModelSpec, the catalogue, Hugging Face configs, parameter counts."""
