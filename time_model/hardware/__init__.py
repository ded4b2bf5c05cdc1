"""What a GPU reaches of its published rates, and what its host costs."""
