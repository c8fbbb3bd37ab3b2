"""The same decisions on the wall clock: dispatcher, workers and analysis over real sockets."""
