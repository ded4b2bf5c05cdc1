"""Maps: what other people's files say, path or flag <-> field <-> values, as tables that one engine reads and writes."""
