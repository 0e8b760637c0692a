"""python -m workbench."""

from workbench.cli import app

if __name__ == "__main__":
    app()
