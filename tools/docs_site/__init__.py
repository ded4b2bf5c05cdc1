"""The docs site: the repository's pages with their made blocks, the command reference and the API reference."""
