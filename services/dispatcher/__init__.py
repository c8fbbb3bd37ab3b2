"""The dispatcher's process: doors for clients and workers around ``schedulers.desk``, and a journal."""
