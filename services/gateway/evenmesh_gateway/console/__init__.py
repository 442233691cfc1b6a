"""The console: a page in a browser that asks the mesh and shows who is shown, built from ``console/``."""
