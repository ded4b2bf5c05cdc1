"""The durable work: searches taken from a queue by workers."""
