"""Gymnasium environments over a compression task, and their declared rewards."""
