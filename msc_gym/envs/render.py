"""An episode to look at: a table of text, or an image of bars."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_gym.decisions import Part
from msc_gym.envs.episode import Episode

BAR, STRIPE, HEIGHT = 24, 4, 96  # pixels
COLOURS: dict[Part, tuple[int, int, int]] = {"prune": (31, 119, 180), "quantize": (255, 127, 14)}
TITLES: dict[Part, str] = {"prune": "channels", "quantize": "bits"}
OPEN = 180  # grey of the stripe where nothing is decided yet


def table(episode: Episode) -> str:
    """A line for each site: its name, and what was applied there; `<` marks the next one, `?` those that are open."""
    parts = episode.task.decide
    rows = [("site", *[TITLES[part] for part in parts])]
    for index in range(len(episode.task.sites)):
        rows.append((episode.task.sites[index].name, *[_cell(episode, index, part) for part in parts]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:], f"MACs left: {episode.macs():.3f}"])


def image(episode: Episode) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A column for each site, uint8 (height, width, 3): a bar for each part that it decides, as high as the share that
    was kept of channels (blue) and of 32 bits (orange); a grey stripe where it is open."""
    parts, sites = episode.task.decide, episode.task.sites
    picture = np.full((HEIGHT, len(sites) * BAR, 3), 255, np.uint8)
    for index, site in enumerate(sites):
        for decision in site.decisions:
            place, width = parts.index(decision.part), (BAR - STRIPE) // len(parts)
            left = index * BAR + STRIPE + place * width
            if index < episode.index:
                height = round(HEIGHT * decision.share(episode.choices[decision.name]))
                picture[HEIGHT - height :, left : left + width] = COLOURS[decision.part]
            else:
                picture[HEIGHT - STRIPE :, left : left + width] = OPEN
    return picture


def _cell(episode: Episode, index: int, part: Part) -> str:
    decision = next((d for d in episode.task.sites[index].decisions if d.part == part), None)
    if decision is None:
        return ""
    if index >= episode.index:
        return "<" if index == episode.index else "?"
    option = episode.choices[decision.name]
    return f"{'#' * round(20 * decision.share(option)):20} {option}/{decision.full}" if part == "prune" else str(option)
