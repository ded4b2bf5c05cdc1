"""Programs beside the package: they make its data files and judge it. None is shipped; they may use pandas, pyarrow, scipy."""
