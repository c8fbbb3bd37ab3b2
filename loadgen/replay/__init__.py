"""Live replay: frozen windows sent open loop to a running system, and what came back as facts."""
