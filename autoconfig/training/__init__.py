"""The plan of a training job: from a question to the legal space, its prices, the ranking and the answer."""
