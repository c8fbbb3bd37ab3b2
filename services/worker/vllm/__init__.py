"""Real engines behind the protocol of the simulated worker: vLLM with the policies of ``schedulers`` inside it."""
