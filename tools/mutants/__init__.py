"""Small mutations of the pure packages, and the share of them that no test notices (`make mutants`)."""
