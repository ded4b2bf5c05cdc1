"""Programs beside the package; none of them is shipped."""
