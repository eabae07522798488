"""Configs, baselines and scripts behind every number that we publish; nothing imports this package."""
