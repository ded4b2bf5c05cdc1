"""Memory of a serving engine's start by the engine's own law: weights as it holds them, its pool, its blocks."""
