"""What is asked and what is recorded: traces, windows, tiers, regions and results."""
