"""Programs that make the project's data files. Not part of the installed package; they may use pandas, pyarrow and scipy."""
