"""``python -m windtunnel`` is the command ``windtunnel``."""

from windtunnel.cli import main

if __name__ == "__main__":
    main()
