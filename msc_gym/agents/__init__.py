"""Agents: plain objects that propose kept counts and are told the reward."""
