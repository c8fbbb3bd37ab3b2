"""The simulated worker: the engine of the simulator, stepped against the clock and served over the network."""
