"""What the tables of formats cannot say, a module for each."""
