"""How we judge ourselves: published tables, the fits on them, the sheets of errors, the judges. Not shipped."""
