"""Why a run is slower than it should be: the price of its plan less what it left behind, by phase; rules name the cause."""
