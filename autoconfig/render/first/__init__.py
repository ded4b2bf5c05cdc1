"""The first screens: what to start, what is equal, faster or slower, what decides, and the next command."""
