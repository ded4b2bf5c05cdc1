"""What a sample is: the lengths of responses, and turns of agents with tools between them."""
