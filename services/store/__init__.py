"""What must outlive the dispatcher's process: one journal, over Redis or a local file."""
