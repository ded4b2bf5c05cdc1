"""Tables of measured runs: cells, rows as questions, a prediction for every row."""
