"""The same decisions on a virtual clock: step time, engine, kernel and sweep."""
