"""Tables of measured runs, training and serving: cells, rows as questions, and a prediction for every row."""
