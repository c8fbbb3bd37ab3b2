"""Engine policies, one idea a file: who gets tokens inside one engine, every step."""
